package proto

import (
	"unsafe"

	"polder/resp/clientmem"
)

const (
	argSize = int(unsafe.Sizeof([]byte(nil)))
	// many is how many arguments need memory that is mapped: it exists until it is
	// freed, not until a collection.
	many = 64 << 10 / argSize
)

// mapArgs maps memory for n arguments. The garbage collector does not look there,
// so whoever has the arguments must have the buffer, too. Nor may it be shown a pointer
// there that is out of date, as it is when one is overwritten with another: so the memory
// is used for one command, and is empty before.
func mapArgs(n int) (args [][]byte, mem []byte) {
	mem = clientmem.Grow(nil, n*argSize)
	return unsafe.Slice((*[]byte)(unsafe.Pointer(unsafe.SliceData(mem))), n)[:0], mem
}
