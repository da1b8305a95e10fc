package simlatency

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"polder/verbs"
	"polder/verbs/sim"
	"polder/verbs/softnic"
)

// page is what an access reads or writes, and the size of a chunk.
const page = 4096

// distinct is how many chunks have memory of their own; the other chunks share it. Nobody looks at its contents, and
// sharing keeps the simulation small.
const distinct = 1024

// failure carries an error of must through the set-up of an experiment.
type failure struct{ err error }

// must returns v, or gives the experiment up.
func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// caught is deferred: it turns what check has thrown into an error.
func caught(err *error) {
	switch f := recover().(type) {
	case nil:
	case failure:
		*err = f.err
	default:
		panic(f)
	}
}

// rig is a world with a compute node and a memory node.
type rig struct {
	ctx          context.Context
	w            *sim.World
	costs        sim.Costs
	seed         uint64
	client, node *side
	// closers are called before the devices are closed.
	closers []func() error
}

// side is one of the two nodes.
type side struct {
	dev *sim.Device
	pd  verbs.PD
}

func newRig(ctx context.Context, costs sim.Costs, seed uint64) *rig {
	r := &rig{ctx: ctx, w: must(sim.New(costs)), costs: costs, seed: seed}
	for _, s := range []**side{&r.client, &r.node} {
		dev := must(r.w.NewDevice(softnic.Config{}))
		*s = &side{dev: dev, pd: must(dev.AllocPD())}
	}
	return r
}

func (r *rig) close() {
	for _, f := range r.closers {
		f()
	}
	r.client.dev.Close()
	r.node.dev.Close()
	r.w.Close()
}

func (s *side) memory(size int, access verbs.Access) verbs.MR {
	return must(s.pd.RegMR(make([]byte, size), access))
}

func (s *side) cq(depth int) verbs.CQ {
	return must(s.dev.CreateCQ(verbs.CQInit{Depth: depth}))
}

// counter makes a CQ that only WAITs look at.
func (s *side) counter() verbs.CQ {
	return must(s.dev.CreateCQ(verbs.CQInit{Depth: 16, IgnoreOverrun: true}))
}

// queuePair makes a plain queue pair.
func (s *side) queuePair(cq verbs.CQ) verbs.QP {
	return must(s.pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SendDepth: 64, RecvDepth: 64}))
}

// window allocates an unbound window and returns the key that it will have.
func (s *side) window(t verbs.MWType) verbs.RKey {
	key := must(s.pd.AllocMW(t)).RKey()
	return verbs.MakeRKey(key.Index(), key.Key()+1)
}

// local names bytes of a region.
func local(m verbs.MR, off, size int) verbs.SGE {
	return verbs.SGE{Addr: m.Addr() + uint64(off), Length: uint32(size), LKey: m.LKey()}
}

// join connects a queue pair of the client's to one of the node's.
func (r *rig) join(qp, peer verbs.QP) { check(r.w.Join(r.client.dev, qp, r.node.dev, peer)) }

// do runs f as the only process.
func (r *rig) do(f func(p *sim.Proc) error) {
	r.w.Go("set-up", f)
	check(r.w.Run(r.ctx))
}

// await waits for the next completion of cq, and returns an error if it is not a success.
func (r *rig) await(cq verbs.CQ) (verbs.WC, error) {
	var wc [1]verbs.WC
	if err := cq.Wait(r.ctx); err != nil {
		return wc[0], err
	}
	cq.Poll(wc[:])
	if err := wc[0].Err(); err != nil {
		return wc[0], fmt.Errorf("cannot complete a work request: %w", err)
	}
	return wc[0], nil
}

// A thread allocates a page and accesses it, over and over; i counts. Only what
// these two do is timed.
type thread struct {
	allocate func(p *sim.Proc, i int) error // nil: there is nothing to do
	access   func(p *sim.Proc, i int) error
}

// warm is how many rounds of each thread come first and do not count.
func warm(rounds int) int { return rounds / 4 }

// most is how many rounds a thread may do at most: threads that have done theirs go on until all have, so that the
// load stays the same.
func most(rounds int) int { return rounds + 3*warm(rounds) }

// latencies are means over all threads.
type latencies struct{ allocate, access time.Duration }

// run runs threads for some rounds each.
func (r *rig) run(threads []thread, rounds int) latencies {
	var sum latencies
	done, first := 0, warm(rounds)
	for i, t := range threads {
		rng := rand.New(rand.NewPCG(r.seed, uint64(i)))
		pause := func(p *sim.Proc, d time.Duration) error { // d on average
			return p.Sleep(time.Duration(rng.Int64N(int64(2*d) + 1)))
		}
		timed := func(p *sim.Proc, f func(*sim.Proc, int) error, k int, sum *time.Duration) error {
			if f == nil {
				return nil
			}
			if err := pause(p, r.costs.Client); err != nil {
				return err
			}
			start := p.Now()
			err := f(p, k)
			if k >= first && k < first+rounds {
				*sum += p.Now() - start
			}
			return err
		}
		r.w.Go(fmt.Sprintf("thread %d", i), func(p *sim.Proc) error {
			if err := pause(p, 10*time.Microsecond); err != nil {
				return err
			}
			for k := 0; done < len(threads) && k < most(rounds); k++ {
				if err := timed(p, t.allocate, k, &sum.allocate); err != nil {
					return err
				}
				if err := timed(p, t.access, k, &sum.access); err != nil {
					return err
				}
				if k+1 == first+rounds {
					done++
				}
			}
			return nil
		})
	}
	check(r.w.Run(r.ctx))
	n := time.Duration(len(threads) * rounds)
	return latencies{sum.allocate / n, sum.access / n}
}

// accessor accesses a page of the node's memory.
type accessor struct {
	r    *rig
	qp   verbs.QP
	cq   verbs.CQ
	buf  verbs.MR
	addr uint64
	key  verbs.RKey
}

func (r *rig) accessor() *accessor {
	cq := r.client.cq(64)
	return &accessor{r: r, qp: r.client.queuePair(cq), cq: cq, buf: r.client.memory(2*page, clientAccess)}
}

// access reads the page and writes it, in turn.
func (a *accessor) access(_ *sim.Proc, i int) error {
	if i%2 == 1 {
		return a.do(verbs.OpWrite)
	}
	return a.do(verbs.OpRead)
}

func (a *accessor) do(op verbs.Opcode) error {
	err := a.qp.PostSend(verbs.SendWR{Op: op, Flags: verbs.SendSignaled, RemoteAddr: a.addr, RKey: a.key,
		SGL: []verbs.SGE{local(a.buf, 0, page)}})
	if err != nil {
		return err
	}
	_, err = a.r.await(a.cq)
	return err
}

const clientAccess = verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteWrite

// windowAccess is the access of a window that the node's chains use.
const windowAccess = verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic

// repeat calls f for 0 to n-1.
func repeat[T any](n int, f func(i int) T) []T {
	s := make([]T, 0, n)
	for i := range n {
		s = append(s, f(i))
	}
	return slices.Clip(s)
}

// A manager makes threads that allocate and access in its way, and can do so
// most(rounds) times.
type manager func(r *rig, threads, rounds int) []thread
