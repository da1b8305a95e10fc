package resp

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls below block briefly at most: the sockets are non-blocking, the polls
// have no timeout or a short one. So the Go scheduler is not told of them, which
// saves a tenth of a microsecond each, and its monitor taking the P away.

func sysRead(fd int, p []byte) (int, unix.Errno) {
	n, _, e := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	if e != 0 {
		return 0, e
	}
	return int(n), 0
}

func sysWrite(fd int, p []byte) (int, unix.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_NOSIGNAL, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), 0
}

func sysPoll(ep int, events []unix.EpollEvent) int {
	n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(ep), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	if e != 0 {
		return 0
	}
	return int(n)
}

// sysPollBriefly is sysPoll with a timeout of some microseconds, during which
// the goroutine keeps its P. A signal of the runtime's, which wants the P for
// a collection, ends it. It reports false if the kernel lacks the call.
func sysPollBriefly(ep int, events []unix.EpollEvent, timeout *unix.Timespec) (int, bool) {
	n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT2, uintptr(ep), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), uintptr(unsafe.Pointer(timeout)), 0, 0)
	if e != 0 {
		return 0, e == unix.EINTR
	}
	return int(n), true
}
