package partition

import (
	"math"
	"time"
)

// Level is roughly how much a partition gives its owner to do: the time that it takes in a second. A level is 6 % more than the one before, so that the
// map has one byte for a partition.
type Level uint8

const (
	unknown Level = iota // nobody has said it
	idle                 // less than leastTime
)

const (
	leastTime     = 100 * time.Microsecond // in a second, of the level after idle
	levelsToTwice = 12                     // how many levels double the time
	clearly       = 2.5                    // by how many levels a time must be another one
)

// Time is how much of a second the partition takes, which may be more than a second with many processors.
func (l Level) Time() time.Duration {
	if l <= idle {
		return 0
	}
	return time.Duration(float64(leastTime) * math.Exp2(float64(l-idle-1)/levelsToTwice))
}

// at is the level for a time in a second, which stays as it is until the time is clearly another one.
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
	spent     time.Duration // when it was read last
	since, at time.Time     // when it was read first, and last
	rate      float64       // of time spent to time
}

// read takes note of the time spent since the partition was opened. What was read longer ago than over counts little.
func (r *meter) read(now time.Time, spent, over time.Duration) {
	passed := now.Sub(r.at)
	switch {
	case r.at.IsZero() || spent < r.spent: // it was opened again
		*r = meter{since: now}
	case passed <= 0:
		return
	default:
		weight := max(1-math.Exp(-float64(passed)/float64(over)), float64(passed)/float64(now.Sub(r.since)))
		r.rate += weight * (float64(spent-r.spent)/float64(passed) - r.rate)
	}
	r.spent, r.at = spent, now
}

// measure has the map say how much the partitions that are open here give to do, once they have been open for a while: until then what the owner before
// has said holds.
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
