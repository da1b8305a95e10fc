package finemem

import (
	"context"

	"polder/memnode/twolayer"
)

// search looks for memory of class k where the known headers show some. If thorough is set, it also looks where only
// a closer look shows some.
func (a *Allocator) search(ctx context.Context, k int, thorough bool) (Block, bool, error) {
	switch {
	case k > twolayer.SectionClass:
		return a.searchRuns(ctx, k, thorough)
	case k >= twolayer.SpanClass:
		return a.searchSections(ctx, k, thorough)
	}
	return a.searchSpans(ctx, k, thorough)
}

// A want says what an open span must be like to be tried in a turn of the search.
type want struct {
	state twolayer.State
	mine  bool // a itself was the last to change the span
}

// searchSpans looks for chunks in several turns over all sections, for the best kind of span first.
func (a *Allocator) searchSpans(ctx context.Context, k int, thorough bool) (b Block, found bool, err error) {
	if a.cfg.Policy == Spread {
		if b, found, err = a.tryHome(ctx, k); found || err != nil {
			return b, found, err
		}
	}
	turns := [...]want{{state: twolayer.InUse}, {state: twolayer.Empty}, {state: twolayer.Contended}, {state: twolayer.Full}}
	if a.cfg.Policy == Spread {
		turns = [...]want{{state: twolayer.InUse, mine: true}, {state: twolayer.Empty}, {state: twolayer.InUse}, {state: twolayer.Contended}}
	}
	for _, w := range turns {
		if w.state == twolayer.Full {
			break
		}
		if b, found, err = a.turn(ctx, k, w); found || err != nil {
			return b, found, err
		}
	}
	if thorough {
		// Sections may call spans full that are not full.
		if b, found, err = a.turn(ctx, k, want{state: twolayer.Full}); found || err != nil {
			return b, found, err
		}
		return a.repairAll(ctx, k)
	}
	return b, false, nil
}

// tryHome looks at the span where something was found last.
func (a *Allocator) tryHome(ctx context.Context, k int) (b Block, found bool, err error) {
	sec, err := a.known(ctx, a.home)
	if err != nil {
		return b, false, err
	}
	s := &sec.spans[a.homeSpan%twolayer.SectionSpans]
	if !s.h.Open() || s.h.Fit(k, s.avoid) < 0 {
		return b, false, nil
	}
	return a.takeChunks(ctx, a.homeSpan, k)
}

// turn tries the spans of all sections that w describes, from home on or, with Paper, from the beginning.
func (a *Allocator) turn(ctx context.Context, k int, w want) (b Block, found bool, err error) {
	n := a.l.Sections()
	start := a.home
	if a.cfg.Policy == Paper {
		start = 0
	}
	for j := range n {
		i := (start + j) % n
		if w.mine && a.sections[i] == nil {
			continue // if a has changed something there, the section is known
		}
		sec, err := a.known(ctx, i)
		if err != nil {
			return b, false, err
		}
		for m := sec.h.Candidates(w.state); m != 0; {
			from := 0
			if a.cfg.Policy == Spread && i == a.home {
				from = int(a.homeSpan % twolayer.SectionSpans)
			}
			c := twolayer.NextSpan(m, from)
			m &^= 1 << c
			if b, found, err = a.tryChunks(ctx, i*twolayer.SectionSpans+uint32(c), k, w); err != nil {
				return b, false, err
			}
			if found {
				a.home, a.homeSpan = i, i*twolayer.SectionSpans+uint32(c)
				return b, true, nil
			}
			if a.sections[i] != sec {
				break // the section was forgotten
			}
		}
	}
	return b, false, nil
}

// tryChunks tries one span.
func (a *Allocator) tryChunks(ctx context.Context, span uint32, k int, w want) (b Block, found bool, err error) {
	sec := a.sections[span/twolayer.SectionSpans]
	s := &sec.spans[span%twolayer.SectionSpans]
	if w.state == twolayer.Empty {
		if sec.avoid>>(span%twolayer.SectionSpans)&1 == 1 {
			return b, false, nil
		}
		return a.open(ctx, span, k)
	}
	if w.mine && s.h.Log().User != a.user || s.h.Open() && s.h.Fit(k, s.avoid) < 0 {
		return b, false, nil
	}
	if !s.h.Open() {
		// It was open when it was read last, but its section says that it is in another state now.
		if w.mine || w.state == twolayer.Full {
			return b, false, nil
		}
		if _, err := a.readSections(ctx, span/twolayer.SectionSpans, readLeast); err != nil {
			return b, false, err
		}
		if !s.h.Open() || s.h.Fit(k, s.avoid) < 0 {
			return b, false, nil
		}
	}
	return a.takeChunks(ctx, span, k)
}

// searchSections looks for whole spans.
func (a *Allocator) searchSections(ctx context.Context, k int, thorough bool) (b Block, found bool, err error) {
	n := a.l.Sections()
	start := a.home
	switch {
	case a.cfg.Policy == Paper:
		start = 0
	case k == twolayer.SectionClass:
		start = a.homeRun
	}
	for j := range n {
		i := (start + j) % n
		if _, err := a.known(ctx, i); err != nil {
			return b, false, err
		}
		if b, found, err = a.takeSpans(ctx, i, k); found || err != nil {
			if found && k == twolayer.SectionClass {
				a.homeRun = i
			}
			return b, found, err
		}
	}
	if thorough {
		return a.repairAll(ctx, k)
	}
	return b, false, nil
}

// searchRuns looks for whole sections.
func (a *Allocator) searchRuns(ctx context.Context, k int, thorough bool) (b Block, found bool, err error) {
	n := uint32(1) << (k - twolayer.SectionClass)
	all := a.l.Sections() / n
	start := uint32(0)
	if a.cfg.Policy == Spread {
		start = a.homeRun / n
	}
	for j := range all {
		i := (start + j) % all * n
		if !a.l.Whole(i*twolayer.SectionChunks, k) {
			continue
		}
		whole := true
		for m := i; m < i+n && whole; m++ {
			s, err := a.known(ctx, m)
			if err != nil {
				return b, false, err
			}
			whole = s.h.Whole() && s.avoid == 0
		}
		if !whole {
			continue
		}
		if b, found, err = a.takeRun(ctx, i, k); found || err != nil {
			if found {
				a.homeRun = i
			}
			return b, found, err
		}
	}
	if thorough {
		return a.repairAll(ctx, k)
	}
	return b, false, nil
}
