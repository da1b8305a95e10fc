package clientmem

import (
	"math/bits"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"polder/internal/invariants"
)

// mapped is the size in bytes from which on buffers are mapped. Mapped buffers are outside of the Go heap: they exist
// only as long as a client holds them, not until the next collection, and grow without being copied.
const mapped = 64 << 10

// Buffers of 2 KiB to 32 KiB that Copy has made are used again. A client whose command waits for far memory has such
// a buffer for its input, and would otherwise leave one to the collector with every command.
const smallest = 11 // the smallest of these buffers has 1 << smallest bytes

var kept [5]sync.Pool // of *byte, by class

// class returns where in kept a buffer of size bytes belongs, and false if it does not belong there.
func class(size int) (i int, ok bool) {
	i = max(0, bits.Len(uint(size-1))-smallest)
	return i, size > 0 && i < len(kept)
}

// Copy returns a buffer with b's contents. If it has more than 2 KiB, at most half of it is spare room. b stays as it
// is.
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

// Grow returns a buffer with b's contents that has room for size bytes. Neither b nor anything that points into it
// may be used any more; the garbage collector must not even find such a pointer.
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
		m = make([]byte, size) // there are too many mappings; Free leaves this buffer to the collector
	}
	n := copy(m, b)
	Free(b)
	return m[:n]
}

// Append appends p to b. What Grow says of its b is true of this b, too.
func Append(b, p []byte) []byte {
	if need := len(b) + len(p); need > cap(b) {
		b = Grow(b, max(need, cap(b)+min(cap(b), mapped)))
	}
	return append(b, p...)
}

// Free gives a buffer's memory back if Grow, Append or Copy made it. What Grow says of its b is true of this b, too.
func Free(b []byte) {
	if cap(b) >= mapped {
		_ = unix.Munmap(b[:cap(b)]) // fails if the buffer is on the Go heap
		return
	}
	b = b[:cap(b)]
	i, ok := class(len(b))
	if !ok || len(b) != 1<<(smallest+i) {
		return
	}
	if invariants.Enabled { // whoever still uses the buffer sees that it is gone
		for k := range b {
			b[k] = 0xdb
		}
	}
	kept[i].Put(&b[0])
}
