package logmodel

import "math/bits"

// The model of copies: a log in segments that should have two copies each, at three places of which some are away for a time, and come
// back with their memory or without. Fewer copies are made while there are fewer places, but no fewer than so many as --min-copies says.
// A write is acknowledged when all copies have it with which its segment was opened. A copy that is late, or away, closes the segment at
// the length acknowledged, and writing goes on in another one. What lacks copies is copied. An owner may die at any time; who opens the log
// next takes the longest copy of the open segment that can be reached, and lets go of no copy that cannot be.
//
// One server at a time has the log: to tell owners apart is another model's matter.

const (
	cpPlaces   = 3
	cpCopies   = 2
	cpSegments = 3
)

// A copy is nothing, or what was written to it, or lost with its place's memory.
const (
	cpAbsent = 0
	cpLost   = 255 // others are 1 + the number of writes that it has
)

type cpSegment struct {
	listed bool
	sealed bool
	from   uint8 // number of the first write
	n      uint8 // writes: sent so far, or how long it is once it is sealed
	at     [cpPlaces]uint8
	copies uint8 // the manifest: where copies are
	unsure uint8 // the manifest: those of them that may lack something
	owed   uint8 // where copies are that had all, and that no full number of others has replaced
	fresh  uint8 // where a copy is being made that is not listed yet
}

type cpState struct {
	seg   [cpSegments]cpSegment
	away  uint8 // places
	alive bool  // the log has an owner
	cur   uint8 // 1 + the open segment
	mask  uint8 // copies that an acknowledgement waits for
	sent  uint8 // number of the last write
	acked uint8

	crashes, leaves, wipes uint8
	bad                    string
}

type copying struct {
	broken                         string
	least                          int // --min-copies
	writes, crashes, leaves, wipes uint8
}

func (c copying) model() model[cpState] {
	return model[cpState]{cpState{alive: true}, c.steps, c.wrong, c.lacking}
}

// full are the copies of g that have everything, and can be reached if that is asked for.
func (s *cpState) full(g *cpSegment, reached bool) (mask uint8) {
	for n, at := range g.at {
		if at != cpLost && at > g.n && (!reached || s.away&bit(n) == 0) {
			mask |= bit(n)
		}
	}
	return mask
}

func (c copying) wrong(s *cpState) string {
	if s.bad != "" {
		return s.bad
	}
	for w := uint8(1); w <= s.acked; w++ {
		there := false
		for t := range s.seg {
			g := &s.seg[t]
			if !g.listed || w < g.from || w >= g.from+g.n {
				continue
			}
			for n, at := range g.at {
				there = there || g.copies&bit(n) != 0 && at != cpLost && at > w-g.from+1
			}
		}
		if !there {
			return "a write that was acknowledged is lost"
		}
	}
	for t := range s.seg {
		for n, at := range s.seg[t].at {
			if s.seg[t].copies&bit(n) != 0 && at == cpAbsent {
				return "a copy that the manifest lists was given back"
			}
		}
	}
	return ""
}

func (c copying) lacking(s *cpState) string {
	if !s.alive {
		return "the log has no owner"
	}
	for t := range s.seg {
		g := &s.seg[t]
		for n, at := range g.at {
			if at != cpAbsent && g.copies&bit(n) == 0 {
				return "a copy is kept that nobody needs"
			}
		}
		if g.listed && (bits.OnesCount8(g.copies) < cpCopies || g.sealed && s.full(g, true)&^g.unsure != g.copies) {
			return "a segment has fewer copies than it should"
		}
	}
	if s.cur == 0 || s.away != 0 {
		return "nothing can be written"
	}
	return ""
}

