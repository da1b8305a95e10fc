package sim

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"polder/verbs"
)

// bare has only the cost that a test is about.
func bare() Costs {
	c := Testbed()
	c.PCIeWrite, c.PCIeRead, c.Execute, c.Bind, c.Receive, c.Wire = 0, 0, 0, 0, 0, 0
	c.PCIeRate, c.LinkRate, c.Header = 1e15, 1e15, 0
	c.Contexts = 1 << 16
	return c
}

// closed has threads that each repeat a request with a queue pair of its own,
// and returns how long all of them took.
func closed(t *testing.T, r *rig, threads, rounds int, wr verbs.SendWR) time.Duration {
	t.Helper()
	for i := range threads {
		cq := r.client.newCQ(t)
		qp, _ := r.join(t, cq)
		r.w.Go(fmt.Sprint("thread ", i), func(*Proc) error {
			for range rounds {
				if err := do(qp, cq, wr); err != nil {
					return err
				}
			}
			return nil
		})
	}
	start := r.w.Now()
	if err := r.w.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r.w.Now() - start
}

// near reports whether got is within a fraction of want.
func near(got, want time.Duration, fraction float64) bool {
	return math.Abs(float64(got)-float64(want)) <= fraction*float64(want)
}

// TestBottlenecks: threads that only wait for one resource get what it has, no
// more and no less (the utilisation law).
func TestBottlenecks(t *testing.T) {
	const threads, rounds = 12, 200
	for _, b := range []struct {
		name string
		set  func(c *Costs)
		wr   func(r *rig) verbs.SendWR
		want time.Duration // for all operations
	}{
		{"processing units", func(c *Costs) { c.Units, c.Execute = 4, time.Microsecond },
			func(*rig) verbs.SendWR { return verbs.SendWR{Flags: verbs.SendSignaled} }, threads * rounds * time.Microsecond / 4},
		{"a word", func(c *Costs) { c.PCIeRead = time.Microsecond },
			func(r *rig) verbs.SendWR { return r.request(verbs.OpFetchAdd, 8) }, threads * rounds * time.Microsecond},
		{"the link", func(c *Costs) { c.LinkRate = 4096e6 },
			func(r *rig) verbs.SendWR { return r.request(verbs.OpRead, 4096) }, threads * rounds * time.Microsecond},
		{"PCIe", func(c *Costs) { c.PCIeRate = 4096e6 },
			func(r *rig) verbs.SendWR { return r.request(verbs.OpRead, 4096) }, threads * rounds * time.Microsecond},
	} {
		c := bare()
		b.set(&c)
		r := newRig(t, c)
		if got := closed(t, r, threads, rounds, b.wr(r)); !near(got, b.want, 0.02) {
			t.Errorf("%s: %d operations took %v, want %v", b.name, threads*rounds, got, b.want)
		}
	}
}

// TestUsage: processing units are busy as long as they execute.
func TestUsage(t *testing.T) {
	c := bare()
	c.Units, c.Execute = 3, time.Microsecond
	r := newRig(t, c)
	closed(t, r, 5, 100, verbs.SendWR{Flags: verbs.SendSignaled})
	if got := r.client.dev.Usage().Units; got != 500*time.Microsecond {
		t.Errorf("the units were busy for %v, want 500µs", got)
	}
	before := r.server.dev.Usage().Received
	closed(t, r, 1, 10, r.request(verbs.OpWrite, 1000))
	if got := r.server.dev.Usage().Received - before; got != 10_000 {
		t.Errorf("%d bytes came to the server, want 10000", got)
	}
}

// TestMD1: requests that arrive at random for one processing unit wait as long
// as the Pollaczek-Khinchine formula says: ρS / 2(1-ρ).
func TestMD1(t *testing.T) {
	for _, rho := range []float64{0.3, 0.6, 0.8} {
		c := bare()
		c.Units, c.Execute = 1, time.Microsecond
		r := newRig(t, c)
		const queues, arrivals = 128, 15_000
		type channel struct {
			qp verbs.QP
			cq verbs.CQ
		}
		var free []channel
		for range queues {
			cq := r.client.newCQ(t)
			qp, _ := r.join(t, cq)
			free = append(free, channel{qp, cq})
		}
		rng := rand.New(rand.NewPCG(1, 2))
		var sum time.Duration
		r.w.Go("arrivals", func(p *Proc) error {
			for range arrivals {
				if err := p.Sleep(time.Duration(rng.ExpFloat64() / rho * float64(time.Microsecond))); err != nil {
					return err
				}
				if len(free) == 0 {
					return fmt.Errorf("more than %d requests wait", queues)
				}
				ch := free[len(free)-1]
				free = free[:len(free)-1]
				r.w.Go("request", func(p *Proc) error {
					start := p.Now()
					err := do(ch.qp, ch.cq, verbs.SendWR{Flags: verbs.SendSignaled})
					sum += p.Now() - start
					free = append(free, ch)
					return err
				})
			}
			return nil
		})
		if err := r.w.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		wait := sum/arrivals - c.Execute
		want := time.Duration(rho / (2 * (1 - rho)) * float64(time.Microsecond))
		if !near(wait, want, 0.06) {
			t.Errorf("ρ = %v: a request waits %v, want %v", rho, wait, want)
		}
	}
}

