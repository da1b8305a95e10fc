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

// fine returns what builds FineMem's allocators with a policy, which bring all keys of
// a span or not.
func fine(policy finemem.Policy, spanKeys bool) func(r *rig, l load, n, chunks int, c *counts) ([]allocator, error) {
	return func(r *rig, l load, n, chunks int, c *counts) ([]allocator, error) {
		layout, err := twolayer.NewLayout(uint64(chunks)*twolayer.DefaultUnit, twolayer.DefaultUnit)
		if err != nil {
			return nil, err
		}
		mem := make([]byte, layout.Bytes())
		table, err := twolayer.NewTable(mem, layout)
		if err != nil {
			return nil, err
		}
		node := newRebinder(r, table, twolayer.LayerOf(l.class))
		metadata, err := r.node.pd.RegMR(mem, remote)
		if err != nil {
			return nil, err
		}
		all := make([]allocator, n)
		for i := range all {
			if all[i], err = newFineMem(r, r.host(i), uint16(i+1), policy, spanKeys, metadata, node, c); err != nil {
				return nil, err
			}
		}
		r.w.Daemon("rebinder", node.run)
		return all, nil
	}
}

func newFineMem(r *rig, from *side, user uint16, policy finemem.Policy, spanKeys bool, metadata verbs.MR, node *rebinder, c *counts) (*fineMem, error) {
	qp, cq, err := from.queuePair(finemem.QueueDepth)
	if err != nil {
		return nil, err
	}
	peer, _, err := r.node.queuePair(16)
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
		Metadata: metadata.Addr(), Key: metadata.RKey(), User: user, Policy: policy, SpanKeys: spanKeys, Serial: true,
		Sync: func(context.Context) error { return node.sync(f.p) },
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

// rebinder is the memory node's background worker: it gives what was freed a fresh
// pair of keys.
type rebinder struct {
	r     *rig
	table *twolayer.Table
	layer int
	key   verbs.RKey
	seen  []uint64 // by section: frees when it was looked at last
	// rounds counts the passes over the table that have begun, and finished those
	// that have ended.
	rounds, finished int
}

func newRebinder(r *rig, table *twolayer.Table, layer int) *rebinder {
	b := &rebinder{r: r, table: table, layer: layer, key: 1, seen: make([]uint64, table.Sections())}
	for c := uint32(0); c < table.Chunks; c += table.Grain(layer) {
		table.SetCap(layer, c, b.fresh())
	}
	return b
}

// fresh is an entry with keys that have not been used.
func (b *rebinder) fresh() twolayer.Cap {
	b.key += 2
	return twolayer.MakeCap(b.key-1, b.key)
}

// run is the worker's process.
func (b *rebinder) run(p *sim.Proc) error {
	for {
		if err := p.Sleep(b.r.costs.Scan); err != nil {
			return err
		}
		b.rounds++
		for i := range b.table.Sections() {
			n := b.table.Frees(i)
			if n == b.seen[i] {
				continue
			}
			b.seen[i] = n
			if err := b.section(p, i); err != nil {
				return err
			}
		}
		b.finished = b.rounds
	}
}

// section deals with what was freed in a section.
func (b *rebinder) section(p *sim.Proc, i uint32) error {
	first := i * twolayer.SectionChunks
	for c := first; c < min(first+twolayer.SectionChunks, b.table.Chunks); c += b.table.Grain(b.layer) {
		if !b.table.Cap(b.layer, c).IsSwapped() {
			continue
		}
		if err := p.Sleep(b.r.costs.Rebind); err != nil {
			return err
		}
		b.table.SetCap(b.layer, c, b.fresh())
	}
	return nil
}

// sync waits until the worker has dealt with everything that was freed before.
func (b *rebinder) sync(p *sim.Proc) error {
	for want := b.rounds + 1; b.finished < want; {
		if err := p.Sleep(b.r.costs.Scan); err != nil {
			return err
		}
	}
	return nil
}
