package disk

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"

	"polder/far/store"
)

// copyRoot is what a directory's root begins with if the directory has copies of what a heap keeps at nodes, and no
// heap of its own. An identity follows: by that, what lies here is never taken for what lies in a directory of the
// same name elsewhere.
const copyRoot = "copies "

// Copies is the store of a place for package copies: a directory that has what nodes have, too, so that it survives a
// loss of power. A write has reached the disk when it returns.
type Copies struct {
	*Store
	name string
}

// OpenCopies opens the directory of cfg, whose segments have to be of cfg.SegmentSize. It ignores Fresh and Sync. It
// fails with ErrInUse if another process has the directory open.
func OpenCopies(cfg Config) (*Copies, error) {
	cfg.Fresh, cfg.Sync = false, true
	size := cfg.SegmentSize
	s, err := Open(cfg)
	if err != nil {
		return nil, err
	}
	if s.root == nil {
		err = s.SetRoot(context.Background(), []byte(copyRoot+rand.Text()))
	}
	switch {
	case err != nil:
	case !bytes.HasPrefix(s.root, []byte(copyRoot)):
		err = errors.New("there is a heap in it that lies nowhere else: name another directory, or remove this one")
	case s.cfg.SegmentSize != size:
		err = fmt.Errorf("it has segments of %d bytes, and the nodes have chunks of %d: start the nodes with --chunk as before, or remove the directory, and it is filled anew", s.cfg.SegmentSize, size)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot keep copies in %s: %w", cfg.Dir, err), s.Close())
	}
	return &Copies{s, store.DiskName + string(s.root[len(copyRoot):])}, nil
}

// Name is the name of the directory, which no other directory has ever had.
func (c *Copies) Name() string { return c.name }

// Alloc implements store.Store.
func (c *Copies) Alloc(ctx context.Context) (store.Segment, error) {
	seg, err := c.Store.Alloc(ctx)
	if err != nil {
		return nil, err
	}
	return newCopySegment(seg), nil
}

// Reopen implements store.Keeper.
func (c *Copies) Reopen(ctx context.Context, name string) (store.Segment, error) {
	seg, err := c.Store.Reopen(ctx, name)
	if err != nil {
		return nil, err
	}
	return newCopySegment(seg), nil
}

// Read implements store.Store.
func (c *Copies) Read(ctx context.Context, ops []store.ReadOp) {
	for i := range ops {
		ops[i].Seg = ops[i].Seg.(*copySegment).segment
	}
	c.Store.Read(ctx, ops)
}

// copySegment is a segment to which writes can be given up when the disk does not answer. A write that was given up
// goes on in its goroutine. Later writes to the segment happen after it, the slot is lent again after it, and Close
// waits for it.
type copySegment struct {
	*segment

	turn  sync.Mutex
	last  <-chan struct{} // closed when the write that was begun last has ended; guarded by turn
	freed bool            // it was given back, and no more writes begin; guarded by turn
}

func newCopySegment(seg store.Segment) *copySegment {
	none := make(chan struct{})
	close(none)
	return &copySegment{segment: seg.(*segment), last: none}
}

// Write implements store.Segment. When ctx ends it returns, and the write may still take effect. Writes to a segment
// happen one after the other, in the order in which they were begun, so a write that was given up never replaces what
// a later write has written.
func (g *copySegment) Write(ctx context.Context, p []byte, off int) error {
	return g.Start(ctx, p, off, func() {}).End(ctx)
}

// Start implements store.Starter. The order of writes to a segment is that of the calls of Start.
func (g *copySegment) Start(ctx context.Context, p []byte, off int, landed func()) store.Flight {
	f := &flight{done: make(chan struct{})}
	before, err := g.begin(ctx, f.done)
	if err != nil {
		f.err = err
		close(f.done)
		landed()
		return f
	}
	own := bytes.Clone(p)
	g.store.wg.Go(func() {
		<-before
		f.err = g.segment.Write(ctx, own, off)
		close(f.done)
		landed()
	})
	return f
}

// begin puts a write behind all writes that were begun earlier. The caller waits until before is closed, writes, and
// closes done.
func (g *copySegment) begin(ctx context.Context, done <-chan struct{}) (before <-chan struct{}, err error) {
	g.turn.Lock()
	defer g.turn.Unlock()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case g.freed:
		return nil, fmt.Errorf("%s of %s was given back", g.Name(), g.store.cfg.Dir)
	}
	before, g.last = g.last, done
	return before, nil
}

// Free implements store.Segment. It does not wait for writes that were given up. But the slot counts as lent until
// the last of them has ended: otherwise they could land in the segment of whoever borrows the slot next. If it cannot
// be given back then, it takes room until the store is opened again, and Close says so.
func (g *copySegment) Free(ctx context.Context) error {
	g.turn.Lock()
	g.freed = true
	last := g.last
	g.turn.Unlock()
	select {
	case <-last:
		return g.segment.Free(ctx)
	default:
	}
	g.store.wg.Go(func() {
		<-last
		if err := g.segment.Free(ctx); err != nil {
			g.store.unreturned(err)
		}
	})
	return nil
}

// flight is a write under way.
type flight struct {
	done chan struct{} // closed once err says how the write has ended
	err  error
}

// Landed implements store.Flight.
func (f *flight) Landed() bool {
	select {
	case <-f.done:
		return f.err == nil
	default:
		return false
	}
}

// End implements store.Flight.
func (f *flight) End(ctx context.Context) error {
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
