package vm

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Wire is an Ethernet cable between two guests. A frame is one datagram on a
// pair of Unix sockets; the wire carries it from one pair to the other, or
// loses it while it is cut.
type Wire struct {
	ends    [2]*os.File // for the guests
	ours    [2]*os.File
	cut     atomic.Bool
	carried atomic.Int64
	lost    atomic.Int64
	running sync.WaitGroup
	close   sync.Once
}

// maxFrame is the largest frame: 64 KiB, as segmentation off-loading makes
// them, and a header.
const maxFrame = 1 << 17

// NewWire returns a wire that carries frames until it is closed.
func NewWire() (*Wire, error) {
	w := new(Wire)
	for i := range w.ends {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			w.Close()
			return nil, fmt.Errorf("cannot make a wire: %w", err)
		}
		for _, fd := range fds {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 8<<20) // as much as the system allows
		}
		w.ends[i] = os.NewFile(uintptr(fds[0]), "wire")
		w.ours[i] = os.NewFile(uintptr(fds[1]), "wire")
	}
	w.running.Add(2)
	go w.carry(w.ours[0], w.ours[1])
	go w.carry(w.ours[1], w.ours[0])
	return w, nil
}

// End returns one of the two ends, 0 or 1, for a guest's Config.
func (w *Wire) End(i int) *os.File { return w.ends[i] }

// Cut loses every frame from now on, until Mend.
func (w *Wire) Cut() { w.cut.Store(true) }

// Mend carries frames again.
func (w *Wire) Mend() { w.cut.Store(false) }

// Frames returns how many frames the wire has carried and lost.
func (w *Wire) Frames() (carried, lost int64) { return w.carried.Load(), w.lost.Load() }

// Close takes the wire away.
func (w *Wire) Close() {
	w.close.Do(func() {
		for i := range w.ends {
			if w.ends[i] != nil {
				w.ends[i].Close()
				w.ours[i].Close()
			}
		}
	})
	w.running.Wait()
}

// carry moves frames until the wire is closed or a guest is gone.
func (w *Wire) carry(from, to *os.File) {
	defer w.running.Done()
	frame := make([]byte, maxFrame)
	for {
		n, err := from.Read(frame)
		if err != nil || n == 0 {
			return
		}
		if w.cut.Load() {
			w.lost.Add(1)
			continue
		}
		if _, err := to.Write(frame[:n]); err != nil {
			w.lost.Add(1) // the other guest is gone
			continue
		}
		w.carried.Add(1)
	}
}