func (c copying) steps(s *cpState, o *offers[cpState]) {
	c.places(s, o)
	if !s.alive {
		c.open(s, o)
		return
	}
	if s.crashes < c.crashes {
		to := *s
		to.crashes++
		to.alive, to.cur, to.mask = false, 0, 0
		for t := range to.seg {
			g := &to.seg[t]
			for n, at := range g.at {
				if g.fresh&bit(n) != 0 && at == cpLost {
					g.at[n] = cpAbsent
				}
			}
			g.fresh = 0
		}
		o.may(to, "the owner dies")
	}
	c.write(s, o)
	for t := range s.seg {
		if s.seg[t].listed && s.seg[t].sealed {
			c.repair(s, t, o)
		}
	}
	c.prune(s, o)
}

// places are what happens to them. No place loses its memory that has the last good copy of something.
func (c copying) places(s *cpState, o *offers[cpState]) {
	for n := range cpPlaces {
		to := *s
		if s.away&bit(n) != 0 {
			to.away &^= bit(n)
			o.will(to, "place %v is back", n)
		} else if s.leaves < c.leaves {
			to.away |= bit(n)
			to.leaves++
			o.may(to, "place %v cannot be reached", n)
		}
		if s.wipes == c.wipes {
			continue
		}
		to, had, last := *s, false, false
		for t := range to.seg {
			g := &to.seg[t]
			if g.at[n] == cpAbsent || g.at[n] == cpLost {
				continue
			}
			had = true
			// Others are promised to be there: by the manifest, or since they were and nothing has taken their place.
			others := uint8(0)
			for p, at := range g.at {
				if p != n && at != cpLost && (g.copies&^g.unsure|g.owed)&bit(p) != 0 {
					others |= bit(p)
				}
			}
			last = last || g.listed && g.copies&bit(n) != 0 && others == 0
			if g.at[n] = cpLost; (g.copies|g.fresh)&bit(n) == 0 {
				g.at[n] = cpAbsent
			}
		}
		if to.wipes++; had && !last {
			o.may(to, "place %v loses its memory", n)
		}
	}
}

// write is what the owner does with the open segment.
func (c copying) write(s *cpState, o *offers[cpState]) {
	if s.cur == 0 {
		c.another(s, o)
		return
	}
	t := int(s.cur) - 1
	g := &s.seg[t]
	acked := s.acked + 1 - g.from // in this segment
	if s.sent < c.writes {
		to := *s
		to.sent++
		to.seg[t].n++
		o.may(to, "write %v is sent to the copies of segment %v", int(to.sent), t)
	}
	short, late := false, false
	for n, at := range g.at {
		if s.mask&bit(n) == 0 {
			continue
		}
		if s.away&bit(n) == 0 && at != cpLost && at <= g.n {
			to := *s
			to.seg[t].at[n]++
			o.will(to, "write %v arrives at place %v", int(g.from+at)-1, n)
		}
		short = short || s.away&bit(n) != 0 || at == cpLost
		late = late || at != cpLost && at <= g.n
		if c.broken == "write-on-with-fewer" && bits.OnesCount8(s.mask) > 1 && s.away&bit(n) != 0 {
			to := *s
			to.mask &^= bit(n)
			o.may(to, "the owner writes on without place %v", n)
		}
	}
	all, some := true, 0
	for n, at := range g.at {
		has := at != cpLost && at > acked+1
		if s.mask&bit(n) != 0 {
			all = all && has
			if has {
				some++
			}
		}
	}
	if acked < g.n && (all || c.broken == "late-counts" && some > 0) {
		to := *s
		to.acked++
		to.seg[t].owed |= s.mask
		if some < c.least {
			to.bad = "a write was acknowledged with fewer copies than there have to be"
		}
		o.will(to, "write %v is acknowledged, which %v copies have", int(to.acked), some)
	}
	up := cpPlaces - bits.OnesCount8(s.away)
	if few := bits.OnesCount8(s.mask) < cpCopies && up >= cpCopies; short || late || few {
		to := *s
		to.cur, to.mask = 0, 0
		to.seal(t, acked)
		if short || few {
			o.will(to, "segment %v is closed with the %v writes acknowledged", t, int(acked))
		} else {
			o.may(to, "segment %v is closed with the %v writes acknowledged, as a copy is late", t, int(acked))
		}
	}
}

