package fdpass

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Watcher tells of the death of processes, at once, by their pidfds.
type Watcher struct {
	epfd, wake int
	done       chan struct{}

	mu     sync.Mutex // guards the fields below
	watch  map[int32]watched
	closed bool
}

type watched struct {
	pidfd *os.File
	died  func()
}

// NewWatcher starts a watcher, which has one goroutine until Close.
func NewWatcher() (*Watcher, error) {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot watch processes: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(epfd)
		return nil, fmt.Errorf("cannot watch processes: %w", err)
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(wake)}
	if err := unix.EpollCtl(epfd, unix.EPOLL_CTL_ADD, wake, &ev); err != nil {
		unix.Close(epfd)
		unix.Close(wake)
		return nil, fmt.Errorf("cannot watch processes: %w", err)
	}
	w := &Watcher{epfd: epfd, wake: wake, done: make(chan struct{}), watch: map[int32]watched{}}
	go w.run()
	return w, nil
}

// Watch calls died, from the watcher's goroutine, when the process is dead.
// The watcher owns pidfd from now on. The function returned ends the watch.
func (w *Watcher) Watch(pidfd *os.File, died func()) (stop func(), err error) {
	fd := int32(pidfd.Fd())
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		pidfd.Close()
		return nil, os.ErrClosed
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: fd}
	if err := unix.EpollCtl(w.epfd, unix.EPOLL_CTL_ADD, int(fd), &ev); err != nil {
		pidfd.Close()
		return nil, fmt.Errorf("cannot watch a process: %w", err)
	}
	w.watch[fd] = watched{pidfd, died}
	return sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.watch[fd].pidfd == pidfd {
			w.forget(fd)
		}
	}), nil
}

// forget ends a watch.
//
// Preconditions: w.mu is held.
func (w *Watcher) forget(fd int32) {
	_ = unix.EpollCtl(w.epfd, unix.EPOLL_CTL_DEL, int(fd), nil)
	w.watch[fd].pidfd.Close()
	delete(w.watch, fd)
}

func (w *Watcher) run() {
	defer close(w.done)
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(w.epfd, events, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			panic(fmt.Sprintf("BUG: epoll_wait: %v", err))
		}
		for _, ev := range events[:n] {
			if ev.Fd == int32(w.wake) {
				return
			}
			w.mu.Lock()
			p, ok := w.watch[ev.Fd]
			if ok {
				w.forget(ev.Fd)
			}
			w.mu.Unlock()
			if ok {
				p.died()
			}
		}
	}
}

// Close ends the watcher. No died is called once it has returned. Closing
// twice is a no-op.
func (w *Watcher) Close() {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return
	}
	w.closed = true
	w.mu.Unlock()
	one := [8]byte{1}
	_, _ = unix.Write(w.wake, one[:])
	<-w.done
	w.mu.Lock()
	defer w.mu.Unlock()
	for fd := range w.watch {
		w.forget(fd)
	}
	unix.Close(w.epfd)
	unix.Close(w.wake)
}
