package finemem

import (
	"context"

	"polder/memnode/twolayer"
)

// flushSpan makes sure that the log of a span's header is in the full log. It reports false if it finds that the
// header has changed instead.
func (a *Allocator) flushSpan(ctx context.Context, i uint32, s *span) (same bool, err error) {
	l := s.h.Log()
	if s.flushed || !l.ToFlush(false) {
		return true, nil
	}
	now, err := a.flush(ctx, a.l.SpanAt(i), uint64(s.h), l, i*twolayer.SpanChunks, false)
	if err != nil {
		return false, err
	}
	same = now == uint64(s.h)
	s.see(twolayer.Span(now))
	s.flushed = same
	return same, nil
}

// flushSection is flushSpan for a section's header.
func (a *Allocator) flushSection(ctx context.Context, i uint32, s *section) (same bool, err error) {
	l := s.h.Log()
	if s.flushed || !l.ToFlush(true) {
		return true, nil
	}
	now, err := a.flush(ctx, a.l.SectionAt(i), uint64(s.h), l, i*twolayer.SectionChunks, true)
	if err != nil {
		return false, err
	}
	same = now == uint64(s.h)
	s.see(twolayer.Section(now))
	s.flushed = same
	return same, nil
}

// flush flushes the log l of a header, unless the header has changed, and returns what the header is now. The CAS
// that replaces the log entry is posted by then, ahead of whatever is posted next.
func (a *Allocator) flush(ctx context.Context, at, header uint64, l twolayer.Log, first uint32, section bool) (now uint64, err error) {
	entry := a.l.EntryAt(l.EntryOf(first, section))
	a.begin()
	e := a.read(entry, 1, StepFlushRead)
	h := a.read(at, 1, StepFlushCheck)
	a.fence() // otherwise the entry may be younger than the header that is compared
	if err := a.run(ctx); err != nil {
		return 0, err
	}
	now = a.word(h)
	old := twolayer.Entry(a.word(e))
	if now != header || old.Is(l, section) {
		return now, nil
	}
	a.stats.Flushes++
	a.later(entry, old, old.Follow(l, section), false)
	return now, a.broken
}