// seal has the manifest say that segment t has n writes. What is beyond them is never looked at.
func (s *cpState) seal(t int, n uint8) {
	g := &s.seg[t]
	g.sealed, g.n = true, n
	for p, at := range g.at {
		if at != cpLost {
			g.at[p] = min(at, n+1)
		}
	}
	if n == 0 {
		g.listed, g.copies, g.unsure, g.owed = false, 0, 0, 0
		for p, at := range g.at {
			if at == cpLost {
				g.at[p] = cpAbsent
			}
		}
	}
}

// another opens a segment, with as many copies as there can be. What was sent and not acknowledged is sent again.
func (c copying) another(s *cpState, o *offers[cpState]) {
	t := 0
	for t < cpSegments && (s.seg[t].listed || s.seg[t].at != [cpPlaces]uint8{}) {
		t++
	}
	up := cpPlaces - bits.OnesCount8(s.away)
	least := c.least
	if c.broken == "fewer-than-least" {
		least = 1
	}
	if t == cpSegments || up < least {
		return
	}
	for mask := uint8(1); mask < 1<<cpPlaces; mask++ {
		if mask&s.away != 0 || bits.OnesCount8(mask) != min(up, cpCopies) {
			continue
		}
		if mask != 3 && s.wipes+s.leaves+s.sent == 0 {
			continue // the places are still all the same
		}
		to := *s
		g := &to.seg[t]
		*g = cpSegment{listed: true, from: s.acked + 1, n: s.sent - s.acked, copies: mask}
		for n := range g.at {
			if mask&bit(n) != 0 {
				g.at[n] = 1
			}
		}
		to.cur, to.mask = uint8(t)+1, mask
		o.will(to, "segment %v is opened at place %v", t, these(mask))
	}
}

// open is how who comes next gets the log: it decides how long the open segment is.
func (c copying) open(s *cpState, o *offers[cpState]) {
	to := *s
	for t := range to.seg {
		g := &to.seg[t]
		if !g.listed || g.sealed {
			continue
		}
		reached, longest := uint8(0), uint8(0)
		for n, at := range g.at {
			if g.copies&bit(n) == 0 || s.away&bit(n) != 0 {
				continue
			}
			if at != cpLost {
				reached |= bit(n)
				longest = max(longest, at-1)
			} else if c.broken == "empty-is-a-copy" {
				reached |= bit(n)
			}
		}
		if reached == 0 && c.broken != "open-without" {
			return // until a copy can be reached
		}
		missing := g.copies &^ reached
		for n := range g.at {
			if reached&bit(n) != 0 && g.at[n] != cpLost {
				g.at[n] = longest + 1
			}
		}
		to.seal(t, longest)
		if longest > 0 {
			if g.unsure |= missing; c.broken == "unsure-counts" {
				g.unsure = 0
			}
			g.owed = g.owed&missing&s.full(g, false) | reached
		}
		if c.broken == "let-go-of-the-absent" {
			g.copies &^= missing
			g.unsure &^= missing
		}
		to.acked = max(to.acked, g.from+longest-1) // whoever reads is shown it
	}
	to.alive, to.sent = true, to.acked
	o.will(to, "a server opens the log, and has what there is up to write %v", int(to.acked))
}

