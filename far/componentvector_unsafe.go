package far

import (
	"unsafe"
)

// numberBytes is vs as bytes, in the byte order of this machine, which is the
// little-endian one of the wire.
func numberBytes[T Number](vs []T) []byte {
	if len(vs) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&vs[0])), len(vs)*int(unsafe.Sizeof(vs[0])))
}
