package simcluster

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Sharing is where the memory that does not fit into a server may go.
type Sharing int

const (
	// None: jobs start where all of their memory fits.
	None Sharing = iota
	// Static: each server has a partition of far memory for itself, as with Fastswap.
	Static
	// Shared: all servers borrow from one pool, as with FineMem.
	Shared
	// Idle: besides the pool, servers lend each other what they have free.
	Idle
)

// Shrinking is how the jobs of a server share its memory when it is too small.
type Shrinking int

const (
	// Proportional: each gives up the same share of what it may give up.
	Proportional Shrinking = iota
	// LeastLoss: jobs that lose the least time for a byte give up most.
	LeastLoss
)

// A job of a run.
type job struct {
	kind    *Kind
	arrives float64
	left    float64 // of the work, which is 1 at the start
	local   float64 // share of its memory that is local
	rate    float64 // of the work, a second
}

// server is a machine that runs jobs.
type server struct {
	cpus, mem int // of all jobs here
	jobs      []*job
	far       int // MiB that it borrows
}

// A lender of far memory is told how much each server borrows.
type lender interface{ borrow(server, mib int) error }

// cluster is a run under way.
type cluster struct {
	spec   *Spec
	how    Sharing
	shrink Shrinking
	byKind bool // waiting jobs start kind by kind instead of oldest first
	pool   int  // MiB of far memory that servers share, unless how is Static
	grain  int  // MiB that are borrowed at a time
	lender lender
	rng    *rand.Rand

	servers []*server
	waiting [][]*job // by kind, oldest first
	now     float64
	used    float64 // MiB of far memory times seconds
	started int
}

// outcome is the result of a run.
type outcome struct {
	makespan float64 // seconds until the last job has ended
	far      float64 // mean share of Cluster.Far that is in use
}

// arrivals returns the jobs of a run in order of arrival. mix has the percentage of each kind; jobs arrive at random
// times.
func arrivals(spec *Spec, mix []int, seed uint64) []*job {
	rng := rand.New(rand.NewPCG(seed, 1))
	var all []*job
	for i, k := range spec.kinds {
		n := spec.Cluster.Jobs * mix[i] / 100
		for range n {
			all = append(all, &job{kind: k})
		}
	}
	for i := 0; len(all) < spec.Cluster.Jobs; i++ { // what rounding the percentages leaves over
		all = append(all, &job{kind: spec.kinds[i%len(spec.kinds)]})
	}
	for _, j := range all {
		j.arrives, j.left = rng.Float64()*spec.Cluster.Seconds, 1
	}
	slices.SortStableFunc(all, func(a, b *job) int {
		return cmp.Compare(a.arrives, b.arrives)
	})
	return all
}

// run runs jobs, which it changes.
func (c *cluster) run(jobs []*job) (outcome, error) {
	c.waiting = make([][]*job, len(c.spec.kinds))
	for range c.spec.Cluster.Servers {
		c.servers = append(c.servers, new(server))
	}
	next := 0
	for {
		at, ends := math.Inf(1), (*server)(nil)
		var which *job
		if next < len(jobs) {
			at = jobs[next].arrives
		}
		for _, s := range c.servers {
			for _, j := range s.jobs {
				if t := c.now + j.left/j.rate; t < at {
					at, ends, which = t, s, j
				}
			}
		}
		switch {
		case math.IsInf(at, 1) && c.started < len(jobs):
			return outcome{}, fmt.Errorf("%d of %d jobs fit no server", len(jobs)-c.started, len(jobs))
		case math.IsInf(at, 1):
			return outcome{makespan: c.now, far: c.used / c.now / float64(c.spec.Cluster.Far)}, nil
		}
		c.pass(at)
		if ends == nil {
			j := jobs[next]
			next++
			if started, err := c.start(j); err != nil {
				return outcome{}, err
			} else if !started {
				c.waiting[j.kind.at] = append(c.waiting[j.kind.at], j)
			}
			continue
		}
		ends.jobs = slices.DeleteFunc(ends.jobs, func(j *job) bool { return j == which })
		ends.cpus -= which.kind.CPUs
		ends.mem -= which.kind.Memory
		if err := c.settle(ends); err != nil {
			return outcome{}, err
		}
		if err := c.admit(); err != nil {
			return outcome{}, err
		}
	}
}

// pass lets time go by.
func (c *cluster) pass(to float64) {
	d := to - c.now
	for _, s := range c.servers {
		for _, j := range s.jobs {
			j.left = max(0, j.left-d*j.rate)
		}
		c.used += d * float64(c.over(s.mem))
	}
	c.now = to
}

// over is how many of mem MiB do not fit into a server.
func (c *cluster) over(mem int) int { return max(0, mem-c.spec.Cluster.Memory) }

