//go:build amd64 && !race

package order

import (
	"sync/atomic"
	"unsafe"
)

// Store stores a word, which is seen after the stores before it. It is a plain store: an
// atomic one would wait until what was written has reached the cache, which is most of what
// it takes where words lie all over memory. That is outside Go's memory model, and holds
// because amd64 makes stores visible in their order, and because the compiler moves none
// across another to memory that it does not know.
func Store(p *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(p)) = v }
