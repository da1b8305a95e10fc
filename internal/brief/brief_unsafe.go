package brief

import (
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"polder/internal/invariants"
)

// Recv receives from a stream socket what is there, at most len(p) bytes: 0 at the end of the
// stream, EAGAIN if there is nothing.
func Recv(fd uintptr, p []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_DONTWAIT, 0, 0)
	Received(fd)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// Send sends to a stream socket as much of p as the socket takes at once: EAGAIN if that is nothing.
func Send(fd uintptr, p []byte) (int, unix.Errno) {
	if invariants.Enabled {
		_, _ = syscall.Write(int(fd), nil) // see Received
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// Received tells the race detector that data was received from the socket. The detector knows only the calls of
// package syscall: it takes what they read to come after what they wrote, in tests in which both ends are in one
// process.
func Received(fd uintptr) {
	if invariants.Enabled {
		_, _ = syscall.Read(int(fd), nil)
	}
}

// Boottime is the time since this machine was started, sleep included.
func Boottime() time.Duration {
	var ts unix.Timespec
	if _, _, errno := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		panic("BUG: no CLOCK_BOOTTIME: " + errno.Error())
	}
	return time.Duration(ts.Nano())
}
