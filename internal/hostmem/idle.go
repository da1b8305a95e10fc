package hostmem

import "time"

// How often a host's memory is looked at: seldom while there is plenty,
// and as fast as memory can vanish while there is not. At 5 ms, a process that
// allocates 4 GiB/s takes 20 MiB between two looks.
const (
	Calm  = 50 * time.Millisecond
	Tense = 5 * time.Millisecond
)

// Idle tells how much of a host's memory nobody needs: what is available beyond a reserve, which is raised while
// processes wait for memory. MemAvailable says how much could be had, PSI what that costs.
//
// It is for one goroutine, which calls Note each time it has measured.
type Idle struct {
	Reserve int64  // bytes that must stay available
	Memory  Memory // as Note was told last

	squeeze int64 // bytes by which the reserve is raised
}

// stallTolerated is how long, in seconds between two looks, processes may wait for memory without the reserve being
// raised.
const stallTolerated = 0.001

// Note records a measurement.
func (i *Idle) Note(m Memory) {
	if i.Memory.Total != 0 {
		if m.Stalled-i.Memory.Stalled > stallTolerated {
			i.squeeze = min(i.squeeze+i.Reserve/16, i.Reserve)
		} else {
			i.squeeze -= i.squeeze / 64
		}
	}
	i.Memory = m
}

// Beyond is how many bytes are available beyond the present reserve. It is negative if there are too few.
func (i *Idle) Beyond() int64 { return i.Memory.Available - i.Reserve - i.squeeze }

// Urgent reports whether less than half of the reserve is left.
func (i *Idle) Urgent() bool { return i.Memory.Available < (i.Reserve+i.squeeze)/2 }

// Next is when to look again.
func (i *Idle) Next() time.Duration {
	if i.Beyond() < i.Reserve+i.squeeze {
		return Tense
	}
	return Calm
}
