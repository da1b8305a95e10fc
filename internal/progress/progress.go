// Package progress shows on a terminal that something is going on: a bar where it
// is known how much there is to do, and otherwise what is waited for and for how
// long. It says nothing where nobody looks: in a pipe or a file.
package progress

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// Terminal returns w if it is a terminal, and otherwise nil, which is silent.
func Terminal(w io.Writer) io.Writer {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}

// patience is how long something may take before it is said that it does.
const patience = time.Second

// Waiting says on w, a terminal or nil, what is waited for and for how long, each
// second from the first one on, until end is called. Calling end again is a no-op.
func Waiting(w io.Writer, what string) (end func()) {
	if w == nil {
		return func() {}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	began := time.Now()
	go func() {
		defer close(stopped)
		tick := time.NewTicker(patience)
		defer tick.Stop()
		said := false
		for {
			select {
			case <-tick.C:
				said = true
				fmt.Fprintf(w, "\r\x1b[K%s: %d s", what, int(time.Since(began).Seconds()))
			case <-stop:
				if said {
					fmt.Fprint(w, "\r\x1b[K")
				}
				return
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(stop)
		<-stopped
	})
}

// Bytes returns a bar of so many bytes on w, a terminal or nil.
func Bytes(w io.Writer, what string, total int64) *progressbar.ProgressBar {
	if w == nil {
		return progressbar.DefaultBytesSilent(total)
	}
	return progressbar.NewOptions64(total, append(look(w, 30),
		progressbar.OptionSetDescription(fmt.Sprintf("%-10s", what)),
		progressbar.OptionThrottle(50*time.Millisecond),
		progressbar.OptionShowBytes(true),
		progressbar.OptionUseIECUnits(true))...)
}

// Steps shows on w, a terminal or nil, how many steps of a whole are done, and what
// is being done. A call with another total, or with fewer steps done than before, begins
// another whole, whose bar takes the place of the one before. The second function removes
// the bar.
func Steps(w io.Writer) (progress func(done, total int, what string), end func()) {
	if w == nil {
		return nil, func() {}
	}
	var bar *progressbar.ProgressBar
	before := 0
	progress = func(done, total int, what string) {
		another := bar == nil || bar.GetMax() != total || done < before
		before = done
		if another {
			if bar != nil {
				_ = bar.Clear()
			}
			bar = progressbar.NewOptions(total, look(w, 20)...)
		}
		bar.Describe(fmt.Sprintf("%-24s", what))
		_ = bar.Set(done) // a bar that cannot be drawn is no reason to stop
	}
	return progress, func() {
		if bar != nil {
			_ = bar.Clear()
		}
	}
}

func look(w io.Writer, width int) []progressbar.Option {
	return []progressbar.Option{
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetWidth(width),
		progressbar.OptionShowCount(),
		progressbar.OptionClearOnFinish(),
	}
}
