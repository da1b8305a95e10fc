package finemem

import (
	"context"

	"polder/memnode/twolayer"
)

// patience is the number of failed attempts on a span or section after which a gives it up.
const patience = 12

// takeChunks allocates class k from an open span. found is false if the span has no room or is not open, or if other
// clients are faster.
func (a *Allocator) takeChunks(ctx context.Context, i uint32, k int) (b Block, found bool, err error) {
	sec := a.sections[i/twolayer.SectionSpans]
	s := &sec.spans[i%twolayer.SectionSpans]
	for failed := 0; failed < patience; failed++ {
		if !s.h.Open() {
			break
		}
		at := s.h.Fit(k, s.avoid)
		if at < 0 {
			break
		}
		same, err := a.flushSpan(ctx, i, s)
		if err != nil {
			return b, false, err
		}
		if !same {
			continue
		}
		if b, found, err = a.commitChunks(ctx, i, s, at, k, failed); err != nil {
			return b, false, err
		}
		if found {
			if err := a.mark(ctx, i, true, failed); err != nil {
				return b, false, a.orphan(b, err)
			}
			return a.ready(ctx, b)
		}
		a.stats.Retries++
	}
	return b, false, nil
}

// orphan leaves it to a later call to free b. It returns err.
func (a *Allocator) orphan(b Block, err error) error {
	a.owed = append(a.owed, b)
	return err
}

// commitChunks tries to allocate chunks of a span by a CAS of its header. If the span is not open, the CAS opens it.
// The same batch reads the log entry and the keys.
func (a *Allocator) commitChunks(ctx context.Context, i uint32, s *span, at, k, failed int) (b Block, done bool, err error) {
	b = a.block(i*twolayer.SpanChunks+uint32(at), k)
	old, step := s.h, StepAllocCommit
	if !old.Open() {
		step = StepOpenSpan
	}
	h := old.Allocated(at, k, a.user, failed)
	entry := a.l.EntryAt(b.First)
	a.begin()
	e := a.read(entry, 1, StepFlushRead)
	c := a.cas(a.l.SpanAt(i), uint64(old), uint64(h), step)
	keys := a.readChunkKeys(&b)
	a.commits(c, uint64(old), false, b)
	if err := a.run(ctx); err != nil {
		return b, false, err
	}
	a.committed()
	a.avoidSwapped(s, keys)
	if was := twolayer.Span(a.word(c)); was != old {
		s.see(was)
		return b, false, nil
	}
	s.h, s.flushed = h, true
	a.logged(&b, e, h.Log(), false)
	a.takeKeys(&b, keys)
	if a.broken != nil {
		return b, false, a.broken
	}
	return b, true, nil
}

// logged flushes the log of a's own last allocation. slot has the log entry as it was before.
func (a *Allocator) logged(b *Block, slot int, l twolayer.Log, section bool) {
	old := twolayer.Entry(a.word(slot))
	b.entry = old.Follow(l, section)
	a.later(a.l.EntryAt(b.First), old, b.entry, true)
}

// freeChunks frees b in its span's header. If swap is set and b's key has not been swapped yet, it swaps the key with
// the same doorbell.
func (a *Allocator) freeChunks(ctx context.Context, b *Block, swap bool) error {
	i, at := b.First/twolayer.SpanChunks, int(b.First%twolayer.SpanChunks)
	for failed := 0; b.next == 0; failed++ {
		sec, err := a.known(ctx, i/twolayer.SectionSpans)
		if err != nil {
			return err
		}
		s := &sec.spans[i%twolayer.SectionSpans]
		same, err := a.flushSpan(ctx, i, s)
		if err != nil {
			return err
		}
		if !same {
			continue
		}
		if !s.h.Open() || !s.h.Has(at, b.Class) {
			if failed > 0 {
				return a.lost(b) // the header that says so was read just now
			}
			a.forget(b.First)
			continue
		}
		old := s.h
		h := old.Freed(at, b.Class, a.user, failed)
		a.begin()
		if swap && !b.gone {
			a.swapOne(b)
		}
		c := a.cas(a.l.SpanAt(i), uint64(old), uint64(h), StepFreeCommit)
		a.commits(c, uint64(old), true, Block{})
		if err := a.run(ctx); err != nil {
			return err
		}
		a.committed()
		b.gone = b.gone || swap
		if was := twolayer.Span(a.word(c)); was != old {
			a.stats.Retries++
			s.see(was)
			continue
		}
		s.h = h
		s.flushed = a.freed(b, h.Log(), false)
		b.next = 1
		a.shun(b.First, b.Class)
		if sec.h.State(int(i%twolayer.SectionSpans)) == twolayer.Full || old.Free() == 0 {
			return a.mark(ctx, i, false, failed)
		}
	}
	return a.broken
}

// freed flushes the log of a's own last free if the block's log entry is known. It reports whether it is.
func (a *Allocator) freed(b *Block, l twolayer.Log, section bool) bool {
	if b.entry == 0 {
		return false
	}
	a.later(a.l.EntryAt(b.First), b.entry, b.entry.Follow(l, section), false)
	return true
}

// mark corrects what the section's header says about a span, as far as that is known, after an operation that had
// failed so many times before. Only a client that has chunks of the span (has) may mark it as full: if it
// has none, other clients may close the span at any time.
func (a *Allocator) mark(ctx context.Context, i uint32, has bool, failed int) error {
	sec := a.sections[i/twolayer.SectionSpans]
	k := int(i % twolayer.SectionSpans)
	s := &sec.spans[k]
	for range patience {
		old := sec.h
		want := old.Mark(k, s.h, failed)
		if !s.h.Open() || old.State(k) == want || old.State(k) == twolayer.Empty || want == twolayer.Full && !has {
			return nil // another client knows better
		}
		h := old.With(k, want)
		a.begin()
		c := a.cas(a.l.SectionAt(i/twolayer.SectionSpans), uint64(old), uint64(h), StepHint)
		// The span may have changed meanwhile; then the section's header would be wrong.
		v := a.read(a.l.SpanAt(i), 1, StepReadHeaders)
		if err := a.run(ctx); err != nil {
			return err
		}
		if was := twolayer.Section(a.word(c)); was == old {
			sec.h = h // h has the same log
		} else {
			sec.see(was)
		}
		s.see(twolayer.Span(a.word(v)))
	}
	return nil
}
