package component

import (
	"sync/atomic"
	"unsafe"
)

// counter is the signed 64-bit word in a cache line of the page of flags.
func (l *lane) counter(line int) *atomic.Int64 {
	return (*atomic.Int64)(unsafe.Pointer(&l.mem.Bytes()[line*flagSize]))
}
