package heap

import (
	"math/bits"
	"sync"

	"polder/internal/arena"
)

// Buffers is the memory that fetches read into: a buddy allocator over one
// mapping. Its size bounds how much is under way at once; who finds it empty
// waits.
type Buffers struct {
	Mapping *arena.Mapping
	mem     []byte
	size    int

	Mu     sync.Mutex
	free   [bufOrders][]uint64 // a bit for every free block of an order, under Mu
	InUse  int                 // bytes, under Mu
	freed  chan struct{}       // see get; under Mu
	wanted bool                // somebody has freed, under Mu
}

const (
	minBuf    = 512
	MaxBuf    = 256 << 10
	bufOrders = 10 // 512 B to 256 KiB
)

func (b *Buffers) init(size int) error {
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

func bufOrder(n int) int { return max(bits.Len(uint(n-1)), 9) - 9 }

// Buffer is a block of the allocator. The zero buffer is none.
type Buffer struct {
	B     []byte
	order int
	index int
}

// Get returns a buffer of n bytes, at most maxBuf, or, if there is none, a
// channel that is closed when another buffer has been given back. Who waits
// for that must hold no buffer.
func (b *Buffers) Get(n int) (Buffer, <-chan struct{}) {
	b.Mu.Lock()
	defer b.Mu.Unlock()
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
			b.InUse += size
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
	b.Mu.Lock()
	defer b.Mu.Unlock()
	b.InUse -= minBuf << p.order
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
