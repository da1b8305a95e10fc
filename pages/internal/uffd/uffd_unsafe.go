package uffd

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

func newFD(flags uintptr) (uintptr, unix.Errno) {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, flags, 0, 0)
	return fd, errno
}

func newByDevice(device, flags uintptr) (uintptr, unix.Errno) {
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, device, ioNew, flags)
	return fd, errno
}

// ioctl tries again while the address space is changing.
func ioctl[T any](fd uintptr, request uintptr, arg *T) unix.Errno {
	for {
		errno := ioctlOnce(fd, request, arg)
		if errno != unix.EAGAIN && errno != unix.EINTR {
			return errno
		}
		runtime.Gosched()
	}
}

// ioctlOnce may wait for memory, or for a lock of the address space that another process holds. So it tells the Go
// scheduler of the system call. read does not.
func ioctlOnce[T any](fd uintptr, request uintptr, arg *T) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(unsafe.Pointer(arg)))
	return errno
}

func read(fd uintptr, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return int(n), errno
}

// Addr is the address of b.
func Addr(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
