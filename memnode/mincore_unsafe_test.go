package memnode_test

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mincore sets vec[i] to whether page i of mem is resident.
func mincore(mem, vec []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_MINCORE,
		uintptr(unsafe.Pointer(&mem[0])), uintptr(len(mem)), uintptr(unsafe.Pointer(&vec[0])))
	if errno != 0 {
		return errno
	}
	return nil
}
