package policy

import "time"

// climbing finds out what memory is worth to the applications that report a utility, as
// section 4.3.2 does: every period each one's memory is changed, and the change of its
// utility watched.
type climbing struct {
	last  time.Duration // when the last period began
	round int           // how many have begun
	state map[uint64]*climber
}

// Published: probes of 64 MiB, moves of 256 MiB, every 5 s, on a host with 20 GiB to share.
const (
	climbPeriod = 5 * time.Second
	climbProbe  = 1. / 320
	climbMove   = 1. / 80
)

// climber is what is remembered about one application.
type climber struct {
	share   float64 // of the memory: what it was given last
	memory  int64   // at the last observation
	utility float64 // at the last observation
	slope   float64 // utility per byte, smoothed
}

// step narrows Min and Max of each application that reports a utility to what it may have next, and returns what a
// byte is worth to it. At the beginning of a period, that is in turns more and less than it was given last, by at
// least a probe and at most a move. During a period, it is what it was given last.
func (c *climbing) step(now time.Duration, total int64, apps []App) (slopes []float64) {
	slopes = make([]float64, len(apps))
	begins := c.round == 0 || now-c.last >= climbPeriod
	if begins {
		c.last = now
		c.round++
	}
	probe, move := int64(climbProbe*float64(total)), int64(climbMove*float64(total))
	current := make(map[uint64]*climber)
	even := ByWeight(total, apps)
	raised := make([]int64, len(apps)) // by how much Min is more than it was
	for i := range apps {
		a := &apps[i]
		if !a.HasUtility {
			continue
		}
		s := c.state[a.ID]
		if s == nil {
			s = &climber{share: float64(even[i]) / float64(max(total, 1)), memory: a.Memory, utility: a.Weight * a.Utility}
		} else if begins {
			s.observe(a)
		}
		lo := int64(s.share * float64(total))
		hi := lo
		switch {
		case !begins || c.state[a.ID] == nil:
		case (len(current)+c.round)%2 == 0:
			lo, hi = lo+probe, hi+move
		default:
			lo, hi = lo-move, hi-probe
		}
		raised[i] = -a.Min
		a.narrow(lo, hi)
		raised[i] += a.Min
		current[a.ID] = s
		if a.Used >= a.Memory*9/10 { // an application that has not used what it was given gets no more
			slopes[i] = s.slope
		}
	}
	c.state = current
	lower(total, apps, raised)
	return slopes
}

// lower takes back a part of what each Min was raised by, in proportion, so that there is memory for all of them:
// what one application must have comes before what another was given.
func lower(total int64, apps []App, raised []int64) {
	over, sum := -total, int64(0)
	for i, a := range apps {
		over += a.Min
		sum += raised[i]
	}
	if over <= 0 || sum == 0 {
		return
	}
	part := min(float64(over)/float64(sum), 1)
	for i := range apps {
		apps[i].Min -= min(int64(part*float64(raised[i]))+1, raised[i])
	}
}

// keep remembers what those who report a utility were given.
func (c *climbing) keep(total int64, apps []App, out []int64) {
	for i, a := range apps {
		if s := c.state[a.ID]; s != nil {
			s.share = float64(out[i]) / float64(max(total, 1))
		}
	}
}

// observe learns what the change of a's memory since the last observation was worth to a.
func (c *climber) observe(a *App) {
	g := a.Weight * a.Utility
	if a.Memory != c.memory {
		c.slope = 0.5*c.slope + 0.5*max((g-c.utility)/float64(a.Memory-c.memory), 0)
	}
	c.memory, c.utility = a.Memory, g
}

// narrow makes lo and hi the bounds of a, clipped to its present bounds.
func (a *App) narrow(lo, hi int64) {
	a.Min, a.Max = min(max(lo, a.Min), a.Max), max(min(hi, a.Max), a.Min)
}
