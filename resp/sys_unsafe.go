package resp

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The polls below have no timeout or a short one. Like the calls of package brief, they are not announced to the Go
// scheduler.

func sysPoll(ep int, events []unix.EpollEvent) int {
	n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(ep), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	if e != 0 {
		return 0
	}
	return int(n)
}

// sysPollBriefly is sysPoll with a timeout of some microseconds, during which the goroutine keeps its P. If the
// runtime wants the P for a collection, its signal ends the call. It reports false if the kernel lacks the call.
func sysPollBriefly(ep int, events []unix.EpollEvent, timeout *unix.Timespec) (int, bool) {
	n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT2, uintptr(ep), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), uintptr(unsafe.Pointer(timeout)), 0, 0)
	if e != 0 {
		return 0, e == unix.EINTR
	}
	return int(n), true
}
