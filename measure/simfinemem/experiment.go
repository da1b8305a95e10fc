package simfinemem

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"polder/verbs/sim"
)

// An allocator allocates in one way, for one process at a time.
type allocator interface {
	// alloc returns something that identifies 1<<class chunks.
	alloc(p *sim.Proc, class int) (uint64, error)
	free(p *sim.Proc, at uint64, class int) error
}

// counts are what allocators count.
type counts struct {
	retries int // CMP_SWAPs that failed in allocations
}

// A way is how a thread's requests come to an allocator.
type way int

const (
	direct way = iota // the thread has its own
	queued            // its compute node's service has one, and works on one request at a time
	lanes             // the service has one for each thread, and works on all requests at a time
)

// A system makes allocators in a rig for a number of threads, which together hold no more than so many chunks.
type system struct {
	name     string
	oneSided bool // it allocates by CMP_SWAPs, which may have to be retried
	way      way
	ours     bool // it is not the paper's
	published
	build func(r *rig, l load, allocators, chunks int, c *counts) ([]allocator, error)
}

// A load is what an experiment does.
type load struct {
	threads int
	class   int
	rounds  int // allocations of each thread that count, on average
}

// held is how many blocks a thread has at most. When it has them, it frees one
// at random before it allocates.
const held = 16

// spare is how many chunks there are for each one that threads hold at most.
const spare = 2

// outcome is the result of an experiment.
type outcome struct {
	mean, p99 time.Duration
	retries   float64 // CMP_SWAPs that failed, for each allocation
	rate      float64 // allocations in a second
}

// run runs a load on a system in a world of its own.
func run(ctx context.Context, costs Costs, seed uint64, m system, l load) (o outcome, err error) {
	r, err := newRig(ctx, costs, seed)
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	n := l.threads
	if m.way == queued {
		n = min(n, computeNodes)
	}
	var c counts
	chunks := spare * held * mostThreads << l.class
	allocators, err := m.build(r, l, n, chunks, &c)
	if err != nil {
		return o, err
	}
	x := &experiment{r: r, l: l, c: &c, first: l.threads * (3*held + l.rounds/4)}
	x.last = x.first + l.threads*l.rounds
	for i := range l.threads {
		t := &thread{x: x, rng: rand.New(rand.NewPCG(seed, uint64(i))), a: allocators[i%n], way: m.way, host: r.host(i)}
		r.w.Go(fmt.Sprintf("thread %d", i), t.run)
	}
	if err := r.w.Run(ctx); err != nil {
		return o, err
	}
	return x.outcome(), nil
}

// experiment is a load under way.
type experiment struct {
	r *rig
	l load
	c *counts
	// Allocations from first to last count, of all threads together.
	first, last int

	allocs     int
	retries    int // CMP_SWAPs that failed: until first; after last, from first to last
	start, end time.Duration
	measured   []time.Duration
}

// allocated notes an allocation that began at start.
func (x *experiment) allocated(start, now time.Duration) {
	switch x.allocs++; {
	case x.allocs == x.first:
		x.start, x.retries = now, x.c.retries
	case x.allocs > x.first && x.allocs <= x.last:
		x.measured = append(x.measured, now-start)
		if x.allocs == x.last {
			x.end, x.retries = now, x.c.retries-x.retries
		}
	}
}

// thread allocates and frees.
type thread struct {
	x      *experiment
	rng    *rand.Rand
	a      allocator
	way    way
	host   *side
	blocks []uint64
}

func (t *thread) run(p *sim.Proc) error {
	x := t.x
	if err := t.pause(p, 10*time.Microsecond); err != nil {
		return err
	}
	for x.allocs < x.last {
		if len(t.blocks) == held {
			k := t.rng.IntN(held)
			at := t.blocks[k]
			t.blocks[k] = t.blocks[held-1]
			t.blocks = t.blocks[:held-1]
			if err := t.host.serve(p, &x.r.costs, t.way, func() error { return t.a.free(p, at, x.l.class) }); err != nil {
				return err
			}
		}
		if err := t.pause(p, x.r.costs.Client); err != nil {
			return err
		}
		start := p.Now()
		err := t.host.serve(p, &x.r.costs, t.way, func() error {
			at, err := t.a.alloc(p, x.l.class)
			t.blocks = append(t.blocks, at)
			return err
		})
		if err != nil {
			return err
		}
		x.allocated(start, p.Now())
	}
	return nil
}

// serve does f for a thread of s: directly, or by the allocation service of the compute node, as the way says.
func (s *side) serve(p *sim.Proc, costs *Costs, by way, f func() error) error {
	if by == direct {
		return f()
	}
	if err := p.Sleep(costs.IPC / 2); err != nil {
		return err
	}
	if err := s.service.Lock(p); err != nil {
		return err
	}
	err := p.Sleep(costs.Serve)
	if by == lanes {
		s.service.Unlock()
	}
	if err == nil {
		err = f()
	}
	if by == queued {
		s.service.Unlock()
	}
	if err != nil {
		return err
	}
	return p.Sleep(costs.IPC / 2)
}

// pause rests for d on average.
func (t *thread) pause(p *sim.Proc, d time.Duration) error {
	return p.Sleep(time.Duration(t.rng.Int64N(int64(2*d) + 1)))
}

func (x *experiment) outcome() outcome {
	slices.Sort(x.measured)
	n := len(x.measured)
	sum := time.Duration(0)
	for _, d := range x.measured {
		sum += d
	}
	return outcome{
		mean: sum / time.Duration(n), p99: x.measured[n*99/100],
		retries: float64(x.retries) / float64(n),
		rate:    float64(n) / (x.end - x.start).Seconds(),
	}
}
