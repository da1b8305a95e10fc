package finemem

import (
	"context"

	"polder/memnode/twolayer"
)

// takeSpans allocates class k, of at least a span and at most a section, by one CAS of a section's header.
func (a *Allocator) takeSpans(ctx context.Context, i uint32, k int) (b Block, found bool, err error) {
	s := a.sections[i]
	for failed := 0; failed < patience; failed++ {
		at := s.h.Fit(twolayer.SpansOf(k), s.avoid)
		if at < 0 {
			break
		}
		same, err := a.flushSection(ctx, i, s)
		if err != nil {
			return b, false, err
		}
		if !same {
			continue
		}
		b = a.block(i*twolayer.SectionChunks+uint32(at)*twolayer.SpanChunks, k)
		old, h := s.h, s.h.Allocated(at, k, a.user, failed)
		a.begin()
		e := a.read(a.l.EntryAt(b.First), 1, StepFlushRead)
		c := a.cas(a.l.SectionAt(i), uint64(old), uint64(h), StepAllocCommit)
		keys := a.readKeys(&b)
		a.commits(c, uint64(old), false, b)
		if err := a.run(ctx); err != nil {
			return b, false, err
		}
		a.committed()
		if was := twolayer.Section(a.word(c)); was != old {
			a.stats.Retries++
			s.see(was)
			continue
		}
		s.h, s.flushed = h, true
		a.logged(&b, e, h.Log(), true)
		a.takeKeys(&b, keys)
		if a.broken != nil {
			return b, false, a.broken
		}
		return a.ready(ctx, b)
	}
	return b, false, nil
}

// takeRun allocates class k, of several sections from section i on, by a CAS of the header of each. If one fails,
// takeRun frees the others.
func (a *Allocator) takeRun(ctx context.Context, i uint32, k int) (b Block, found bool, err error) {
	n := uint32(1) << (k - twolayer.SectionClass)
	b = a.block(i*twolayer.SectionChunks, k)
	for taken := range n {
		ok, err := a.takeOfRun(ctx, i+taken, k)
		if ok && err == nil {
			continue
		}
		for j := range taken {
			part := a.block((i+j)*twolayer.SectionChunks, twolayer.SectionClass)
			part.gone = true // nobody has been given its keys, so they need not be swapped
			a.owed = append(a.owed, part)
		}
		if err == nil {
			err = a.pay(ctx)
		}
		return b, false, err
	}
	if err := a.fetchKeys(ctx, &b); err != nil {
		return b, false, a.orphan(b, err)
	}
	return a.ready(ctx, b)
}

// takeOfRun allocates section i as a part of a run of class k.
func (a *Allocator) takeOfRun(ctx context.Context, i uint32, k int) (bool, error) {
	s, err := a.known(ctx, i)
	if err != nil {
		return false, err
	}
	first := a.block(i*twolayer.SectionChunks, twolayer.SectionClass)
	first.gone = true
	for failed := 0; failed < patience && s.h.Whole() && s.avoid == 0; failed++ {
		same, err := a.flushSection(ctx, i, s)
		if err != nil {
			return false, err
		}
		if !same {
			continue
		}
		old, h := s.h, s.h.Allocated(0, k, a.user, failed)
		a.begin()
		e := a.read(a.l.EntryAt(first.First), 1, StepFlushRead)
		c := a.cas(a.l.SectionAt(i), uint64(old), uint64(h), StepAllocCommit)
		a.commits(c, uint64(old), false, first)
		if err := a.run(ctx); err != nil {
			return false, err
		}
		a.committed()
		if was := twolayer.Section(a.word(c)); was != old {
			a.stats.Retries++
			s.see(was)
			continue
		}
		s.h, s.flushed = h, true
		a.logged(&first, e, h.Log(), true)
		return true, a.broken
	}
	return false, nil
}

// freeSections frees b in the header of its section, or in those of all its sections. If swap is set and b's key has
// not been swapped yet, it swaps the key with the same doorbell.
func (a *Allocator) freeSections(ctx context.Context, b *Block, swap bool) error {
	n := 1 << max(0, b.Class-twolayer.SectionClass)
	for failed := 0; b.next < n; {
		first := b.First + uint32(b.next)*twolayer.SectionChunks
		i, at := first/twolayer.SectionChunks, int(first%twolayer.SectionChunks/twolayer.SpanChunks)
		s, err := a.known(ctx, i)
		if err != nil {
			return err
		}
		same, err := a.flushSection(ctx, i, s)
		if err != nil {
			return err
		}
		if !same {
			continue
		}
		if !s.h.Has(at, b.Class) {
			if failed > 0 {
				return a.lost(b)
			}
			failed++
			a.forget(first)
			continue
		}
		old, h := s.h, s.h.Freed(at, b.Class, a.user, 0)
		a.begin()
		if swap && !b.gone {
			a.swapOne(b)
		}
		c := a.cas(a.l.SectionAt(i), uint64(old), uint64(h), StepFreeCommit)
		a.commits(c, uint64(old), true, Block{})
		if err := a.run(ctx); err != nil {
			return err
		}
		a.committed()
		b.gone = b.gone || swap
		if was := twolayer.Section(a.word(c)); was != old {
			a.stats.Retries++
			s.see(was)
			continue
		}
		s.h = h
		s.flushed = n == 1 && a.freed(b, h.Log(), true)
		b.next++
		failed = 0
		a.shun(first, min(b.Class, twolayer.SectionClass))
	}
	return a.broken
}
