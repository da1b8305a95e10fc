package arena

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Commands of membarrier(2).
const (
	membarrierPrivateExpedited         = 1 << 3
	membarrierRegisterPrivateExpedited = 1 << 4
)

func membarrier(cmd uintptr) error {
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, cmd, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

var registerMembarrier = sync.OnceValue(func() error {
	if err := membarrier(membarrierRegisterPrivateExpedited); err != nil {
		return fmt.Errorf("cannot register for membarrier(2): %w", err)
	}
	return nil
})

// CanMembarrier reports whether Membarrier works, and why it does not: kernels
// before 4.14 and some sandboxes lack it.
func CanMembarrier() error { return Membarrier() }

// Membarrier runs a full memory fence on every processor that executes a thread of this process. So code that would
// often need a fence, and only seldom for a reason, can do without: the rare side calls Membarrier.
func Membarrier() error {
	if err := registerMembarrier(); err != nil {
		return err
	}
	if err := membarrier(membarrierPrivateExpedited); err != nil {
		return fmt.Errorf("cannot fence by membarrier(2): %w", err)
	}
	return nil
}