// repair gives sealed segment t the copies that it lacks.
func (c copying) repair(s *cpState, t int, o *offers[cpState]) {
	g := &s.seg[t]
	lost := uint8(0)
	for n, at := range g.at {
		if at == cpLost {
			lost |= bit(n)
		}
		if g.unsure&bit(n) != 0 && s.away&bit(n) == 0 && at != cpLost && (at > g.n || s.full(g, true)&g.copies&^g.unsure != 0) {
			to := *s
			h := &to.seg[t]
			h.at[n] = g.n + 1
			h.unsure &^= bit(n)
			h.owed |= bit(n)
			o.will(to, "the copy of segment %v at place %v gets what it may lack", t, n)
		}
	}
	good := s.full(g, true) & g.copies &^ g.unsure
	if c.broken == "empty-is-full" {
		good |= lost & g.copies
	}
	source := s.full(g, true) & g.copies &^ g.unsure
	if c.broken == "copy-from-unsure" {
		for n, at := range g.at {
			if g.copies&bit(n) != 0 && at != cpLost && s.away&bit(n) == 0 {
				source |= bit(n)
			}
		}
	}
	if g.fresh != 0 { // it is complete, and is to be listed
		to := *s
		h := &to.seg[t]
		h.copies |= g.fresh
		h.owed |= g.fresh
		h.fresh = 0
		c.settle(&to, t, good|g.fresh)
		o.will(to, "the manifest lists the copy of segment %v at place %v", t, these(g.fresh))
		return
	}
	if bits.OnesCount8(good) >= cpCopies {
		to := *s
		c.settle(&to, t, good)
		if to != *s {
			o.will(to, "the manifest lists no copy of segment %v any more that is not needed", t)
		}
		return
	}
	for n := range g.at {
		// A copy that is away may be back: for a time, none is made in its place, which is why this may be done.
		if bit(n)&(s.away|g.copies&^lost) != 0 || source == 0 || g.at[n] != cpAbsent && g.at[n] != cpLost {
			continue
		}
		to := *s
		h := &to.seg[t]
		h.at[n] = g.n + 1
		if c.broken == "copy-from-unsure" {
			for p, at := range g.at {
				if source&bit(p) != 0 {
					h.at[n] = min(h.at[n], at)
				}
			}
		}
		h.fresh = bit(n)
		if h.copies&bit(n) != 0 { // it was lost there
			h.copies &^= bit(n)
			h.unsure &^= bit(n)
			h.owed &^= bit(n)
		}
		if c.broken == "free-before-listed" {
			for p := range h.at {
				if h.unsure&bit(p) != 0 && s.away&bit(p) == 0 && h.at[p] != cpLost {
					h.at[p] = cpAbsent
				}
			}
		}
		if c.broken == "never-again" && lost != 0 {
			continue
		}
		o.will(to, "segment %v is copied to place %v", t, n)
	}
}

// settle has the manifest list the good copies of segment t alone, if there are enough of them.
func (c copying) settle(s *cpState, t int, good uint8) {
	g := &s.seg[t]
	for n, at := range g.at {
		gone := at == cpLost && c.broken != "empty-is-full" || bits.OnesCount8(good) >= cpCopies && good&bit(n) == 0
		if g.copies&bit(n) != 0 && gone {
			g.copies &^= bit(n)
			g.unsure &^= bit(n)
			g.owed &^= bit(n)
			if at == cpLost {
				g.at[n] = cpAbsent
			}
		}
	}
	for bits.OnesCount8(g.copies) > cpCopies {
		g.copies &= g.copies - 1
	}
	g.owed &= g.copies
}

// prune has places give back what the manifest does not list there.
func (c copying) prune(s *cpState, o *offers[cpState]) {
	for t := range s.seg {
		g := &s.seg[t]
		for n, at := range g.at {
			if s.away&bit(n) != 0 || at == cpAbsent || at == cpLost || g.fresh&bit(n) != 0 {
				continue
			}
			if g.copies&bit(n) == 0 || c.broken == "prune-the-unreached" && g.unsure&bit(n) != 0 {
				to := *s
				if to.seg[t].at[n] = cpAbsent; !g.listed && to.seg[t].at == [cpPlaces]uint8{} {
					to.seg[t] = cpSegment{}
				}
				o.will(to, "place %v gives its copy of segment %v back", n, t)
			}
		}
	}
}
