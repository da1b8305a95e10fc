package shm

import (
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// halves views mapped memory as atomic 32-bit words.
func halves(b []byte) []atomic.Uint32 {
	if len(b)%8 != 0 || uintptr(unsafe.Pointer(unsafe.SliceData(b)))%8 != 0 {
		panic("BUG: shared words are not aligned")
	}
	return unsafe.Slice((*atomic.Uint32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

const (
	futexWait = 0 // of a word that other processes map, too
	futexWake = 1
)

// sleepOn blocks until wakeUp(w), for at most d, if w still has the value
// want. It may return for no reason.
func sleepOn(w *atomic.Uint32, want uint32, d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexWait, uintptr(want), uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// wakeUp wakes whoever sleeps on w.
func wakeUp(w *atomic.Uint32) {
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexWake, 1, 0, 0, 0)
}
