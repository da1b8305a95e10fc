package vm

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Cable is an Ethernet cable between two guests. A frame is one datagram on a
// pair of Unix sockets; the cable carries it from one pair to the other, or
// loses it while it is cut.
type Cable struct {
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

// NewCable returns a cable that carries frames until it is closed.
func NewCable() (*Cable, error) {
	c := new(Cable)
	for i := range c.ends {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			c.Close()
			return nil, fmt.Errorf("cannot make a cable: %w", err)
		}
		for _, fd := range fds {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 8<<20) // as much as the system allows
		}
		c.ends[i] = os.NewFile(uintptr(fds[0]), "cable")
		c.ours[i] = os.NewFile(uintptr(fds[1]), "cable")
	}
	c.running.Add(2)
	go c.carry(c.ours[0], c.ours[1])
	go c.carry(c.ours[1], c.ours[0])
	return c, nil
}

// End returns one of the two ends, 0 or 1, for a guest's Config.
func (c *Cable) End(i int) *os.File { return c.ends[i] }

// Cut loses every frame from now on, until Mend.
func (c *Cable) Cut() { c.cut.Store(true) }

// Mend carries frames again.
func (c *Cable) Mend() { c.cut.Store(false) }

// Frames returns how many frames the cable has carried and lost.
func (c *Cable) Frames() (carried, lost int64) { return c.carried.Load(), c.lost.Load() }

// Close takes the cable away.
func (c *Cable) Close() {
	c.close.Do(func() {
		for i := range c.ends {
			if c.ends[i] != nil {
				c.ends[i].Close()
				c.ours[i].Close()
			}
		}
	})
	c.running.Wait()
}

// carry moves frames until the cable is closed or a guest is gone.
func (c *Cable) carry(from, to *os.File) {
	defer c.running.Done()
	frame := make([]byte, maxFrame)
	for {
		n, err := from.Read(frame)
		if err != nil || n == 0 {
			return
		}
		if c.cut.Load() {
			c.lost.Add(1)
			continue
		}
		if _, err := to.Write(frame[:n]); err != nil {
			c.lost.Add(1) // the other guest is gone
			continue
		}
		c.carried.Add(1)
	}
}
