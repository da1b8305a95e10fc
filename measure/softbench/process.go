package softbench

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"polder/internal/child"
)

// worker is a process of this program that does a part of a benchmark. It
// reports one thing a line, and runs until stop kills it.
type worker struct {
	p     *child.Process
	lines *bufio.Scanner
	w     *io.PipeWriter
}

func (o *Options) start(args ...string) (*worker, error) {
	if o.Polder == "" {
		return nil, errors.New("cannot start a process: no program is given")
	}
	r, w := io.Pipe()
	p, err := child.Start(child.Command{Path: o.Polder, Args: append(append([]string(nil), o.Args...), append([]string{"worker"}, args...)...), Stdout: w})
	if err != nil {
		return nil, err
	}
	go func() { // ends with the process
		<-p.Done()
		w.Close()
	}()
	return &worker{p, bufio.NewScanner(r), w}, nil
}

// expect waits for a line that begins with prefix, passes over others, and returns the rest
// of the line.
func (w *worker) expect(prefix string) (string, error) {
	for w.lines.Scan() {
		if rest, ok := strings.CutPrefix(w.lines.Text(), prefix); ok {
			return strings.TrimSpace(rest), nil
		}
	}
	return "", fmt.Errorf("a worker ended before it said %q: %w", prefix, w.p.Ended())
}

// stop kills the process and waits for it.
func (w *worker) stop() {
	w.w.CloseWithError(io.ErrClosedPipe) // so that nothing waits to pass on what the process still writes
	w.p.Kill()
}

// signal pauses or continues the process.
func (w *worker) signal(s syscall.Signal) error { return w.p.Signal(s) }
