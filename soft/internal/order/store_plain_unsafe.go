//go:build amd64 && !race

package order

import (
	"sync/atomic"
	"unsafe"
)

// Store stores a word. Whoever sees it sees the stores before it. It is a plain store: an atomic store would wait
// until earlier writes have reached the cache, and where words lie all over memory most of the time would go into
// that. A plain store is outside Go's memory model. It is right because amd64 makes stores visible in their order,
// and because the compiler moves no store across another one to memory that it does not know.
func Store(p *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(p)) = v }
