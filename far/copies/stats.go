package copies

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"polder/far/store"
)

// counts are the counters of a store.
type counts struct {
	lost, copiesLost        atomic.Int64
	condemned               atomic.Int64
	repaired, repairedBytes atomic.Int64
	repairTime              time.Duration // time of repairs that have ended; guarded by Store.mu
	sealed                  atomic.Int64
	vanished, promoted      atomic.Int64
	seconds, secondsUsed    atomic.Int64
}

// Stats is the state of a store, and what it has done.
type Stats struct {
	Places     []PlaceStats
	Segments   int // in use
	Endangered int // segments that have fewer copies than they should at places that answer
	Spares     int // segments that have a spare copy, which may vanish

	Doubted int // segments that wait for a copy at a place that was given up: see Explain
	Bare    int // segments that lack a copy at a place with Every

	Lost          int64         // segments of which all copies were lost, and with them what was written to them
	CopiesLost    int64         // copies that were lost with their place
	Condemned     int64         // copies that had other bytes than were written
	Repaired      int64         // copies that were made in the place of others
	RepairedBytes int64         // bytes copied for repairs, balancing and spare copies
	RepairTime    time.Duration // during which segments were being repaired
	Sealed        int64         // segments that were closed because a copy was late or failed
	Vanished      int64         // spare copies that were dropped, since their host needed the memory
	Promoted      int64         // spare copies that have taken the place of a copy that was lost or had to move
	Seconds       int64         // reads that were made at a second copy because the first was late
	SecondsUsed   int64         // second reads whose bytes were used
}

// PlaceStats is a place's state.
type PlaceStats struct {
	Name, Zone string
	State      string // up, leaving, silent, down
	Copies     int
	Late       int64 // how often it was late
	Owed       int   // copies to be given back when the place answers
}

// Stats returns the store's statistics. They are not taken at one instant.
func (s *Store) Stats() Stats {
	c := &s.counts
	st := Stats{
		Lost: c.lost.Load(), CopiesLost: c.copiesLost.Load(), Condemned: c.condemned.Load(),
		Repaired: c.repaired.Load(), RepairedBytes: c.repairedBytes.Load(), Sealed: c.sealed.Load(), Vanished: c.vanished.Load(), Promoted: c.promoted.Load(),
		Seconds: c.seconds.Load(), SecondsUsed: c.secondsUsed.Load(),
	}
	s.mu.Lock()
	st.Segments = len(s.segments)
	st.RepairTime = c.repairTime
	if s.repairing > 0 {
		st.RepairTime += s.proc.Since(s.began)
	}
	for g := range s.segments {
		bare := g.bare()
		if bare {
			st.Bare++
		}
		if bare || reachable(shared(*g.copies.Load())) < s.cfg.Copies {
			st.Endangered++
		}
		if g.doubted() {
			st.Doubted++
		}
		if g.spare.Load() != nil {
			st.Spares++
		}
	}
	s.mu.Unlock()
	for _, p := range s.all() {
		ps := PlaceStats{Name: p.Name, State: "up", Copies: p.segments(), Late: p.late.Load()}
		if p.Zone != nil {
			ps.Zone = p.Zone()
		}
		switch at := p.state(); {
		case !at.Usable:
			ps.State = "down"
		case p.silent.Load():
			ps.State = "silent"
		case at.Leaving:
			ps.State = "leaving"
		}
		p.mu.Lock()
		ps.Owed = len(p.owed)
		p.mu.Unlock()
		st.Places = append(st.Places, ps)
	}
	return st
}

// doubted reports whether g waits for a copy at a place that was given up, since it is suspected.
func (g *segment) doubted() bool {
	return g.suspicions.Load() > 0 && slices.ContainsFunc(*g.copies.Load(), func(c copyOf) bool { return c.place.givenUp.Load() })
}

// Everywhere reports whether there is a place with Every, all such places can be used, and each segment has a copy at
// each of them.
func (s *Store) Everywhere() bool {
	n := 0
	for _, p := range s.all() {
		if p.Every {
			n++
			if !p.usable() {
				return false
			}
		}
	}
	return n > 0 && s.full.Load() == s.bare.Load()
}

// CopiesOf returns how many copies a segment has at places that answer.
func (s *Store) CopiesOf(seg store.Segment) int { return reachable(*seg.(*segment).copies.Load()) }

// Explain says in sentences what an operator should know about the copies.
func (s *Store) Explain() (lines []string) {
	st := s.Stats()
	if s.cfg.Copies == 1 {
		lines = append(lines, fmt.Sprintf("Each of %d far segments is at one node, and lost with it.", st.Segments))
	} else {
		lines = append(lines, fmt.Sprintf("Each of %d far segments is to have %d copies.", st.Segments, s.cfg.Copies))
	}
	if st.Spares > 0 {
		lines = append(lines, fmt.Sprintf("%d of them have one more at a node that lends what its host does not need. It may vanish at any time, so it does not count; until then it is read where it is nearer, and takes the place of one that is lost.", st.Spares))
	}
	if st.Bare > 0 {
		lines = append(lines, fmt.Sprintf("%d of them have no copy on the disk, and are lost with the power of all nodes: they are copied as soon as it can be written and has room.", st.Bare))
	}
	if st.Endangered > st.Bare {
		lines = append(lines, fmt.Sprintf("%d of them have fewer, and may be lost with one node more: they are copied as soon as nodes have room for them.", st.Endangered))
	}
	if st.Doubted > 0 {
		lines = append(lines, fmt.Sprintf("%d of them wait for a copy at a node that does not answer: in those that are left something is wrong, or not known to be right.", st.Doubted))
	}
	for _, p := range st.Places {
		switch p.State {
		case "down":
			lines = append(lines, fmt.Sprintf("%s cannot be reached. It has %d copies.", p.Name, p.Copies))
		case "leaving":
			lines = append(lines, p.leaves(s.cfg.Copies, st.Places))
		case "silent":
			lines = append(lines, fmt.Sprintf("%s does not answer. It has %d copies.", p.Name, p.Copies))
		}
	}
	if st.Lost > 0 {
		lines = append(lines, fmt.Sprintf("%d segments were lost, with all their copies.", st.Lost))
	}
	return lines
}

// leaves says how far p, which is leaving, has come.
func (p *PlaceStats) leaves(copies int, all []PlaceStats) string {
	if p.Copies == 0 {
		return p.Name + " is leaving. Nothing is there any more."
	}
	stay := 0
	for _, o := range all {
		if o.State == "up" {
			stay++
		}
	}
	if stay < copies {
		return fmt.Sprintf("%s is leaving, but its %d copies cannot be moved: that takes %d other nodes that stay, and there are %d. Start another, or have it end by force.", p.Name, p.Copies, copies, stay)
	}
	return fmt.Sprintf("%s is leaving. %d copies are still to be moved elsewhere.", p.Name, p.Copies)
}
