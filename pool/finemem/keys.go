package finemem

import (
	"context"
	"fmt"

	"polder/memnode/twolayer"
)

// A block is opened by the keys of one layer. Keys of other layers overlap it, and must not be swapped either.
// Package twolayer says which of those can be swapped when a header has allowed an allocation: none for chunks, the
// section's for spans, and the spans' for sections.

// keySlots are the slots that a block's capabilities have been read into.
type keySlots struct {
	own, others   int
	nOwn, nOthers int // words

	span int // slot of the first capability of b's whole span, if all is set
	all  bool
}

// readKeys adds to the batch READs of b's capabilities and of those that overlap it.
func (a *Allocator) readKeys(b *Block) (k keySlots) {
	layer := twolayer.LayerOf(b.Class)
	k.nOwn = a.keyWords(layer, b)
	k.own = a.read(a.l.CapAt(layer, a.keysFirst(layer, b)), k.nOwn, StepAllocKeys)
	switch {
	case layer == twolayer.SpanLayer:
		k.nOthers = 1
		k.others = a.read(a.l.CapAt(twolayer.SectionLayer, a.keysFirst(twolayer.SectionLayer, b)), 1, StepAllocKeys)
	case layer == twolayer.SectionLayer && a.l.Grain(twolayer.SpanLayer) != 0:
		k.nOthers = a.keyWords(twolayer.SpanLayer, b)
		k.others = a.read(a.l.CapAt(twolayer.SpanLayer, b.First), k.nOthers, StepAllocKeys)
	}
	return k
}

// readChunkKeys is readKeys for less than a span.
func (a *Allocator) readChunkKeys(b *Block) keySlots {
	if !a.cfg.SpanKeys {
		return a.readKeys(b)
	}
	span := b.First &^ (twolayer.SpanChunks - 1)
	k := keySlots{nOwn: a.keyWords(twolayer.ChunkLayer, b), all: true}
	k.span = a.read(a.l.CapAt(twolayer.ChunkLayer, span), twolayer.SpanChunks, StepAllocKeys)
	k.own = k.span + int(a.keysFirst(twolayer.ChunkLayer, b)-span)
	return k
}

// avoidSwapped makes a avoid exactly those chunks of a span that the node has not dealt with, if all keys of the span
// have been read.
func (a *Allocator) avoidSwapped(s *span, k keySlots) {
	if !k.all {
		return
	}
	s.avoid = 0
	grain := a.l.Grain(twolayer.ChunkLayer)
	for c := uint32(0); c < twolayer.SpanChunks; c += grain {
		if twolayer.Cap(a.word(k.span + int(c))).IsSwapped() {
			s.avoid |= uint32(uint64(1)<<grain-1) << c
			a.avoiding = true
		}
	}
}

// fetchKeys reads b's capabilities and those that overlap it. They may be more than fit into a batch.
func (a *Allocator) fetchKeys(ctx context.Context, b *Block) error {
	b.swapped, b.one, b.caps = false, 0, nil
	own := twolayer.LayerOf(b.Class)
	for layer := range twolayer.Layers {
		if layer == twolayer.ChunkLayer && layer != own || a.l.Grain(layer) == 0 {
			continue
		}
		at, n := a.l.CapAt(layer, a.keysFirst(layer, b)), a.keyWords(layer, b)
		for done := 0; done < n; {
			words := min(n-done, a.readMax())
			a.begin()
			slot := a.read(at+8*uint64(done), words, StepAllocKeys)
			if err := a.run(ctx); err != nil {
				b.one, b.caps = 0, nil
				return err
			}
			for i := range words {
				c := twolayer.Cap(a.word(slot + i))
				b.swapped = b.swapped || c.IsSwapped()
				if layer == own && (done+i)%a.capStep(layer) == 0 {
					b.swapped = b.swapped || c == 0
					b.caps = append(b.caps, c)
				}
			}
			done += words
		}
	}
	if len(b.caps) == 1 {
		b.one, b.caps = b.caps[0], nil
	}
	return nil
}

// keysFirst is the chunk whose capability is the first of those of b in a layer.
func (a *Allocator) keysFirst(layer int, b *Block) uint32 {
	return b.First &^ (a.l.Grain(layer) - 1)
}

