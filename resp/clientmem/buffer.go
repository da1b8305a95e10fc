package clientmem

import (
	"math/bits"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"polder/internal/invariants"
)

// mapped is the size from which buffers are mapped: outside of the Go heap, so
// that they exist for as long as a client holds them and not until a collection,
// and grow without being copied.
const mapped = 64 << 10

// Buffers of 2 KiB to 32 KiB that Copy has made are used again: a client whose command waits
// for far memory has one for its input, and would otherwise leave it to the collector with
// every command.
const smallest = 11 // its size is 1 << smallest

var kept [5]sync.Pool // of *byte, by class

// class returns where in kept a buffer of size bytes belongs, and false if nowhere.
func class(size int) (i int, ok bool) {
	i = max(0, bits.Len(uint(size-1))-smallest)
	return i, size > 0 && i < len(kept)
}

// Copy returns a buffer with b's contents, which stays as it is, and at most as much room again
// if that is more than 2 KiB.
func Copy(b []byte) []byte {
	i, ok := class(len(b))
	if !ok {
		return append(Grow(nil, len(b)), b...)
	}
	size := 1 << (smallest + i)
	first, ok := kept[i].Get().(*byte)
	if !ok {
		return append(make([]byte, 0, size), b...)
	}
	return append(buffer(first, size), b...)
}

// Grow returns a buffer with b's contents that has room for size bytes. B must
// not be used any more, nor anything that points into it: not even be there for
// the garbage collector to find.
func Grow(b []byte, size int) []byte {
	if size < mapped {
		m := append(make([]byte, 0, size), b...)
		Free(b)
		return m
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

// Free gives a buffer's memory back, if Grow, Append or Copy made it. The same holds
// as for Grow's argument.
func Free(b []byte) {
	if cap(b) >= mapped {
		_ = unix.Munmap(b[:cap(b)]) // fails if it is on the heap
		return
	}
	b = b[:cap(b)]
	i, ok := class(len(b))
	if !ok || len(b) != 1<<(smallest+i) {
		return
	}
	if invariants.Enabled { // whoever still has it sees that it is gone
		for k := range b {
			b[k] = 0xdb
		}
	}
	kept[i].Put(&b[0])
}
