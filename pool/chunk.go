package pool

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// A Chunk is borrowed memory of any size. It reads as zero at first. Its methods may be called by any number of
// goroutines. Concurrent accesses to the same bytes are not ordered, except that the atomic operations are atomic
// against each other.
//
// It lies in one or more extents, on one node if that had enough memory. An operation on several extents is not
// atomic, and neither is one on several words of one extent.
type Chunk struct {
	pool    *Pool
	size    int64
	have    int64     // bytes of extents: at least size once Alloc has returned the chunk
	extents []*extent // in order, without gaps; only Alloc's caller uses it until Alloc returns

	// users is the number of pieces in flight, plus freedBit from the call of Free on.
	users atomic.Int64
	idle  chan struct{} // capacity 1: users has fallen to freedBit
	once  sync.Once     // lose
	lost  chan struct{} // closed by lose
	gone  atomic.Bool   // lost is closed or about to be, or the chunk has vanished

	vanish atomic.Uint32 // stays, vanishes or vanished
}

const freedBit = 1 << 62

var (
	_ io.ReaderAt = (*Chunk)(nil)
	_ io.WriterAt = (*Chunk)(nil)
)

func newChunk(p *Pool, size int64) *Chunk {
	return &Chunk{pool: p, size: size, idle: make(chan struct{}, 1), lost: make(chan struct{})}
}

// Size returns the chunk's size in bytes, which is what was asked for.
func (c *Chunk) Size() int64 { return c.size }

// Nodes returns the names of the nodes that the chunk lies on, in the order of its bytes.
func (c *Chunk) Nodes() []string {
	var names []string
	for _, x := range c.extents {
		if n := len(names); n == 0 || names[n-1] != x.node.name {
			names = append(names, x.node.name)
		}
	}
	return names
}

// Home returns the node that c lies on, and the node's number of its first chunk; the node's others follow it in
// order. mapped reports whether c is mapped into this process now, so that reading it takes no round trip. ok is
// false if c has several extents.
func (c *Chunk) Home() (node string, first uint32, mapped, ok bool) {
	if len(c.extents) != 1 {
		return "", 0, false, false
	}
	x := c.extents[0]
	b := x.binding.Load()
	return x.node.name, x.id, b != nil && b.memory != nil, true
}

// Name says where the chunk begins, such as "127.0.0.1:7070/chunk 12".
func (c *Chunk) Name() string { return c.extents[0].node.name + "/" + c.extents[0].region() }

// Lost is closed when contents of the chunk are gone for good: all of them or, if the chunk lies on several nodes,
// those of one node. The chunk is of no use then.
func (c *Chunk) Lost() <-chan struct{} { return c.lost }

// acquire counts a piece in. It fails if the chunk is of no use any more.
func (c *Chunk) acquire() error {
	if c.users.Add(1)&freedBit != 0 {
		c.release()
		return ErrFreed
	}
	if c.gone.Load() {
		c.release()
		if !c.Vanished() {
			<-c.lost // it is about to be closed: a caller that gets ErrLost finds it closed
		}
		return ErrLost
	}
	return nil
}

// tryAcquire is acquire without an error, and without the wait for it.
func (c *Chunk) tryAcquire() bool {
	ok := c.users.Add(1)&freedBit == 0 && !c.gone.Load()
	if !ok {
		c.release()
	}
	return ok
}

func (c *Chunk) release() {
	if c.users.Add(-1) == freedBit {
		select {
		case c.idle <- struct{}{}:
		default:
		}
	}
}

// lose marks the chunk as lost.
func (c *Chunk) lose() {
	c.once.Do(func() {
		c.gone.Store(true) // before closing lost: whoever waits for Lost finds it set
		close(c.lost)
	})
}

// ReadAt implements io.ReaderAt.
func (c *Chunk) ReadAt(p []byte, off int64) (int, error) {
	return c.ReadContext(context.Background(), p, off)
}

// WriteAt implements io.WriterAt. It writes all of p or fails.
func (c *Chunk) WriteAt(p []byte, off int64) (int, error) {
	return c.WriteContext(context.Background(), p, off)
}

