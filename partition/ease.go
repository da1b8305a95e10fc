package partition

import "time"

// When partitions move because of load. Times are in beats.
const (
	smoothBeats = 30 // over which the load of a partition is smoothed
	watchBeats  = 30 // for which a server must have had too much to do before a partition moves
	stayBeats   = 60 // for which a partition stays after it has moved
	clearlyLess = 8  // moves must take at least this part (an eighth) of its load off a server
	// leastBurden is the load, in a second, below which a server never has too much to do.
	leastBurden = 20 * time.Millisecond
)

// burden is the load of a server.
type burden struct {
	partitions int
	time       time.Duration // in a second
}

// Burden is how many partitions a server has, and how much of a second they take. known is false if the load of one
// of them is unknown.
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

// burdens returns the load of each server, in the order of Servers. It returns nil while a server is leaving, while a
// partition has no owner or is to move, or if the load of a partition is unknown.
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

// relief chooses the partition whose move takes most off server i, among those that stays does not exclude, and the
// server that is to get it: the one that has least to do. It returns nobody twice if no such move, and no series of
// them, makes the greater load of the two servers clearly less.
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

// ease plans at most one move because of load: away from the server that has most to do among those that have had too
// much for a while (pressed). It uses neither clock nor chance. It changes Extra of the two servers with the move, so
// that step does not plan the way back.
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

// watch records since when each server has had too much to do, and when each partition got its owner.
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

// ease calls the function ease with what this member has seen.
func (m *Member) ease(to *Map) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	ease(to, func(id string) bool {
		since, ok := m.pressed[id]
		return ok && now.Sub(since) >= watchBeats*m.cfg.Beat
	}, func(p int) bool { return now.Sub(m.moved[p]) < stayBeats*m.cfg.Beat })
}
