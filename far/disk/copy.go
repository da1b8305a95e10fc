package disk

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"

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
	return &copySegment{seg.(*segment)}, nil
}

// Reopen implements store.Keeper.
func (c *Copies) Reopen(ctx context.Context, name string) (store.Segment, error) {
	seg, err := c.Store.Reopen(ctx, name)
	if err != nil {
		return nil, err
	}
	return &copySegment{seg.(*segment)}, nil
}

// Read implements store.Store.
func (c *Copies) Read(ctx context.Context, ops []store.ReadOp) {
	for i := range ops {
		ops[i].Seg = ops[i].Seg.(*copySegment).segment
	}
	c.Store.Read(ctx, ops)
}

// copySegment is a segment to which writes can be given up when the disk does not answer.
type copySegment struct{ *segment }

// Write implements store.Segment. When ctx ends it returns, and the write may still take effect. Writes to a segment
// wait for each other.
func (g *copySegment) Write(ctx context.Context, p []byte, off int) error {
	return g.Start(ctx, p, off, func() {}).End(ctx)
}

// Start implements store.Starter.
func (g *copySegment) Start(ctx context.Context, p []byte, off int, landed func()) store.Flight {
	f := &flight{done: make(chan struct{})}
	if ctx.Err() != nil {
		f.err = context.Cause(ctx)
		close(f.done)
		landed()
		return f
	}
	own := bytes.Clone(p)
	g.store.wg.Go(func() {
		f.err = g.segment.Write(ctx, own, off)
		close(f.done)
		landed()
	})
	return f
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