// need is over, rounded up to the pieces that are borrowed.
func (c *cluster) need(mem int) int { return (c.over(mem) + c.grain - 1) / c.grain * c.grain }

// admit starts waiting jobs that fit now, the oldest first, or with byKind one kind after the other. A kind whose
// oldest job fits nowhere is passed over.
func (c *cluster) admit() error {
	passed := make([]bool, len(c.waiting))
	for {
		k := c.oldest(passed)
		if k < 0 {
			return nil
		}
		started, err := c.start(c.waiting[k][0])
		if err != nil {
			return err
		}
		if started {
			c.waiting[k] = c.waiting[k][1:]
		} else {
			passed[k] = true
		}
	}
}

// oldest returns the kind whose oldest job is to start next, or -1 if there is none. It ignores the kinds that were
// passed over.
func (c *cluster) oldest(passed []bool) int {
	best := -1
	for k, w := range c.waiting {
		if len(w) == 0 || passed[k] {
			continue
		}
		if c.byKind {
			return k
		}
		if best < 0 || w[0].arrives < c.waiting[best][0].arrives {
			best = k
		}
	}
	return best
}

// start starts a job on the first server, in a random order, that has room for all of its memory; if there is none,
// on the first one where it fits with far memory. It reports whether the job has started.
func (c *cluster) start(j *job) (bool, error) {
	order := c.rng.Perm(len(c.servers))
	for _, far := range []bool{false, true} {
		for _, i := range order {
			if s := c.servers[i]; c.fits(s, j, far) {
				s.jobs = append(s.jobs, j)
				s.cpus += j.kind.CPUs
				s.mem += j.kind.Memory
				c.started++
				return true, c.settle(s)
			}
		}
	}
	return false, nil
}

// fits reports whether a server has room for a job besides those that it runs; if far is true, with the far memory
// that the server may use.
func (c *cluster) fits(s *server, j *job, far bool) bool {
	spec := &c.spec.Cluster
	cpus, mem := spec.CPUs, s.mem+j.kind.Memory
	if c.how != None {
		cpus -= spec.ReclaimCPUs
	}
	if s.cpus+j.kind.CPUs > cpus {
		return false
	}
	if !far {
		return mem <= spec.Memory && (c.how != Idle || c.room(s, mem) >= 0)
	}
	least := j.kind.least()
	for _, o := range s.jobs {
		least += o.kind.least()
	}
	if least > float64(spec.Memory) {
		return false
	}
	switch c.how {
	case Static:
		return c.over(mem) <= spec.Partition
	case Shared, Idle:
		return c.room(s, mem) >= 0
	}
	return false
}

// room is how many MiB of far memory would be left if the jobs of s had mem MiB. It is negative if there would be too
// little.
func (c *cluster) room(s *server, mem int) int {
	left := c.pool / c.grain * c.grain
	for _, o := range c.servers {
		m := o.mem
		if o == s {
			m = mem
		}
		left -= c.need(m)
		if c.how == Idle {
			left += max(0, c.spec.Cluster.Memory-m) / c.grain * c.grain
		}
	}
	return left
}

// settle shares a server's memory among its jobs, and borrows what is missing.
func (c *cluster) settle(s *server) error {
	over := float64(c.over(s.mem))
	for _, j := range s.jobs {
		j.local = 1
	}
	switch c.shrink {
	case Proportional:
		can := 0.0
		for _, j := range s.jobs {
			can += float64(j.kind.Memory) - j.kind.least()
		}
		for _, j := range s.jobs {
			j.local -= over / max(can, 1) * (1 - j.kind.MinLocal)
		}
	case LeastLoss:
		c.leastLoss(s, over)
	}
	for _, j := range s.jobs {
		j.rate = 1 / j.kind.seconds(j.local)
	}
	if need := c.need(s.mem); need != s.far {
		s.far = need
		if c.lender != nil {
			return c.lender.borrow(slices.Index(c.servers, s), need)
		}
	}
	return nil
}

// step is the share of its memory that a job gives up at a time.
const step = 0.01

// leastLoss takes memory from jobs in small pieces, each from the job that loses the least time by it.
func (c *cluster) leastLoss(s *server, over float64) {
	for over > 0 {
		var least *job
		loss := math.Inf(1)
		for _, j := range s.jobs {
			if j.local-step < j.kind.MinLocal-1e-9 {
				continue
			}
			l := (j.kind.seconds(j.local-step) - j.kind.seconds(j.local)) / float64(j.kind.Memory)
			if l < loss {
				least, loss = j, l
			}
		}
		if least == nil {
			return // no job can give up another step
		}
		least.local -= step
		over -= step * float64(least.kind.Memory)
	}
}
