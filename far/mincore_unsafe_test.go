package far

import (
	"syscall"
	"unsafe"
)

// mincore sets the low bit of each page of mem that is resident.
func mincore(mem, pages []byte) error {
	_, _, errno := syscall.Syscall(syscall.SYS_MINCORE,
		uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(len(mem)), uintptr(unsafe.Pointer(unsafe.SliceData(pages))))
	if errno != 0 {
		return errno
	}
	return nil
}
