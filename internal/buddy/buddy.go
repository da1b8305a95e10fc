// Package buddy is an allocator of blocks of 512 B to 256 KiB in memory of a fixed size, in powers
// of two: a block is half of a larger one, and the two grow together again when both are free.
package buddy

import (
	"math/bits"
	"sync"

	"polder/internal/arena"
)

// Buffers is memory for what is under way, such as reads: its size bounds how much that is, and who finds it empty
// waits. All methods but Init may be called by any number of goroutines.
type Buffers struct {
	Mapping *arena.Mapping
	mem     []byte
	size    int

	mu     sync.Mutex
	free   [bufOrders][]uint64 // a bit for every free block of an order, under mu
	used   int                 // bytes, under mu
	freed  chan struct{}       // see Get; under mu
	wanted bool                // somebody has freed, under mu
}

const (
	minBuf    = 512
	MaxBuf    = 256 << 10 // the longest buffer
	bufOrders = 10        // 512 B to 256 KiB
)

// Init makes b of size bytes, a multiple of MaxBuf.
func (b *Buffers) Init(size int) error {
	m, err := arena.Anonymous(size, false)
	if err != nil {
		return err
	}
	b.Mapping, b.mem, b.size = m, m.Bytes(), size
	b.freed = make(chan struct{})
	for o := range b.free {
		n := size / (minBuf << o)
		b.free[o] = make([]uint64, (n+63)/64)
	}
	for i := range size / MaxBuf {
		b.free[bufOrders-1][i/64] |= 1 << (i % 64)
	}
	return nil
}

// Size is the size of all of b in bytes.
func (b *Buffers) Size() int { return b.size }

// InUse is how many bytes of it are in use, in whole blocks.
func (b *Buffers) InUse() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

func bufOrder(n int) int { return max(bits.Len(uint(n-1)), 9) - 9 }

// Buffer is a block of the allocator. The zero buffer is none.
type Buffer struct {
	B     []byte
	order int
	index int
}

// Get returns a buffer of n bytes, at most MaxBuf, or, if there is none, a
// channel that is closed when another buffer has been given back. Who waits
// for that must hold no buffer.
func (b *Buffers) Get(n int) (Buffer, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.carve(n); p.B != nil {
		return p, nil
	}
	b.wanted = true
	return Buffer{}, b.freed
}

func (b *Buffers) carve(n int) Buffer {
	want := bufOrder(n)
	for o := want; o < bufOrders; o++ {
		for w, set := range b.free[o] {
			if set == 0 {
				continue
			}
			i := w*64 + bits.TrailingZeros64(set)
			b.flip(o, i)
			for ; o > want; o-- { // split, giving the upper half back
				i *= 2
				b.flip(o-1, i+1)
			}
			size := minBuf << want
			b.used += size
			return Buffer{b.mem[i*size : i*size+n : (i+1)*size], want, i}
		}
	}
	return Buffer{}
}

func (b *Buffers) flip(order, i int)        { b.free[order][i/64] ^= 1 << (i % 64) }
func (b *Buffers) isFree(order, i int) bool { return b.free[order][i/64]&(1<<(i%64)) != 0 }

// Put gives p back. Putting none is a no-op.
func (b *Buffers) Put(p Buffer) {
	if p.B == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= minBuf << p.order
	order, i := p.order, p.index
	for order < bufOrders-1 && b.isFree(order, i^1) {
		b.flip(order, i^1)
		order, i = order+1, i/2
	}
	b.flip(order, i)
	if b.wanted {
		b.wanted = false
		close(b.freed)
		b.freed = make(chan struct{})
	}
}
