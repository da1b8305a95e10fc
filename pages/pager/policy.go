package pager

import "slices"

// policy decides which page of a mapping is evicted next. It is told when a page comes and when it is evicted, but
// never that a resident page is read.
//
// A page that comes is young. Normally the oldest young page is evicted. While fewer pages are kept than may be, the
// oldest young page becomes a kept one instead, and the next one is looked at. So the pages that came first stay, and
// a client that goes round a loop that is too large finds a part of it each time: if the oldest page of all were
// evicted, each page would go just before it is needed. A single scan leaves the kept pages in place, too.
//
// The set of kept pages changes in two ways. First, one of every 32 evicted pages is a kept one, taken from anywhere
// among them. Second, a page that comes back is kept from then on if it was away for less than half the average time
// that evicted kept pages are away, counted in evictions. For that average some of the evicted kept pages are
// watched. A watched page is judged when it comes back, or when it has been away for half as long again as the
// average; then it counts as away for twice as long as it has been, so the average grows when kept pages do not come
// back. In a large loop pages are away for a long time, and many are on their way of which nothing is known yet.
type policy struct {
	at    []place // by frame; the last place is the end of the queue of young frames
	count [2]int  // frames that are young, and frames that are kept
	tried [2]int  // how often next proposed a frame of either kind since a page was chosen
	most  int     // how many frames may be kept
	hand  int     // the frame that anyKept returned last

	evicted uint32     // pages so far
	due     int        // how many young pages are still to be chosen before a kept one
	away    int        // average number of evictions for which evicted kept pages are away, times recent
	watch   [64]uint32 // for each watched page, the value of evicted when it went; the oldest first
	watched int        // how many entries of watch are used
}

// place is the state of a frame's page. The young frames are linked to a circular queue.
type place struct {
	next, prev uint32
	is         uint8
}

const (
	young uint8 = iota
	kept
	nothing
	going = 4 // a flag beside young or kept: the page is about to be evicted

	sample = 32         // one of this many evicted pages is a kept one
	recent = 32         // pages of which away is the average
	sparse = 16         // most pages watched per average time away, so that they are spread over a loop
	step   = 2654435761 // a prime, so that hand comes to all frames

	// The bits of what gone returns for an evicted page; mapping.index holds it.
	wasHere   = 1 << 31
	wasKept   = 1 << 30
	countMask = 1<<29 - 1 // the low bits of policy.evicted at that time
)

// newPolicy makes a policy for so many frames, of which free are usually free. It leaves at least young frames to
// young pages, or 2*batch if that is more, unless fewer than a quarter of the frames could be kept then.
func newPolicy(frames, free, young int) *policy {
	p := &policy{at: make([]place, frames+1), most: max(frames-free-max(young, 2*batch), frames/4), away: frames * recent}
	for i := range frames {
		p.at[i].is = nothing
	}
	p.at[frames] = place{p.end(), p.end(), nothing}
	return p
}

// end is the place between the youngest frame of the queue and the oldest.
func (p *policy) end() uint32 { return uint32(len(p.at) - 1) }

// came notes that a frame has been given a page. was is what gone returned when the page was evicted, or 0.
func (p *policy) came(at, was uint32) {
	is := young
	if was&wasHere != 0 {
		away := int((p.evicted - was) & countMask)
		if was&wasKept != 0 {
			if i := slices.Index(p.watch[:p.watched], was&countMask); i >= 0 {
				p.judge(i, away)
			}
		}
		if 2*recent*away < p.away {
			is = kept
		}
	}
	p.become(at, is)
}

// gone notes that the page of a frame was evicted, and returns what came must be told if the page comes back.
func (p *policy) gone(at uint32) (was uint32) {
	was = wasHere
	if p.at[at].is&^going == kept {
		was |= wasKept
	}
	p.forget(at)
	p.evicted++
	if p.watched > 0 {
		if away := int((p.evicted - p.watch[0]) & countMask); 2*recent*away > 3*p.away {
			p.judge(0, 2*away)
		}
	}
	if was&wasKept != 0 && p.watched < len(p.watch) && (p.watched == 0 || sparse*recent*int((p.evicted-p.watch[p.watched-1])&countMask) >= p.away) {
		p.watch[p.watched] = p.evicted & countMask
		p.watched++
	}
	return was | p.evicted&countMask
}

// judge counts for the average that the i-th watched page was away for so many evictions, or is guessed to be, and
// stops watching it.
func (p *policy) judge(i, away int) {
	p.watched--
	copy(p.watch[i:p.watched], p.watch[i+1:])
	p.away += min(away, 4*len(p.at)) - p.away/recent
}

// forget notes that a frame has no page any more, if it had one.
func (p *policy) forget(at uint32) {
	f := &p.at[at]
	if f.is == young {
		p.at[f.prev].next, p.at[f.next].prev = f.next, f.prev
	}
	if f.is < nothing {
		p.count[f.is]--
	}
	f.is = nothing
}

// keeps reports whether the page of a frame is kept.
func (p *policy) keeps(at uint32) bool { return p.at[at].is == kept }

// stays notes that a page which was chosen is not evicted after all.
func (p *policy) stays(at uint32) { p.become(at, p.at[at].is&^going) }

func (p *policy) become(at uint32, is uint8) {
	p.at[at].is = is
	p.count[is]++
	if is == young {
		last := p.at[p.end()].prev
		p.at[at].next, p.at[at].prev = p.end(), last
		p.at[last].next, p.at[p.end()].prev = at, at
	}
}

// next proposes the frame whose page should go. If it is called again before chose, it proposes another frame, and
// comes to all of them in the end.
//
// Preconditions: there is a page.
func (p *policy) next() (at uint32) {
	for p.count[kept] < p.most && p.count[young] > 0 {
		oldest := p.at[p.end()].next
		p.forget(oldest)
		p.become(oldest, kept)
	}
	is := young
	if p.count[kept] > p.most || p.due <= 0 {
		is = kept
	}
	if p.tried[is] >= 2*p.count[is] { // none of them can go
		is = kept - is
	}
	p.tried[is]++
	if is == kept {
		return p.anyKept()
	}
	at = p.at[p.end()].next
	p.forget(at)
	p.become(at, young)
	return at
}

// anyKept returns one of the kept frames. It comes to all of them, in an order that has nothing to do with the order
// of their pages: a client that goes round a loop is not to find again and again that the next page has just gone.
//
// Preconditions: there is a kept frame.
func (p *policy) anyKept() uint32 {
	for {
		frames := len(p.at) - 1
		if p.hand += step; p.hand >= frames {
			p.hand %= frames
		}
		if p.at[p.hand].is == kept {
			return uint32(p.hand)
		}
	}
}

// chose notes that the page of the frame that next proposed is about to be evicted. It counts as gone at once: if one
// page too many is kept, then only one of the pages that are chosen together is a kept one for that reason, and not
// all of them.
func (p *policy) chose(at uint32) {
	is := p.at[at].is
	p.forget(at)
	p.at[at].is = is | going
	if is == kept {
		p.due = min(max(p.due, 0)+sample-1, sample*together)
	} else {
		p.due--
	}
	p.tried = [2]int{}
}
