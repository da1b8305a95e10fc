//go:build ibverbs

package ibv

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"polder/verbs"
)

// watcher waits for a file descriptor of libibverbs in Go's poller: a goroutine
// that is parked, and no thread, while nothing happens.
type watcher struct {
	file  *os.File
	raw   syscall.RawConn
	take  func() error // takes what has come; EAGAIN when there is no more
	done  chan struct{}
	woken atomic.Bool // wake was called
}

// watch prepares to call take whenever fd, which stays libibverbs', is readable.
func watch(fd int, take func() error) (*watcher, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("cannot make an event channel non-blocking: %w", err)
	}
	// A copy: libibverbs closes its own.
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot duplicate an event channel: %w", err)
	}
	f := os.NewFile(uintptr(dup), "rdma events")
	raw, err := f.SyscallConn()
	if err == nil {
		err = f.SetReadDeadline(time.Time{}) // fails if it is not in the poller
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot poll an event channel: %w", err)
	}
	return &watcher{file: f, raw: raw, take: take, done: make(chan struct{})}, nil
}

// start runs take in a goroutine of its own until close is called.
func (w *watcher) start() {
	go func() {
		defer close(w.done)
		for w.wait() == nil {
		}
	}()
}

// wait returns nil when take has returned something else than EAGAIN, or wake
// was called, and an error when the watcher is closed.
func (w *watcher) wait() error {
	for {
		var took error
		err := w.raw.Read(func(uintptr) bool {
			took = w.take()
			return !errors.Is(took, syscall.EAGAIN)
		})
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if err := w.file.SetReadDeadline(time.Time{}); err != nil {
				return err
			}
			if w.woken.Swap(false) {
				return nil
			}
			continue
		}
		if err != nil {
			return err
		}
		return took
	}
}

// wake ends a wait, or the next.
func (w *watcher) wake() {
	w.woken.Store(true)
	_ = w.file.SetReadDeadline(time.Unix(1, 0)) // fails when it is closed, and nobody waits
}

// hangUp ends wait for good, without waiting for that.
func (w *watcher) hangUp() { w.file.Close() }

// close ends the goroutine that start started.
func (w *watcher) close() {
	w.hangUp()
	<-w.done
}

// teller calls queue pairs' OnEvent, from a goroutine of its own, with no lock
// held. A queue pair raises each type of event once, so what waits is bounded.
type teller struct {
	mu     sync.Mutex
	queue  []telling // guarded by mu
	closed bool      // guarded by mu
	wake   chan struct{}
	done   chan struct{}
}

type telling struct {
	f func(verbs.AsyncEvent)
	e verbs.AsyncEvent
}

func newTeller() *teller {
	t := &teller{wake: make(chan struct{}, 1), done: make(chan struct{})}
	go t.run()
	return t
}

func (t *teller) add(f func(verbs.AsyncEvent), e verbs.AsyncEvent) {
	t.mu.Lock()
	if !t.closed {
		t.queue = append(t.queue, telling{f, e})
	}
	t.mu.Unlock()
	t.signal()
}

func (t *teller) signal() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

func (t *teller) run() {
	defer close(t.done)
	for {
		t.mu.Lock()
		todo := t.queue
		t.queue = nil
		closed := t.closed
		t.mu.Unlock()
		for _, e := range todo {
			e.f(e.e)
		}
		switch {
		case len(todo) > 0:
		case closed:
			return
		default:
			<-t.wake
		}
	}
}

// close ends the goroutine when everything has been told.
func (t *teller) close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.signal()
	<-t.done
}