// TestContexts: queue pairs that are parked in a WAIT keep their contexts on
// the chip, and the others make do with what is left.
func TestContexts(t *testing.T) {
	c := contexts{room: 3}
	q := make([]*queue, 6)
	for i := range q {
		q[i] = new(queue)
	}
	use := func(i int, known bool) {
		t.Helper()
		if got := c.use(q[i]); got != known {
			t.Errorf("queue %d: known is %v, want %v", i, got, known)
		}
	}
	use(0, false)
	use(1, false)
	use(2, false)
	use(0, true)
	use(3, false) // drives out 1
	use(0, true)
	use(1, false) // drives out 2
	c.park(q[0])
	c.park(q[1])
	use(3, true)
	use(4, false) // there is room for one
	use(3, false)
	c.park(q[3])
	use(4, false) // there is none
	use(4, false)
	c.park(q[5]) // nor for a fourth that is parked
	use(5, false)
	use(0, true)
	use(1, true)
	if c.parked != 1 || len(c.recent) != 2 {
		t.Errorf("%d are parked and %d recent, want 1 and 2", c.parked, len(c.recent))
	}
}

// TestRewrittenEntries: an entry of a managed queue that was fetched with an
// earlier one costs no fetch of its own, unless it was rewritten since.
func TestRewrittenEntries(t *testing.T) {
	c := bare()
	c.PCIeRead = time.Microsecond
	for _, rewrite := range []bool{false, true} {
		r := newRig(t, c)
		s := r.client
		var rings [2]verbs.MR
		var qps [2]verbs.QP
		var cqs [2]verbs.CQ
		for i := range qps {
			cqs[i] = s.newCQ(t)
			var err error
			if rings[i], err = s.pd.RegMR(make([]byte, 4*verbs.WQESize), allAccess); err != nil {
				t.Fatal(err)
			}
			qps[i], err = s.pd.CreateQP(verbs.QPInit{SendCQ: cqs[i], RecvCQ: cqs[i], SendDepth: 4, Managed: true, SendRing: rings[i]})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.dev.ConnectLoopback(qps[i], qps[i]); err != nil {
				t.Fatal(err)
			}
		}
		// The first queue waits for the second, and then goes on.
		err := errors.Join(
			qps[0].PostSend(verbs.SendWR{Op: verbs.OpWait, CQN: cqs[1].Num(), Count: 1}, verbs.SendWR{Flags: verbs.SendSignaled}),
			qps[1].PostSend(verbs.SendWR{Flags: verbs.SendSignaled}),
			qps[0].EnableSend(2),
		)
		if err != nil {
			t.Fatal(err)
		}
		want := time.Microsecond // the second queue's entry
		r.w.Go("client", func(p *Proc) error {
			if err := p.Sleep(100 * time.Microsecond); err != nil {
				return err
			}
			if rewrite {
				rings[0].Bytes()[verbs.WQESize+verbs.WQEID] = 1
				want += time.Microsecond
			}
			start := p.Now()
			if err := qps[1].EnableSend(1); err != nil {
				return err
			}
			if err := cqs[0].Wait(t.Context()); err != nil {
				return err
			}
			if got := p.Now() - start; got != want {
				t.Errorf("rewritten is %v: it went on after %v, want %v", rewrite, got, want)
			}
			return nil
		})
		if err := r.w.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDeterminism: a random load gives the same times in every run.
func TestDeterminism(t *testing.T) {
	run := func(procs int) string {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		r := newRig(t, Testbed())
		var log strings.Builder
		for i := range 8 {
			rng := rand.New(rand.NewPCG(7, uint64(i)))
			cq := r.client.newCQ(t)
			qp, _ := r.join(t, cq)
			ops := []verbs.Opcode{verbs.OpRead, verbs.OpWrite, verbs.OpFetchAdd}
			r.w.Go("thread", func(p *Proc) error {
				for range 100 {
					if err := p.Sleep(time.Duration(rng.IntN(2000))); err != nil {
						return err
					}
					op, size := ops[rng.IntN(3)], 8
					if op != verbs.OpFetchAdd {
						size = 1 + rng.IntN(20_000)
					}
					if err := do(qp, cq, r.request(op, size)); err != nil {
						return err
					}
					fmt.Fprintln(&log, i, op, size, p.Now())
				}
				return nil
			})
		}
		if err := r.w.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		return log.String()
	}
	first := run(1)
	for i := range 3 {
		if run(i+1) != first {
			t.Fatalf("run %d is not like the first", i)
		}
	}
}
