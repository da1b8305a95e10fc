package softdev

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// parker is a place for one goroutine at a time to wait in CQ.Wait, in the
// network poller.
//
// Waking a goroutine through a channel makes Go's scheduler start another
// thread to share the work, which costs a system call, and then the two
// threads take each other's work: a round trip over a socket, whose reader
// wakes a waiter each time, takes half as long again. A goroutine that an
// eventfd wakes is found by the reader's own thread when the reader waits for
// more. With many waiters there is work for every thread, and only the first
// of them waits here.
type parker struct {
	file *os.File
	buf  [8]byte // of whoever waits
	cq   *cq     // guarded by Group.mu: whose waiter is here; nil if none
}

// ParkInPoller lets one goroutine at a time wait for completions in the network
// poller: for drivers whose completions come from a goroutine that reads a
// socket.
//
// Preconditions: the device is not in use yet.
func (d *Device) ParkInPoller() error {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("cannot make an eventfd: %w", err)
	}
	d.parker = &parker{file: os.NewFile(uintptr(fd), "eventfd")}
	return nil
}

// park returns after unpark or close, or with ctx's error. It may return for
// no reason, too.
func (p *parker) park(ctx context.Context) error {
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, p.unpark)
		defer stop()
	}
	// An error means that the device has been closed.
	_, _ = p.file.Read(p.buf[:])
	return ctx.Err()
}

// one is what makes an eventfd readable: a count, in the host's byte order.
var one = binary.NativeEndian.AppendUint64(nil, 1)

// unpark makes a present or the next call of park return.
func (p *parker) unpark() {
	// It fails only when the device has been closed.
	_, _ = p.file.Write(one)
}

func (p *parker) close() { p.file.Close() }
