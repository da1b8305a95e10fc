package clientmem

import (
	"os"

	"golang.org/x/sys/unix"
)

// mapped is the size from which buffers are mapped: outside of the Go heap, so
// that they exist for as long as a client holds them and not until a collection,
// and grow without being copied.
const mapped = 64 << 10

// Grow returns a buffer with b's contents that has room for size bytes. B must
// not be used any more, nor anything that points into it: not even be there for
// the garbage collector to find.
func Grow(b []byte, size int) []byte {
	if size < mapped {
		return append(make([]byte, 0, size), b...)
	}
	page := os.Getpagesize()
	size = (size + page - 1) / page * page
	if cap(b) >= mapped {
		if m, err := unix.Mremap(b[:cap(b)], size, unix.MREMAP_MAYMOVE); err == nil {
			return m[:len(b)]
		}
	}
	m, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		m = make([]byte, size) // there are too many mappings; Free leaves it to the collector
	}
	n := copy(m, b)
	Free(b)
	return m[:n]
}

// Append appends p to b, of which the same holds as for Grow's.
func Append(b, p []byte) []byte {
	if need := len(b) + len(p); need > cap(b) {
		b = Grow(b, max(need, cap(b)+min(cap(b), mapped)))
	}
	return append(b, p...)
}

// Free gives a buffer's memory back, if Grow or Append made it. The same holds
// as for Grow's argument.
func Free(b []byte) {
	if cap(b) >= mapped {
		_ = unix.Munmap(b[:cap(b)]) // fails if it is on the heap
	}
}
