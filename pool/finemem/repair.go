package finemem

import (
	"context"

	"polder/memnode/twolayer"
)

// open opens an empty span, and allocates class k from it. Package twolayer explains the order of its operations.
func (a *Allocator) open(ctx context.Context, span uint32, k int) (b Block, found bool, err error) {
	i, j := span/twolayer.SectionSpans, int(span%twolayer.SectionSpans)
	sec := a.sections[i]
	s := &sec.spans[j]
	same, err := a.flushSection(ctx, i, sec)
	if err != nil || !same {
		return b, false, err
	}
	first := span * twolayer.SpanChunks
	a.begin()
	h := a.read(a.l.SectionAt(i), 1, StepReadHeaders)
	v := a.read(a.l.SpanAt(span), 1, StepReadHeaders)
	var above [2]int
	for n, layer := range []int{twolayer.SpanLayer, twolayer.SectionLayer} {
		above[n] = a.read(a.l.CapAt(layer, first&^(a.l.Grain(layer)-1)), 1, StepAllocKeys)
	}
	if err := a.run(ctx); err != nil {
		return b, false, err
	}
	now := twolayer.Section(a.word(h))
	s.see(twolayer.Span(a.word(v)))
	if now != sec.h {
		a.stats.Retries++
		sec.see(now)
		return b, false, nil
	}
	if now.State(j) != twolayer.Empty || s.h.Open() {
		return b, false, nil
	}
	for _, slot := range above {
		if twolayer.Cap(a.word(slot)).IsSwapped() {
			a.shun(first, twolayer.SpanClass)
			return b, false, nil
		}
	}
	done, err := a.casSection(ctx, i, sec, now.Opened(j, a.user), StepOpenSection)
	if err != nil || !done {
		return b, false, err
	}
	if b, done, err = a.commitChunks(ctx, span, s, s.h.Fit(k, 0), k, 0); err != nil {
		return b, false, err
	}
	if done {
		if err := a.mark(ctx, span, true, 0); err != nil {
			return b, false, a.orphan(b, err)
		}
		return a.ready(ctx, b)
	}
	a.stats.Retries++
	if !s.h.Open() {
		return b, false, nil // another client has repaired the span: the section must say first that it is opened
	}
	return a.takeChunks(ctx, span, k)
}

// casSection replaces the header of a section. The log of the old header must have been flushed.
func (a *Allocator) casSection(ctx context.Context, i uint32, sec *section, h twolayer.Section, step string) (bool, error) {
	old := sec.h
	a.begin()
	c := a.cas(a.l.SectionAt(i), uint64(old), uint64(h), step)
	if err := a.run(ctx); err != nil {
		return false, err
	}
	if was := twolayer.Section(a.word(c)); was != old {
		a.stats.Retries++
		sec.see(was)
		return false, nil
	}
	sec.h, sec.flushed = h, true
	return true, nil
}

// repairAll repairs what clients that crashed or were slow have left inconsistent between the two layers, closes
// spans without allocations, and searches again.
func (a *Allocator) repairAll(ctx context.Context, k int) (b Block, found bool, err error) {
	repaired := false
	for i := range a.l.Sections() {
		sec, err := a.known(ctx, i)
		if err != nil {
			return b, false, err
		}
		for j := range twolayer.SectionSpans {
			state, s := sec.h.State(j), &sec.spans[j]
			if state == twolayer.Empty || s.h.Free() != twolayer.AllFree {
				continue
			}
			if !s.h.Open() && state == twolayer.Full {
				continue // the whole span is allocated
			}
			if s.h.Open() && k < twolayer.SpanClass {
				continue // its chunks can be allocated already
			}
			did, err := a.close(ctx, i*twolayer.SectionSpans+uint32(j))
			if err != nil {
				return b, false, err
			}
			repaired = repaired || did
		}
	}
	if !repaired {
		return b, false, nil
	}
	return a.search(ctx, k, false)
}

// close closes a span that is open and all free, or completes the closing of one that is closed already, and records
// that in its section.
func (a *Allocator) close(ctx context.Context, span uint32) (bool, error) {
	i, j := span/twolayer.SectionSpans, int(span%twolayer.SectionSpans)
	sec := a.sections[i]
	s := &sec.spans[j]
	if same, err := a.flushSpan(ctx, span, s); err != nil || !same {
		return false, err
	}
	if same, err := a.flushSection(ctx, i, sec); err != nil || !same {
		return false, err
	}
	// The section's header must be read before the span's is changed, and the chunks' keys while all chunks are free.
	words := twolayer.SpanChunks
	a.begin()
	h := a.read(a.l.SectionAt(i), 1, StepReadHeaders)
	keys := a.read(a.l.CapAt(twolayer.ChunkLayer, span*twolayer.SpanChunks), words, StepAllocKeys)
	v := a.read(a.l.SpanAt(span), 1, StepReadHeaders)
	if err := a.run(ctx); err != nil {
		return false, err
	}
	section, now := twolayer.Section(a.word(h)), twolayer.Span(a.word(v))
	if section != sec.h || now != s.h || section.State(j) == twolayer.Empty || now.Free() != twolayer.AllFree {
		sec.see(section)
		s.see(now)
		return false, nil
	}
	next, first, second := now.Closed(), StepCloseSpan, StepCloseSection
	if !now.Open() {
		if section.State(j) == twolayer.Full {
			return false, nil
		}
		next, first, second = now.Reclosed(), StepRepairSpan, StepRepairSection
	}
	for n := range words {
		if twolayer.Cap(a.word(keys + n)).IsSwapped() {
			return false, nil
		}
	}
	if section.State(j) == twolayer.Full {
		// A closed span that its section calls full would be lost; see package twolayer.
		section = section.With(j, twolayer.InUse)
		if done, err := a.casSection(ctx, i, sec, section, StepHint); err != nil || !done {
			return false, err
		}
	}
	a.begin()
	c := a.cas(a.l.SpanAt(span), uint64(now), uint64(next), first)
	if err := a.run(ctx); err != nil {
		return false, err
	}
	if was := twolayer.Span(a.word(c)); was != now {
		a.stats.Retries++
		s.see(was)
		return false, nil
	}
	s.h, s.flushed = next, true
	a.stats.Repairs++
	return a.casSection(ctx, i, sec, section.Closed(j, a.user), second)
}
