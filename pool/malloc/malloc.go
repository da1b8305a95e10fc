// Package malloc allocates blocks of any size in memory that a pool borrows, like a program's malloc does in memory
// of the operating system. It is the FineMem paper's FineMem-User, a port of mimalloc.
//
// Blocks of a size class lie in pages, and pages lie in slabs. A slab is a chunk of the pool with room for several
// pages, but no larger than a small part of what the heap has already. A page whose last block is freed leaves its
// room to another page, of any class. Slabs without pages go back to their nodes when they are more than half of what
// the heap has, or when memory runs out. A block of more than 32 KiB is a chunk of its own.
//
// Everything that the heap knows is in this process. It reads and writes no remote memory, and talks to nodes only to
// take chunks or to give them back. When the process dies, its nodes take back what it had.
//
// # Concurrency
//
// A [Heap] may be used by any number of goroutines. It has a shard for every processor of the Go runtime, each with
// pages of its own. An allocation takes the first shard that nobody is using. A block that is freed while its shard
// is in use goes to a list, without waiting; whoever is using the shard takes it from there. No lock is held while a
// node is asked. The locks of the shards and of the heap are leaves.
package malloc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"

	"polder/internal/sizeclass"
	"polder/pool"
)

// MaxPaged is the size in bytes of the largest blocks that lie in pages. Larger blocks are chunks of their own.
const MaxPaged = 32 << 10

var (
	// ErrNotAllocated is the error of freeing a block that is not allocated, or no longer.
	ErrNotAllocated = errors.New("block is not allocated")
	// ErrClosed is the error of a heap that has been closed.
	ErrClosed = errors.New("heap is closed")
)

// Config says how a Heap takes memory. Normally the zero Config is right.
type Config struct {
	// Static, if not 0, is how many bytes are borrowed at a time, at least MinStatic. Pages are cut from them, and
	// nothing is given back before the heap is closed: the coarse allocation that FineMem is compared with.
	Static int64
}

// MinStatic is the least Config.Static: a page of any class fits into it.
const MinStatic = 128 << 10

// A Heap hands out blocks. See the package comment.
type Heap struct {
	pool   *pool.Pool
	cfg    Config
	unit   int64 // pages are multiples of it: in bytes, at least 4 KiB, a power of two
	shards []shard
	closed atomic.Bool
	refs   refs

	live, taken atomic.Int64 // bytes
	requests    atomic.Int64

	mu     sync.Mutex // guards what follows
	slabs  []*slab    // slabs that have pages and room for more, and are not lost; with Config.Static, all slabs
	spare  []*slab    // slabs without pages
	spared int64      // bytes of spare
	end    int64      // with Config.Static: how many bytes of the last slab are in pages
}

// New returns a heap in memory of p. p stays the caller's.
func New(p *pool.Pool, cfg Config) (*Heap, error) {
	if cfg.Static != 0 && cfg.Static < MinStatic {
		return nil, fmt.Errorf("cannot make a heap that borrows %d bytes at a time, want at least %d", cfg.Static, MinStatic)
	}
	h := &Heap{pool: p, cfg: cfg, unit: 4096, shards: make([]shard, runtime.GOMAXPROCS(0))}
	if cfg.Static == 0 {
		h.unit = max(h.unit, int64(p.ChunkSize()))
	}
	for i := range h.shards {
		h.shards[i].heap = h
	}
	return h, nil
}

// A Block is allocated memory: Size bytes of Chunk from Off on. Its first contents are undefined.
type Block struct {
	Chunk *pool.Chunk
	Off   int64
	Size  int

	page *page
}

// Alloc allocates a block. The error Is pool.ErrNoMemory if no node has memory left.
func (h *Heap) Alloc(ctx context.Context, size int) (Block, error) {
	switch {
	case size <= 0:
		return Block{}, fmt.Errorf("cannot allocate %d bytes, want at least 1", size)
	case h.closed.Load():
		return Block{}, fmt.Errorf("cannot allocate %d bytes: %w", size, ErrClosed)
	case size > MaxPaged:
		return h.large(ctx, size)
	}
	c := sizeclass.Of(size)
	s := h.lock()
	b, ok := s.take(c, size)
	_ = s.unlock(ctx) // errors of giving back other pages do not concern this block
	for !ok {         // slow path
		slab, base, err := h.place(ctx, h.pageSize(c))
		if err != nil {
			return Block{}, fmt.Errorf("cannot allocate %d bytes: %w", size, err)
		}
		s := h.lock()
		s.add(newPage(s, slab, base, h.pageSize(c), c))
		b, ok = s.take(c, size)
		_ = s.unlock(ctx)
	}
	h.live.Add(int64(size))
	return b, nil
}

