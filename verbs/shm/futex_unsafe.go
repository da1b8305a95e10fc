package shm

import (
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Futexes of two processes, so without FUTEX_PRIVATE_FLAG.
const (
	opWait = 0
	opWake = 1
)

// maxSleep bounds a wait: the word is the peer's to write, too.
const maxSleep = 500 * time.Millisecond

// futexWait sleeps while w is v, until it is woken, or for no reason.
func futexWait(w *atomic.Uint32, v uint32) {
	t := unix.NsecToTimespec(int64(maxSleep))
	_, _, _ = syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), opWait, uintptr(v), uintptr(unsafe.Pointer(&t)), 0, 0)
}

// futexWake wakes who sleeps on w.
func futexWake(w *atomic.Uint32) {
	_, _, _ = syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), opWake, 1, 0, 0, 0)
}