// ReadContext is ReadAt within ctx. It does not allocate.
func (c *Chunk) ReadContext(ctx context.Context, p []byte, off int64) (int, error) {
	var eof error
	if off >= 0 && int64(len(p)) > c.size-off {
		eof = io.EOF
		p = p[:max(0, c.size-off)]
		if len(p) == 0 {
			return 0, eof
		}
	}
	if op := c.do(ctx, Op{Kind: OpRead, Chunk: c, Off: off, Buf: p}); op.Err != nil {
		return 0, op.Err
	}
	return len(p), eof
}

// WriteContext is WriteAt within ctx. It does not allocate.
func (c *Chunk) WriteContext(ctx context.Context, p []byte, off int64) (int, error) {
	if op := c.do(ctx, Op{Kind: OpWrite, Chunk: c, Off: off, Buf: p}); op.Err != nil {
		return 0, op.Err
	}
	return len(p), nil
}

// WriteBulk is WriteContext for writes that nobody waits for just now, such as those of the evacuator (Op.Bulk). It
// does not allocate.
func (c *Chunk) WriteBulk(ctx context.Context, p []byte, off int64) error {
	return c.do(ctx, Op{Kind: OpWrite, Chunk: c, Off: off, Buf: p, Bulk: true}).Err
}

// CompareAndSwap replaces the word at off, a multiple of 8, by new if it is
// old. It returns what the word was.
func (c *Chunk) CompareAndSwap(ctx context.Context, off int64, old, new uint64) (prev uint64, swapped bool, err error) {
	op := c.do(ctx, Op{Kind: OpCompareAndSwap, Chunk: c, Off: off, Old: old, New: new})
	return op.Prev, op.Swapped(), op.Err
}

// FetchAdd adds delta to the word at off, a multiple of 8, and returns what it
// was.
func (c *Chunk) FetchAdd(ctx context.Context, off int64, delta uint64) (prev uint64, err error) {
	op := c.do(ctx, Op{Kind: OpFetchAdd, Chunk: c, Off: off, New: delta})
	return op.Prev, op.Err
}

// do runs one operation.
func (c *Chunk) do(ctx context.Context, op Op) Op {
	p := c.pool
	if op.check(p) == nil && c.inPlace(ctx, &op) {
		return op
	}
	ops := p.getOne()
	ops[0] = op
	_ = p.Do(ctx, ops[:]) // the error is in the operation
	op = ops[0]
	p.putOne(ops)
	return op
}

// Free gives the chunk back, once operations in progress have ended. The chunk must not be used afterwards. A node
// that cannot be reached gets its part of the chunk back when it is connected again, or when the grace period is
// over.
func (c *Chunk) Free(ctx context.Context) error {
	if err := c.free(ctx); err != nil {
		x := c.extents[0]
		return &OpError{Op: "free", Node: x.node.name, Region: x.region(), Err: err}
	}
	return nil
}

func (c *Chunk) free(ctx context.Context) error {
	for {
		n := c.users.Load()
		if n&freedBit != 0 {
			return ErrFreed
		}
		if c.users.CompareAndSwap(n, n|freedBit) {
			break
		}
	}
	if err := c.waitIdle(ctx); err != nil {
		c.users.Add(-freedBit)
		return err
	}
	return c.giveBack(ctx)
}

// giveBack frees every extent, even if freeing others fails.
//
// Preconditions: nobody uses the chunk any more.
func (c *Chunk) giveBack(ctx context.Context) error {
	var errs []error
	for rest := c.extents; len(rest) > 0; {
		n, end := rest[0].node, 1
		for end < len(rest) && rest[end].node == n {
			end++
		}
		errs = append(errs, n.free(ctx, rest[:end]))
		rest = rest[end:]
	}
	return errors.Join(errs...)
}

// waitIdle waits until no operation is in progress.
//
// Preconditions: freedBit is set.
func (c *Chunk) waitIdle(ctx context.Context) error {
	if c.users.Load() == freedBit {
		return nil
	}
	timer := time.NewTimer(c.pool.cfg.Timeout)
	defer timer.Stop()
	for c.users.Load() != freedBit {
		select {
		case <-c.idle:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
			return ErrTimeout
		}
	}
	return nil
}
