package shm

import (
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// word64 is the first 8 bytes of b, which lie in a mapping and are aligned.
func word64(b []byte) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&b[:8][0])) }

// word32 is the first 4 bytes of b, likewise.
func word32(b []byte) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&b[:4][0])) }

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