// keyWords is how many words b's capabilities take in a layer.
func (a *Allocator) keyWords(layer int, b *Block) int {
	per := uint32(1)
	switch layer {
	case twolayer.SpanLayer:
		per = twolayer.SpanChunks
	case twolayer.SectionLayer:
		per = twolayer.SectionChunks
	}
	return max(1, 1<<b.Class/int(per))
}

// capStep is the distance, in words, between two capabilities of a layer.
func (a *Allocator) capStep(layer int) int {
	per := uint32(1)
	switch layer {
	case twolayer.SpanLayer:
		per = twolayer.SpanChunks
	case twolayer.SectionLayer:
		per = twolayer.SectionChunks
	}
	return int(max(1, a.l.Grain(layer)/per))
}

// takeKeys puts b's capabilities that were read into b, and notes in b.swapped whether an old key may still open it.
func (a *Allocator) takeKeys(b *Block, k keySlots) {
	step := a.capStep(twolayer.LayerOf(b.Class))
	b.swapped = false
	b.caps = nil
	n := (k.nOwn + step - 1) / step
	if n > 1 {
		b.caps = make([]twolayer.Cap, 0, n)
	}
	for i := 0; i < k.nOwn; i += step {
		c := twolayer.Cap(a.word(k.own + i))
		b.swapped = b.swapped || c.IsSwapped() || c == 0
		if n > 1 {
			b.caps = append(b.caps, c)
		} else {
			b.one = c
		}
	}
	for i := range k.nOthers {
		b.swapped = b.swapped || twolayer.Cap(a.word(k.others+i)).IsSwapped()
	}
}

// ready returns b if no old key opens it. Otherwise it frees b, and reports that nothing was found.
func (a *Allocator) ready(ctx context.Context, b Block) (Block, bool, error) {
	if !b.swapped {
		return b, true, nil
	}
	a.stats.Returned++
	a.shun(b.First, b.Class)
	if err := a.free(ctx, &b, false); err != nil {
		return b, false, a.orphan(b, err)
	}
	return b, false, nil
}

// swap replaces b's keys by their backups, which ends access by the keys as soon as the node sees it, and tells the
// node where to look. It may be called again.
func (a *Allocator) swap(ctx context.Context, b *Block) error {
	if b.gone {
		return nil
	}
	layer := twolayer.LayerOf(b.Class)
	first, step := a.keysFirst(layer, b), a.capStep(layer)
	if b.one == 0 && b.caps == nil {
		if err := a.fetchKeys(ctx, b); err != nil {
			return err
		}
	}
	caps := b.caps
	if caps == nil {
		caps = []twolayer.Cap{b.one}
	}
	at := a.l.CapAt(layer, first)
	section := b.First / twolayer.SectionChunks
	end := section + 1<<max(0, b.Class-twolayer.SectionClass)
	for i := 0; i < len(caps) || section < end; {
		a.begin()
		for ; i < len(caps) && !a.full(1); i++ {
			// The CAS fails if the key was swapped before.
			if c := caps[i]; c.Backup() != 0 {
				a.cas(at+8*uint64(i*step), uint64(c), uint64(c.Swapped()), StepFreeSwap)
			}
		}
		for ; section < end && !a.full(1); section++ {
			a.add(a.l.FreesAt(section), StepFreeRing)
		}
		a.told()
		if err := a.run(ctx); err != nil {
			return err
		}
	}
	b.gone = true
	return nil
}

// swapOne adds the swap of b's only key to the batch. The swap fails if the key was swapped before.
func (a *Allocator) swapOne(b *Block) {
	layer := twolayer.LayerOf(b.Class)
	if c := b.one; c.Backup() != 0 {
		a.cas(a.l.CapAt(layer, a.keysFirst(layer, b)), uint64(c), uint64(c.Swapped()), StepFreeSwap)
	}
	a.add(a.l.FreesAt(b.First/twolayer.SectionChunks), StepFreeRing)
	a.told()
}

// lost is the error of freeing a block that is not allocated according to the node.
func (a *Allocator) lost(b *Block) error {
	a.broken = fmt.Errorf("the node does not know that class %d at chunk %d is allocated", b.Class, b.First)
	return a.broken
}
