package pager

import "slices"

// policy says which page of a mapping is evicted next. It learns of a page when it comes and when it goes, but never that a
// page that is there is read.
//
// Pages that come are young, and the oldest of them is evicted, unless fewer are kept than may be: then it is kept, and the
// next one looked at. So what came first stays, and who goes round a loop that is too large finds a part of it each time: if
// the oldest of all were evicted, each page would go just before it is needed. The same holds for what is scanned only once.
//
// Which pages are kept changes for two reasons. One of 32 that are evicted was kept, and is taken from anywhere among those. And
// a young page that comes back in less than half the time that they take is kept from then on. If they do not come back, that
// time becomes longer: they are judged when they come back, or have been away for half as long again as others were. In a large
// loop that takes long, and many are on their way meanwhile, of which nothing is known yet.
type policy struct {
	at    []place // of each frame; then the end of the queue of young ones
	count [2]int  // frames that are young, and that are kept
	tried [2]int  // of them, since a page was chosen
	most  int     // how many may be kept
	hand  int     // the frame of those that are kept that was the latest to be said

	evicted uint32     // pages
	due     int        // how many pages that are young are chosen before one that was kept
	away    int        // after how many evictions those came back, or were given up, times recent
	watch   [64]uint32 // which of the evictions were of pages that had been kept and are not judged yet, the oldest first
	watched int        // how many there are
}

// place is what a frame's page is. If it is young, it is in a queue, which goes round.
type place struct {
	next, prev uint32
	is         uint8
}

const (
	young uint8 = iota
	kept
	nothing
	going = 4 // it was young or kept, and is about to be evicted

	sample = 32         // one of so many is of those that are kept
	recent = 32         // pages of which an average of times is made
	sparse = 16         // so many pages are watched at most in the time that they take, so that those are not all from one part of a loop
	step   = 2654435761 // a prime, so that it comes to all frames

	// What policy says of a page that was evicted.
	wasHere   = 1 << 31
	wasKept   = 1 << 30
	countMask = 1<<29 - 1 // policy.evicted then
)

// newPolicy makes a policy for so many frames, of which so many are free most of the time, and has at least so many for those
// that are young, or a few more.
func newPolicy(frames, free, young int) *policy {
	p := &policy{at: make([]place, frames+1), most: max(frames-free-max(young, 2*batch), frames/4), away: frames * recent}
	for i := range frames {
		p.at[i].is = nothing
	}
	p.at[frames] = place{p.end(), p.end(), nothing}
	return p
}

// end is before the oldest frame of the queue, and behind the youngest.
func (p *policy) end() uint32 { return uint32(len(p.at) - 1) }

// came takes in that a frame has a page now. Was is what gone said of the page, or 0.
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

// gone takes in that the page of a frame was evicted, and returns what to tell came if it comes back.
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

// judge takes in after how many evictions the i-th page that is watched has come back, or is guessed to.
func (p *policy) judge(i, away int) {
	p.watched--
	copy(p.watch[i:p.watched], p.watch[i+1:])
	p.away += min(away, 4*len(p.at)) - p.away/recent
}

// forget takes in that a frame has no page any more, if it had one.
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

// stays takes in that a page which was chosen is not evicted.
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

// next says whose page should go. If it is asked again before chose is called, it says another, and comes to all in the end.
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

// anyKept says one of the frames that are kept, and comes to all of them in an order that has nothing to do with that of their
// pages: whoever goes round a loop is not to find, again and again, that the next one has just gone.
//
// Preconditions: there is one.
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

// chose takes in that the page which next has said is about to be evicted. From then on it counts as gone: of those that are
// chosen together there is one more of those that are kept than may be, and not all.
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
