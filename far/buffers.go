package far

import (
	"math/bits"
	"sync"

	"polder/internal/arena"
)

// buffers is the memory that fetches read into: a buddy allocator over one
// mapping. Its size bounds how much is under way at once; who finds it empty
// waits.
type buffers struct {
	mapping *arena.Mapping
	mem     []byte
	size    int

	mu     sync.Mutex
	free   [bufOrders][]uint64 // a bit for every free block of an order, under mu
	inUse  int                 // bytes, under mu
	freed  chan struct{}       // see get; under mu
	wanted bool                // somebody has freed, under mu
}

const (
	minBuf    = 512
	maxBuf    = 256 << 10
	bufOrders = 10 // 512 B to 256 KiB
)

func (b *buffers) init(size int) error {
	m, err := arena.Anonymous(size, false)
	if err != nil {
		return err
	}
	b.mapping, b.mem, b.size = m, m.Bytes(), size
	b.freed = make(chan struct{})
	for o := range b.free {
		n := size / (minBuf << o)
		b.free[o] = make([]uint64, (n+63)/64)
	}
	for i := range size / maxBuf {
		b.free[bufOrders-1][i/64] |= 1 << (i % 64)
	}
	return nil
}

func bufOrder(n int) int { return max(bits.Len(uint(n-1)), 9) - 9 }

// buffer is a block of the allocator. The zero buffer is none.
type buffer struct {
	b     []byte
	order int
	index int
}

// get returns a buffer of n bytes, at most maxBuf, or, if there is none, a
// channel that is closed when another buffer has been given back. Who waits
// for that must hold no buffer.
func (b *buffers) get(n int) (buffer, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.carve(n); p.b != nil {
		return p, nil
	}
	b.wanted = true
	return buffer{}, b.freed
}

func (b *buffers) carve(n int) buffer {
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
			b.inUse += size
			return buffer{b.mem[i*size : i*size+n : (i+1)*size], want, i}
		}
	}
	return buffer{}
}

func (b *buffers) flip(order, i int)        { b.free[order][i/64] ^= 1 << (i % 64) }
func (b *buffers) isFree(order, i int) bool { return b.free[order][i/64]&(1<<(i%64)) != 0 }

// put gives p back. Putting none is a no-op.
func (b *buffers) put(p buffer) {
	if p.b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inUse -= minBuf << p.order
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
