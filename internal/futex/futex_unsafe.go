package futex

import (
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Futexes of several processes, so without FUTEX_PRIVATE_FLAG.
const (
	opWait = 0
	opWake = 1
)

// Wait sleeps while w is v, until Wake, for at most d, or for no reason.
func Wait(w *atomic.Uint32, v uint32, d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), opWait, uintptr(v), uintptr(unsafe.Pointer(&t)), 0, 0)
}

// Wake wakes one that waits for w. As the calls of package brief, this one is not
// announced to the Go scheduler.
func Wake(w *atomic.Uint32) {
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), opWake, 1, 0, 0, 0)
}
