// Package output writes what a daemon says, its log above all, to a file that
// somebody else reads, without ever waiting for them.
//
// A write to a pipe blocks when the reader has stopped, and fails when it has
// gone. A daemon that holds data must not stop serving for either. A Writer
// queues what it is given, up to a bound, and one goroutine writes it. What does
// not fit, or cannot be written, is dropped and counted; once writing goes on, a
// line says how much is missing.
package output

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"
)

// limit is how many bytes may wait to be written.
const limit = 256 << 10

// closeTimeout is how long Close waits for what has been queued to be written.
const closeTimeout = time.Second

// Writer is an io.Writer whose Write neither blocks nor fails. It may be used by
// any number of goroutines; what one call writes stays together.
type Writer struct {
	to   io.Writer
	wake chan struct{} // has room for one: there is something to write, or closed is set
	done chan struct{} // closed when the goroutine has ended

	mu     sync.Mutex
	queue  []byte // guarded by mu
	lost   int    // lines that were dropped since the last one that was written; guarded by mu
	closed bool   // guarded by mu
}

// New returns a Writer to to. Close ends its goroutine.
func New(to io.Writer) *Writer {
	w := &Writer{to: to, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go w.run()
	return w
}

// Write queues p, or drops it if too much waits already.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	switch {
	case w.closed:
	case len(w.queue)+len(p) > limit:
		w.lost += lines(p)
	default:
		w.queue = append(w.queue, p...)
	}
	w.mu.Unlock()
	w.signal()
	return len(p), nil
}

func (w *Writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default: // it will look
	}
}

// lines is how many lines p has, of which the last one may lack its end.
func lines(p []byte) int {
	n := bytes.Count(p, []byte{'\n'})
	if len(p) > 0 && p[len(p)-1] != '\n' {
		n++
	}
	return n
}

func (w *Writer) run() {
	defer close(w.done)
	var batch []byte
	for range w.wake {
		w.mu.Lock()
		batch, w.queue = w.queue, batch[:0]
		lost, closed := w.lost, w.closed
		w.lost = 0
		w.mu.Unlock()
		said := batch
		if lost > 0 {
			said = fmt.Appendf(said, "polder: %d lines were dropped here, because nobody read them\n", lost)
		}
		if len(said) > 0 {
			if _, err := w.to.Write(said); err != nil {
				w.mu.Lock()
				w.lost += lost + lines(batch)
				w.mu.Unlock()
			}
		}
		if closed {
			return
		}
	}
}

// Close writes what is queued, and waits for that for at most a second: a reader
// that has stopped keeps nobody from ending. What is written later is dropped.
func (w *Writer) Close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.signal()
	timeout := time.NewTimer(closeTimeout)
	defer timeout.Stop()
	select {
	case <-w.done:
	case <-timeout.C:
	}
}
