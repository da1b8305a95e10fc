package partition

import (
	"math"
	"time"
)

// Level is roughly the load of a partition: the time that it takes in a second. Each level is 6 % more than the level
// below, so that the map needs one byte for a partition.
type Level uint8

const (
	unknown Level = iota // no owner has reported it
	idle                 // less than leastTime in a second
)

const (
	leastTime     = 100 * time.Microsecond // in a second; the time of the level above idle
	levelsToTwice = 12                     // so many levels up, the time is twice as long
	clearly       = 2.5                    // levels by which a time must differ to change the level
)

// Time is how much of a second the partition takes, which may be more than a second with many processors.
func (l Level) Time() time.Duration {
	if l <= idle {
		return 0
	}
	return time.Duration(float64(leastTime) * math.Exp2(float64(l-idle-1)/levelsToTwice))
}

// at returns the level for a time in a second. It returns l itself unless the time differs clearly from that of l.
func (l Level) at(t time.Duration) Level {
	exact := float64(idle)
	if t > 0 {
		exact = min(max(exact, float64(idle)+1+levelsToTwice*math.Log2(float64(t)/float64(leastTime))), math.MaxUint8)
	}
	if l != unknown && math.Abs(exact-float64(l)) < clearly {
		return l
	}
	return Level(math.Round(exact))
}

// meter smooths how much time a partition takes.
type meter struct {
	spent     time.Duration // at the last reading
	since, at time.Time     // of the first and of the last reading
	rate      float64       // time spent per time passed, smoothed
}

// read records the time spent since the partition was opened. Readings older than over count little.
func (r *meter) read(now time.Time, spent, over time.Duration) {
	passed := now.Sub(r.at)
	switch {
	case r.at.IsZero() || spent < r.spent: // the first reading, or the partition was opened again
		*r = meter{since: now}
	case passed <= 0:
		return
	default:
		weight := max(1-math.Exp(-float64(passed)/float64(over)), float64(passed)/float64(now.Sub(r.since)))
		r.rate += weight * (float64(spent-r.spent)/float64(passed) - r.rate)
	}
	r.spent, r.at = spent, now
}

// measure writes into the map the load of each partition that has been open here for at least smoothBeats. Until then
// the load that the previous owner has reported stays.
//
// Preconditions: changing is held.
func (m *Member) measure(to *Map) {
	if m.cfg.Spent == nil {
		return
	}
	now, over := time.Now(), smoothBeats*m.cfg.Beat
	meters := map[int]*meter{}
	m.mu.Lock()
	for p, s := range m.parts {
		if s.open {
			meters[p] = m.meters[p]
		}
	}
	m.mu.Unlock()
	m.meters = meters
	for p, r := range meters {
		if r == nil {
			r = new(meter)
			meters[p] = r
		}
		r.read(now, m.cfg.Spent(p), over)
		if to.Owner[p] == m.cfg.ID && now.Sub(r.since) >= over {
			to.Load[p] = to.Load[p].at(time.Duration(r.rate * float64(time.Second)))
		}
	}
}