// large allocates a block that is a chunk of its own.
func (h *Heap) large(ctx context.Context, size int) (Block, error) {
	c, err := h.borrow(ctx, int64(size))
	if err != nil {
		return Block{}, fmt.Errorf("cannot allocate %d bytes: %w", size, err)
	}
	p := &page{chunk: c, size: size, slots: 1, used: make([]atomic.Uint64, 1)}
	p.used[0].Store(1)
	if err := h.refs.add(p); err != nil {
		return Block{}, errors.Join(fmt.Errorf("cannot allocate %d bytes: %w", size, err), h.giveBack(ctx, c))
	}
	h.live.Add(int64(size))
	return Block{Chunk: c, Size: size, page: p}, nil
}

// Free gives back a block that nobody uses any more. If it fails because an empty page could not be given back to its
// node, the block has been freed nevertheless.
func (h *Heap) Free(ctx context.Context, b Block) error {
	if b.page == nil || !b.page.clear(b.slot()) {
		return fmt.Errorf("cannot free %d bytes at %d: %w", b.Size, b.Off, ErrNotAllocated)
	}
	h.live.Add(-int64(b.Size))
	if b.page.shard == nil {
		h.refs.remove(b.page)
		return h.giveBack(ctx, b.Chunk)
	}
	return b.page.shard.free(ctx, b.page, b.slot())
}

func (b *Block) slot() int { return int(b.Off-b.page.base) / b.page.size }

// pageSize is the least size of a page that wastes no more than an eighth of itself at its end. In chunks of less
// than 128 KiB, FineMem opens every 4 KiB by a key of its own, and a block that spans two of them takes two requests
// to read or to write; in a page of 4 KiB there is no such block.
func (h *Heap) pageSize(c uint8) int64 {
	unit, size := h.unit, int64(sizeclass.Size(c))
	n := (size + unit - 1) / unit * unit
	for n%size > n/8 {
		n += unit
	}
	return n
}

// borrow borrows n bytes, and counts what the nodes have lent for them.
func (h *Heap) borrow(ctx context.Context, n int64) (*pool.Chunk, error) {
	h.requests.Add(1)
	c, err := h.pool.Alloc(ctx, n)
	if errors.Is(err, pool.ErrNoMemory) { // slow path
		if trimmed, _ := h.trim(ctx, true); trimmed > 0 {
			c, err = h.pool.Alloc(ctx, n)
		}
	}
	if err == nil {
		h.taken.Add(h.units(n))
	}
	return c, err
}

func (h *Heap) giveBack(ctx context.Context, c *pool.Chunk) error {
	h.requests.Add(1)
	h.taken.Add(-h.units(c.Size()))
	return c.Free(ctx)
}

// units is n, rounded up to a multiple of what the nodes lend.
func (h *Heap) units(n int64) int64 {
	unit := int64(h.pool.ChunkSize())
	return (n + unit - 1) / unit * unit
}

// lock returns a locked shard, the first that nobody uses: so no more shards have pages than goroutines allocate at a
// time.
func (h *Heap) lock() *shard {
	for i := range h.shards {
		if s := &h.shards[i]; s.mu.TryLock() {
			return s
		}
	}
	s := &h.shards[rand.IntN(len(h.shards))]
	s.mu.Lock()
	return s
}

// Stats is what a heap has handed out, and taken for it, in bytes.
type Stats struct {
	Live     int64 // bytes that were asked for and have not been freed
	Taken    int64 // from the nodes
	Requests int64 // requests to borrow and to give back since the heap was made
}

// Stats returns h's statistics.
func (h *Heap) Stats() Stats {
	return Stats{Live: h.live.Load(), Taken: h.taken.Load(), Requests: h.requests.Load()}
}

// Close gives everything back, including blocks that have not been freed. Nothing may be allocated or freed
// meanwhile. It is idempotent.
func (h *Heap) Close(ctx context.Context) error {
	if h.closed.Swap(true) {
		return nil
	}
	var errs []error
	for i := range h.shards {
		errs = append(errs, h.shards[i].close(ctx))
	}
	for _, p := range h.refs.takeAll() { // pages that are in no shard
		p.clear(0)
		errs = append(errs, h.giveBack(ctx, p.chunk))
	}
	for _, s := range h.slabs { // those of Config.Static
		errs = append(errs, h.giveBack(ctx, s.chunk))
	}
	h.slabs = nil
	_, err := h.trim(ctx, true)
	errs = append(errs, err)
	return errors.Join(errs...)
}
