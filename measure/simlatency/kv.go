package simlatency

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"polder/internal/load"
	"polder/race"
	"polder/verbs/sim"
	"polder/verbs/softnic"
)

// A kvLoad says what the threads of an experiment do. An operation gets, with probability reads, a key that some
// thread has put; otherwise it puts a new key. With updates, threads put a first set of keys, and from then on put no
// new ones: they draw the keys that they get or put as YCSB does, by Zipf's law with 0.99; and chunks go back when
// their blocks are free.
type kvLoad struct {
	nodes, threads int // compute nodes, threads on each
	chunk          int // bytes that are allocated at a time
	reads          float64
	updates        bool
	rounds         int           // operations of each thread that count
	deletes        bool          // afterwards, threads delete 90 % of the keys
	client         time.Duration // between two operations, on average
}

// kvClient is how long a thread rests between two operations, on average. Fitted to figure 6: with chunks of 2 KiB,
// RPC-MW reaches 33.9 % of Static-MR's throughput, and RPC-MW's throughput is what the node's core can do.
const kvClient = 18500 * time.Nanosecond

// A kvOutcome is the result of an experiment.
type kvOutcome struct {
	rate  float64 // operations in a second
	p99   time.Duration
	cpu   float64 // share of the time that the node's core worked; if it has several, the sum of theirs
	freed float64 // share of the chunks that the deletions have freed
	// deletions is how many keys were deleted in a second, which includes giving back the chunks that were freed.
	deletions float64
}

// kvRun is an experiment under way.
type kvRun struct {
	r     *rig
	l     kvLoad
	table *race.Table
	busy  func() int

	first, last int // operations that count, of all threads together
	done        int
	start, end  time.Duration
	served      int // requests that the core served: until start; after the end, from start to end
	measured    []time.Duration
	keys        []uint64
	popular     *load.Zipfian // ranks of keys, with updates
}

// measureKV runs one experiment in a world of its own.
func measureKV(ctx context.Context, costs sim.Costs, seed uint64, m kvManager, l kvLoad) (o kvOutcome, err error) {
	defer caught(&err)
	r := newRig(ctx, costs, seed)
	defer r.close()
	all := l.nodes * l.threads
	x := &kvRun{r: r, l: l, first: all * l.rounds / 2}
	x.last = x.first + all*l.rounds
	if l.updates {
		x.popular = load.NewZipfian(int64(x.first/4), 0.99)
	}
	most := x.last + all
	chunks := most*kvBlock/l.chunk + all
	s, table := newStore(r, most, chunks, l.chunk)
	x.table = table
	connect, busy := m(r, chunks, all)
	x.busy = busy
	var threads []*kvThread
	for i := range l.nodes {
		if i > 0 {
			dev := must(r.w.NewDevice(softnic.Config{}))
			defer dev.Close()
			r.client = &side{dev: dev, pd: must(dev.AllocPD())}
		}
		mine := repeat(l.threads, func(int) *kvThread { return s.thread() })
		connect(mine)
		threads = append(threads, mine...)
	}
	for i, t := range threads {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		r.w.Go(fmt.Sprintf("thread %d", i), func(p *sim.Proc) error {
			t.p = p
			return x.put(t, rng, uint64(i))
		})
	}
	if err := r.w.Run(ctx); err != nil {
		return o, err
	}
	slices.Sort(x.measured)
	elapsed := x.end - x.start
	o.rate = float64(len(x.measured)) / elapsed.Seconds()
	o.p99 = x.measured[len(x.measured)*99/100]
	o.cpu = float64(time.Duration(x.served)*costs.RPC) / float64(elapsed)
	if l.deletes {
		x.delete(threads)
		o.deletions = float64(x.done) / (x.end - x.start).Seconds()
		o.freed = float64(s.freed) / float64(s.lent)
	}
	return o, nil
}

var errNotFound = errors.New("cannot find a key that has been put")

// put is what a thread does until all threads together have done enough operations.
func (x *kvRun) put(t *kvThread, rng *rand.Rand, id uint64) error {
	ctx, p := t.context(), t.p
	key, value := make([]byte, kvKey), make([]byte, kvValue)
	var buf []byte
	for n := uint64(0); x.done < x.last; n++ {
		if err := p.Sleep(time.Duration(rng.Int64N(int64(2*x.l.client) + 1))); err != nil {
			return err
		}
		start := p.Now()
		full := x.l.updates && len(x.keys) >= x.first/4
		if rng.Float64() < x.l.reads && len(x.keys) > 0 && (full || !x.l.updates) {
			var found bool
			var err error
			binary.LittleEndian.PutUint64(key, x.pick(rng))
			if buf, found, err = x.table.Get(ctx, key, buf[:0]); err != nil || !found {
				return errors.Join(errNotFound, err)
			}
		} else {
			k := id<<32 | n
			if full {
				k = x.pick(rng)
			}
			binary.LittleEndian.PutUint64(key, k)
			if err := x.table.Put(ctx, key, value); err != nil {
				return err
			}
			if !full {
				x.keys = append(x.keys, k)
			}
			if x.l.updates {
				if err := t.giveBack(); err != nil {
					return err
				}
			}
		}
		x.did(start, p.Now())
	}
	return nil
}

// pick draws one of the keys.
func (x *kvRun) pick(rng *rand.Rand) uint64 {
	if x.popular != nil {
		return x.keys[x.popular.Rank(rng)]
	}
	return x.keys[rng.IntN(len(x.keys))]
}

// did notes an operation.
func (x *kvRun) did(start, now time.Duration) {
	switch x.done++; {
	case x.done == x.first:
		x.start, x.served = now, x.busy()
	case x.done > x.first && x.done <= x.last:
		x.measured = append(x.measured, now-start)
		if x.done == x.last {
			x.end, x.served = now, x.busy()-x.served
		}
	}
}

// delete has the threads delete 90 % of the keys at random, and give back the chunks that get empty.
func (x *kvRun) delete(threads []*kvThread) {
	rng := rand.New(rand.NewPCG(x.r.seed, 0))
	rng.Shuffle(len(x.keys), func(i, j int) { x.keys[i], x.keys[j] = x.keys[j], x.keys[i] })
	left := x.keys[:len(x.keys)*9/10]
	x.start, x.done = x.r.w.Now(), len(left)
	for i, t := range threads {
		x.r.w.Go(fmt.Sprintf("thread %d", i), func(p *sim.Proc) error {
			t.p = p
			key := make([]byte, kvKey)
			for ctx := t.context(); len(left) > 0; {
				binary.LittleEndian.PutUint64(key, left[0])
				left = left[1:]
				if found, err := x.table.Delete(ctx, key); err != nil || !found {
					return errors.Join(errNotFound, err)
				}
				if err := t.giveBack(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	check(x.r.w.Run(x.r.ctx))
	x.end = x.r.w.Now()
}
