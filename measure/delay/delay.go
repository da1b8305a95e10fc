// Package delay is for benchmarks that wait in the place of a device or a network.
package delay

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// timers are idle timers of the kernel's, of type *os.File.
var timers sync.Pool

// Sleep waits for d, as exactly as the kernel can. time.Sleep takes up to a millisecond more in a process that has
// nothing else to do. A system call that sleeps holds a processor of the Go runtime's, so that only few goroutines
// can sleep that way at a time.
func Sleep(d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t, _ := timers.Get().(*os.File)
	if t == nil {
		fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
		if err != nil {
			return os.NewSyscallError("timerfd_create", err)
		}
		// The file does not block, so it is in the runtime's poller. The garbage collector closes it.
		t = os.NewFile(uintptr(fd), "timer")
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
		failed = os.NewSyscallError("timerfd_settime", unix.TimerfdSettime(int(fd), 0, &spec, nil))
	}); err != nil || failed != nil {
		return errors.Join(err, failed)
	}
	var expirations [8]byte
	if _, err := t.Read(expirations[:]); err != nil {
		return err
	}
	timers.Put(t)
	return nil
}
