package pool

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"polder/pool/manager"
	"polder/verbs"
)

// A Chunk is borrowed memory on one node. It reads as zero at first. Its
// methods may be called by any number of goroutines; concurrent accesses to the
// same bytes are not ordered, except that the atomic operations are atomic
// against each other.
type Chunk struct {
	node *node
	id   uint32
	size int

	binding atomic.Pointer[binding]
	// users counts pieces in flight, plus freedBit from the call of Free on.
	users atomic.Int64
	idle  chan struct{} // capacity 1: users has fallen to freedBit
	once  sync.Once     // lose
	// strays counts pieces by path that fly although their callers have given
	// up: what comes later must come after them.
	strays [manager.MaxPaths]atomic.Int32
	lost   chan struct{} // closed by lose
	gone   atomic.Bool   // lost is closed, or about to be
}

// A binding is the right to a chunk over one connection.
type binding struct {
	link *link
	addr uint64
	keys [manager.MaxPaths]verbs.RKey
	// memory is the chunk itself, if it lies in this process's memory.
	memory []byte
}

const freedBit = 1 << 62

var (
	_ io.ReaderAt = (*Chunk)(nil)
	_ io.WriterAt = (*Chunk)(nil)
)

func newChunk(n *node, id uint32, size int) *Chunk {
	return &Chunk{node: n, id: id, size: size, idle: make(chan struct{}, 1), lost: make(chan struct{})}
}

// Size returns the chunk's size in bytes, which is the pool's chunk size.
func (c *Chunk) Size() int { return c.size }

// Node returns the name of the node that the chunk lies on.
func (c *Chunk) Node() string { return c.node.name }

// Name says where the chunk lies, such as "127.0.0.1:7070/chunk 12".
func (c *Chunk) Name() string { return c.node.name + "/" + c.region() }

func (c *Chunk) region() string { return fmt.Sprintf("chunk %d", c.id) }

// Lost is closed when the chunk's contents are gone for good.
func (c *Chunk) Lost() <-chan struct{} { return c.lost }

// acquire announces a piece. It fails if the chunk is of no use any more.
func (c *Chunk) acquire() error {
	if c.users.Add(1)&freedBit != 0 {
		c.release()
		return ErrFreed
	}
	if c.gone.Load() {
		c.release()
		return ErrLost
	}
	return nil
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
		c.node.counters.lost.Add(1)
		c.gone.Store(true) // whoever waits for Lost finds it so
		close(c.lost)
	})
}

// path is which path of l a piece of n bytes takes: behind strays, if there are
// any. If there are on several paths, the link is given up, and its successor
// has none.
func (c *Chunk) path(l *link, n int) int {
	path, behind := l.path(c.id, n), -1
	for i := range l.qps {
		if c.strays[i].Load() == 0 {
			continue
		}
		if behind >= 0 {
			c.node.linkBroke(l)
			return path
		}
		behind = i
	}
	if behind >= 0 {
		return behind
	}
	return path
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
	if off >= 0 && int64(len(p)) > int64(c.size)-off {
		eof = io.EOF
		p = p[:max(0, int64(c.size)-off)]
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
	p := c.node.pool
	if op.check(p) == nil && c.inPlace(ctx, &op) {
		return op
	}
	ops := p.getOne()
	ops[0] = op
	_ = p.Do(ctx, ops[:]) // the operation has its error
	op = ops[0]
	p.putOne(ops)
	return op
}

// Free gives the chunk back, once operations in progress have ended. The
// chunk is not used afterwards. When the node cannot be reached, it has the
// chunk back when the connection has been made again, or when the grace period
// is over.
func (c *Chunk) Free(ctx context.Context) error {
	if err := c.free(ctx); err != nil {
		return &OpError{Op: "free", Node: c.node.name, Region: c.region(), Err: err}
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
	return c.node.free(ctx, c)
}

// waitIdle waits until no operation is in progress.
//
// Preconditions: freedBit is set.
func (c *Chunk) waitIdle(ctx context.Context) error {
	if c.users.Load() == freedBit {
		return nil
	}
	timer := time.NewTimer(c.node.pool.cfg.Timeout)
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
