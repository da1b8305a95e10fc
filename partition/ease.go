package partition

import "time"

// When partitions move because of load. Times are in beats.
const (
	smoothBeats = 30 // over which the load of a partition is smoothed
	watchBeats  = 30 // for which a server must have had too much before a partition moves
	stayBeats   = 60 // for which a partition stays that has moved
	clearlyLess = 8  // the part of what a server has to do that must be taken off it
	// leastBurden is the time in a second that a server must have to do, so that it matters.
	leastBurden = 20 * time.Millisecond
)

// burden is what a server has to do.
type burden struct {
	partitions int
	time       time.Duration // in a second
}

// Burden is how many partitions a server has, and how much of a second they take; known is false if that is not known of all of them.
func (m *Map) Burden(id string) (partitions int, t time.Duration, known bool) {
	known = true
	for p, owner := range m.Owner {
		if owner == id {
			partitions++
			t += m.Load[p].Time()
			known = known && m.Load[p] != unknown
		}
	}
	return partitions, t, known
}

// burdens are what the servers have to do, in their order. They are nil while servers leave or partitions are on their way, or if it is not known of all of them how
// much there is to do.
func (m *Map) burdens() []burden {
	all := make([]burden, len(m.Servers))
	for i := range m.Servers {
		if m.Servers[i].Leaving {
			return nil
		}
	}
	for p, owner := range m.Owner {
		i, ok := m.find(owner)
		if !ok || m.Next[p] != "" || m.Load[p] == unknown {
			return nil
		}
		all[i].partitions++
		all[i].time += m.Load[p].Time()
	}
	return all
}

// relief is the partition, of those that do not stay, with which most is taken off server i, and the server that is to get it: the one that has least to do.
// The partition is nobody if that is not worth it: if by no such move, and by no row of them, the greater one of what the two have to do gets clearly less.
func (m *Map) relief(all []burden, i int, stays func(p int) bool) (p, to int) {
	least, most := bounds(m.Partitions, len(all))
	to = nobody
	for j, b := range all {
		if b.partitions < most && (to == nobody || b.time < all[to].time) {
			to = j
		}
	}
	from := all[i]
	if to == nobody || from.time < leastBurden || from.partitions <= least {
		return nobody, nobody
	}
	best, row, gap, worth := nobody, time.Duration(0), from.time-all[to].time, from.time/clearlyLess
	less := func(q int) time.Duration { return min(m.Load[q].Time(), gap-m.Load[q].Time()) }
	for q, owner := range m.Owner {
		if owner != m.Servers[i].ID || stays(q) {
			continue
		}
		fits := m.Load[q].Time() <= gap/2
		if fits {
			row += less(q)
		}
		if (fits || less(q) >= worth) && (best == nobody || less(q) > less(best)) {
			best = q
		}
	}
	if best == nobody || max(less(best), min(row, gap/2)) < worth {
		return nobody, nobody
	}
	return best, to
}

// ease plans at most one move because of load, from the server that has most to do of those that have had too much for a while. It uses no clock and no chance.
// The move goes with the Extra of the two servers, so that step does not plan the way back.
//
// Preconditions: step has been called.
func ease(m *Map, pressed func(id string) bool, stays func(p int) bool) bool {
	all := m.burdens()
	part, from, to := nobody, nobody, nobody
	for i, b := range all {
		if !pressed(m.Servers[i].ID) || from != nobody && b.time <= all[from].time {
			continue
		}
		if p, t := m.relief(all, i, stays); p != nobody {
			part, from, to = p, i, t
		}
	}
	if part == nobody {
		return false
	}
	for i, b := range all {
		m.Servers[i].Extra = b.partitions - m.Partitions/len(all)
	}
	m.Servers[from].Extra--
	m.Servers[to].Extra++
	m.Next[part] = m.Servers[to].ID
	return true
}

// watch takes note of since when servers have had too much, and partitions their owners.
//
// Preconditions: mu is held.
func (m *Member) watch(was, now *Map, t time.Time) {
	if was == nil || !was.sameOwners(now) {
		clear(m.pressed)
	}
	for p, owner := range now.Owner {
		if was == nil || was.Owner[p] != owner {
			m.moved[p] = t
		}
	}
	all := now.burdens()
	pressed := map[string]time.Time{}
	for i := range all {
		if p, _ := now.relief(all, i, func(int) bool { return false }); p != nobody {
			id := now.Servers[i].ID
			if pressed[id] = t; !m.pressed[id].IsZero() {
				pressed[id] = m.pressed[id]
			}
		}
	}
	m.pressed = pressed
}

// ease is ease with what this member has seen.
func (m *Member) ease(to *Map) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	ease(to, func(id string) bool {
		since, ok := m.pressed[id]
		return ok && now.Sub(since) >= watchBeats*m.cfg.Beat
	}, func(p int) bool { return now.Sub(m.moved[p]) < stayBeats*m.cfg.Beat })
}
