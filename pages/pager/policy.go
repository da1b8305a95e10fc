package pager

import "slices"

// policy says which page of a mapping is evicted next. It is told when a page comes and when it goes, but never that
// a page that is there is read.
//
// Pages are young when they come, and the oldest young page is evicted. If fewer pages are kept than may be, however,
// the oldest young page becomes a kept one, and the next one is considered. So the pages that came first stay, and a
// client that goes round a loop that is larger than its frames finds a part of it each time: if the oldest of all
// pages were evicted, each page would go just before it is needed. Kept pages also stay while something is scanned
// only once.
//
// Which pages are kept changes for two reasons. One in 32 evicted pages is a kept page, chosen from anywhere among
// the kept ones. And a young page that comes back in less than half the time that evicted kept pages take to come
// back is kept from then on. Time is counted in evictions. An evicted kept page is judged when it comes back, or when
// it has been away half as long again as the average: then it counts as taking twice the time that it has been away,
// which makes the average longer. In a large loop this takes long, and many pages are away meanwhile of which nothing
// is known yet.
type policy struct {
	at    []place // by frame; the last one is the end of the queue of young pages
	count [2]int  // of young pages, and of kept pages
	tried [2]int  // how many of them next has returned since a page was chosen
	most  int     // how many pages may be kept
	hand  int     // the frame that anyKept returned last, or has come to

	evicted uint32     // pages
	due     int        // how many more young pages are chosen before a kept one
	away    int        // recent times the average number of evictions until a kept page came back, or was given up
	watch   [64]uint32 // which evictions were of kept pages that are not judged yet, oldest first
	watched int        // length of watch in use
}

// place is the state of a frame's page. Young pages are linked in a queue, which is a ring.
type place struct {
	next, prev uint32
	is         uint8
}

const (
	young uint8 = iota
	kept
	nothing
	going = 4 // flag: the page, young or kept, is about to be evicted

	sample = 32 // one in this many evicted pages is a kept one
	recent = 32 // pages that policy.away averages over
	// sparse is how many pages are watched at most in the average time that they take to come back, so that they do
	// not all come from one part of a loop.
	sparse = 16
	step   = 2654435761 // a prime, so that anyKept comes to all frames

	// What policy.gone returns about an evicted page.
	wasHere   = 1 << 31
	wasKept   = 1 << 30
	countMask = 1<<29 - 1 // the value of policy.evicted
)

// newPolicy makes a policy for this many frames, of which free are free most of the time. It leaves room for at least
// young young pages, or a few more, but always lets a quarter of the frames be kept.
func newPolicy(frames, free, young int) *policy {
	p := &policy{at: make([]place, frames+1), most: max(frames-free-max(young, 2*batch), frames/4), away: frames * recent}
	for i := range frames {
		p.at[i].is = nothing
	}
	p.at[frames] = place{p.end(), p.end(), nothing}
	return p
}

// end is the entry of at before the oldest frame of the queue, and behind the youngest.
func (p *policy) end() uint32 { return uint32(len(p.at) - 1) }

// came records that a frame has a page now. was is what gone has returned when the page was last evicted, or 0.
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

// gone records that the page of a frame was evicted, and returns what to pass to came if the page comes back.
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

// judge records after how many evictions (away) the i-th watched page has come back, or is assumed to, and stops
// watching it.
func (p *policy) judge(i, away int) {
	p.watched--
	copy(p.watch[i:p.watched], p.watch[i+1:])
	p.away += min(away, 4*len(p.at)) - p.away/recent
}

// forget records that a frame has no page any more, if it had one.
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

// stays records that a page that was chosen is not evicted.
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

// next returns the frame whose page should go. If it is called again before chose is, it returns another one, and in
// the end all.
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
	if p.tried[is] >= 2*p.count[is] { // the caller could evict none of them
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

// anyKept returns a frame whose page is kept. Repeated calls come to all of them, in an order unrelated to that of
// their pages: otherwise a client that goes round a loop could find, again and again, that the next page has just
// gone.
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

// chose records that the page that next has returned is about to be evicted. From then on the page counts as gone: if
// one page more is kept than may be, then one of the pages that are chosen together is a kept one, and not all of
// them.
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
