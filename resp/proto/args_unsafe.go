package proto

import (
	"unsafe"

	"polder/resp/clientmem"
)

const (
	argSize = int(unsafe.Sizeof([]byte(nil)))
	// many is the number of arguments from which on their memory is mapped, so that it is gone as soon as it is
	// freed, not only after a garbage collection.
	many = 64 << 10 / argSize
)

// mapArgs maps memory for n arguments. The garbage collector does not look there, so whoever has the arguments must
// keep the buffer that they point into. When a pointer is overwritten, the collector is shown the old one, which must
// not be out of date. Therefore the memory is empty at first, and is used for one command only.
func mapArgs(n int) (args [][]byte, mem []byte) {
	mem = clientmem.Grow(nil, n*argSize)
	return unsafe.Slice((*[]byte)(unsafe.Pointer(unsafe.SliceData(mem))), n)[:0], mem
}
