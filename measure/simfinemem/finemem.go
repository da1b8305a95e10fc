package simfinemem

import (
	"context"
	"errors"
	"fmt"

	"polder/memnode/twolayer"
	"polder/pool/finemem"
	"polder/pool/manager"
	"polder/verbs"
	"polder/verbs/sim"
)

// fineMem is a user of package pool/finemem's.
type fineMem struct {
	r      *rig
	a      *finemem.Allocator
	blocks map[uint64]finemem.Block
	counts *counts
	p      *sim.Proc // whose call is under way
}

// fine returns a function that builds FineMem's allocators with a policy. With spanKeys, an allocator brings all keys
// of a span at once.
func fine(policy finemem.Policy, spanKeys bool) func(r *rig, l load, n, chunks int, c *counts) ([]allocator, error) {
	return func(r *rig, l load, n, chunks int, c *counts) ([]allocator, error) {
		layout, err := twolayer.NewLayout(uint64(chunks)*twolayer.DefaultUnit, twolayer.DefaultUnit<<l.class)
		if err != nil {
			return nil, err
		}
		node, err := newLender(r, layout)
		if err != nil {
			return nil, err
		}
		all := make([]allocator, n)
		for i := range all {
			if all[i], err = newFineMem(r, r.host(i), uint16(i+1), policy, spanKeys, node, c); err != nil {
				return nil, err
			}
		}
		r.w.Daemon("worker", node.work)
		return all, nil
	}
}

func newFineMem(r *rig, from *side, user uint16, policy finemem.Policy, spanKeys bool, node *lender, c *counts) (*fineMem, error) {
	qp, cq, err := from.queuePair(finemem.QueueDepth)
	if err != nil {
		return nil, err
	}
	peer, err := node.metadataQP()
	if err != nil {
		return nil, err
	}
	if err := r.w.Join(from.dev, qp, r.node.dev, peer); err != nil {
		return nil, err
	}
	buf, err := from.pd.RegMR(make([]byte, finemem.BufferSize), verbs.AccessLocalWrite)
	if err != nil {
		return nil, err
	}
	f := &fineMem{r: r, blocks: make(map[uint64]finemem.Block), counts: c}
	f.a, err = finemem.NewAllocator(finemem.Config{
		Layout: node.table.Layout, QP: qp, CQ: cq, Buffer: buf,
		Metadata: node.words.Addr(), Key: node.words.RKey(), User: user, Policy: policy, SpanKeys: spanKeys, Serial: true, Doorbell: true,
		Sync: func(context.Context) error { return node.settle(f.p) },
	})
	return f, err
}

// alloc implements allocator.
func (f *fineMem) alloc(p *sim.Proc, class int) (uint64, error) {
	f.p = p
	before := f.a.Stats().Retries
	b, err := f.a.Alloc(f.r.ctx, class)
	if err != nil {
		if errors.Is(err, manager.ErrNoMemory) {
			err = errFull
		}
		return 0, err
	}
	f.counts.retries += int(f.a.Stats().Retries - before)
	f.blocks[uint64(b.First)] = b
	return uint64(b.First), nil
}

// free implements allocator.
func (f *fineMem) free(p *sim.Proc, at uint64, class int) error {
	f.p = p
	b, ok := f.blocks[at]
	if !ok || b.Class != class {
		return fmt.Errorf("cannot free class %d at chunk %d: it is not allocated", class, at)
	}
	delete(f.blocks, at)
	return f.a.Free(f.r.ctx, b)
}
