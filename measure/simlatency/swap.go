package simlatency

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"polder/memnode/chain"
	"polder/verbs"
	"polder/verbs/sim"
	"polder/verbs/softnic"
)

// A swapLoad says what an experiment does: tasks on compute nodes go through memory of which half is far, over and
// over. To bring a page in, a task writes another one out. It borrows far memory by the segment, when it writes the
// first page to it, and gives it back when it has read the last one.
type swapLoad struct {
	nodes, tasks int           // compute nodes, tasks of all of them
	segment      int           // pages that are borrowed at a time
	rounds       int           // segments that each task goes through and that count
	compute      time.Duration // what a task does with a page, on average
	// writers is how many cores of a compute node write pages out. A segment with windows of
	// type 2 belongs to the queue pairs of the core that has borrowed it, whoever reads it.
	writers int
}

// Constants of the experiment.
const (
	// ahead is how many pages a fault brings: Linux reads ahead eight.
	ahead = 8
	// resident is how many segments of a task are far; each task writes them before it begins.
	resident = 2
	// swapSegment is a MiB in pages, which the paper's tasks borrow at a time.
	swapSegment = 256
	// swapCompute is how long k-means computes on a page, on average. Assumed: the least with which 48 tasks do not
	// wait for the node's link. The paper's tasks cannot have waited for the link either, since they would have
	// waited for it with every manager. It is swept.
	swapCompute = 16 * time.Microsecond
	// swapWriters is how many cores of a compute node write pages out. A window of type 2 is for one queue pair. So
	// whoever reads a page uses the queue pairs of the core that borrowed the page's segment ("selects the
	// appropriate QP group based on the target chunk", section 5.1); without grouping, that core has only one for
	// everything. Assumed: one, as Fastswap has one core that evicts for all others. It is swept.
	swapWriters = 1
	// swapRPC is how long the node's core is busy with a request. Fitted to figure 2(b): with
	// 48 tasks and windows of type 2 it is busy for 56 % of the time.
	swapRPC = 27 * time.Microsecond
)

// lane is a queue pair of one or several tasks. Requests of a lane are carried out in order.
type lane struct {
	r              *rig
	qp             verbs.QP
	sent, received verbs.CQ
	buf            verbs.MR
	posted, done   int // requests that were signaled

	polled bool     // one of the tasks waits for a completion
	others sim.Cond // the other tasks, which wait for what it finds
}

func (r *rig) lane() *lane {
	c := r.client
	n := &lane{r: r, sent: c.cq(laneDepth), received: c.cq(16), buf: c.memory(2*page, clientAccess)}
	n.qp = must(c.pd.CreateQP(verbs.QPInit{SendCQ: n.sent, RecvCQ: n.received, SendDepth: laneDepth, RecvDepth: 16}))
	return n
}

// laneDepth is enough for what all tasks of a compute node have under way: each reads ahead
// pages and writes as many.
const laneDepth = 4 * ahead * mostSwapTasks / swapNodes

// plain connects a lane to a queue pair of the node's that carries nothing, and returns it.
func (n *lane) plain() verbs.QP {
	peer := n.r.node.queuePair(n.r.node.cq(16))
	n.r.join(n.qp, peer)
	return peer
}

// post reads or writes a page of a segment, and returns what to wait for.
func (n *lane) post(op verbs.Opcode, addr uint64, key verbs.RKey) (int, error) {
	err := n.qp.PostSend(verbs.SendWR{Op: op, Flags: verbs.SendSignaled, RemoteAddr: addr, RKey: key, SGL: []verbs.SGE{local(n.buf, 0, page)}})
	n.posted++
	return n.posted, err
}

// wait waits until what post returned is done.
func (n *lane) wait(p *sim.Proc, until int) error {
	for n.done < until {
		if n.polled {
			if err := n.others.Wait(p); err != nil {
				return err
			}
			continue
		}
		n.polled = true
		if _, err := n.r.await(n.sent); err != nil {
			return err
		}
		n.polled = false
		n.done++
		n.others.Broadcast()
	}
	return nil
}

// ask sends size bytes at an offset of the buffer, and waits for an answer of up to most bytes, which is put at the
// offset answer.
func (n *lane) ask(at, size, answer, most int) error {
	if err := n.qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{local(n.buf, answer, most)}}); err != nil {
		return err
	}
	request := verbs.SendWR{Op: verbs.OpSend}
	if size > 0 {
		request.SGL = []verbs.SGE{local(n.buf, at, size)}
	}
	if err := n.qp.PostSend(request); err != nil {
		return err
	}
	_, err := n.r.await(n.received)
	return err
}

// swapSpace is a segment of far memory that has been borrowed. now is the key for reads that a task waits for at
// once, soon for reads and writes that it does not wait for at once.
type swapSpace struct {
	addr      uint64
	now, soon verbs.RKey
	entry     uint64 // of the node's table
	out, in   int    // pages written and read
}

// A swapper is a task's way to far memory.
type swapper struct {
	now, soon *lane // the same unless they are grouped
	take      func(p *sim.Proc) (*swapSpace, error)
	give      func(p *sim.Proc, s *swapSpace) error // nil: nothing to do
}

// A swapManager makes the swappers of the tasks on one compute node, the rig's client.
type swapManager struct {
	name  string
	build func(r *rig, l swapLoad, chunks int) (node func(tasks int) []swapper, busy func() int)
}

// shared makes the swappers of so many tasks. Tasks share them: there are no more than there are cores that write
// out.
func shared(tasks, writers int, way func() swapper) []swapper {
	ways := repeat(min(tasks, writers), func(int) swapper { return way() })
	return repeat(tasks, func(i int) swapper { return ways[i%len(ways)] })
}

// swapStatic is Static-MR: memory was registered, and nothing is to be borrowed.
func swapStatic(r *rig, _ swapLoad, _ int) (func(int) []swapper, func() int) {
	memory := r.node.memory(page, clientAccess)
	return func(tasks int) []swapper {
		return repeat(tasks, func(int) swapper {
			w := swapper{now: r.lane(), soon: r.lane()}
			w.now.plain()
			w.soon.plain()
			w.take = func(*sim.Proc) (*swapSpace, error) {
				return &swapSpace{addr: memory.Addr(), now: memory.RKey(), soon: memory.RKey()}, nil
			}
			return w
		})
	}, func() int { return 0 }
}

// swapCore is RPC-MW: a message to the node's core. A window of type 1 is open to all queue pairs, and binding it
// again takes back what it was bound to. A window of type 2 is for the queue pair that asked, and giving it back
// takes a message, too.
func swapCore(typ verbs.MWType) func(*rig, swapLoad, int) (func(int) []swapper, func() int) {
	return func(r *rig, l swapLoad, chunks int) (func(int) []swapper, func() int) {
		c := newCore(r, typ, 2*chunks)
		r.w.Daemon("core", c.serve)
		return func(tasks int) []swapper {
			writers := tasks // with windows of type 1, whoever has the key may read
			if typ != verbs.MWType1 {
				writers = l.writers
			}
			return shared(tasks, writers, func() swapper {
				w := swapper{now: r.lane()}
				w.soon = w.now
				c.connect(w.now.qp)
				if typ == verbs.MWType1 {
					w.soon = r.lane()
					w.soon.plain()
				}
				ask := func() error { return w.now.ask(0, 0, page, replySize) }
				w.take = func(*sim.Proc) (*swapSpace, error) {
					err := ask()
					b := w.now.buf.Bytes()[page:]
					key := verbs.RKey(binary.LittleEndian.Uint32(b[8:]))
					return &swapSpace{addr: binary.LittleEndian.Uint64(b), now: key, soon: key}, err
				}
				if typ != verbs.MWType1 {
					w.give = func(*sim.Proc, *swapSpace) error { return ask() }
				}
				return w
			})
		}, func() int { return c.given }
	}
}

// swapChains is OneSidedMW: the chains that memory nodes run. With group, a chunk has a window for each of two queue
// pairs of a task. With separate, these queue pairs carry no chain: the compute node has one Alloc QP and one Free
// QP, as in section 5.1.
func swapChains(group, separate bool) func(*rig, swapLoad, int) (func(int) []swapper, func() int) {
	return func(r *rig, l swapLoad, chunks int) (func(int) []swapper, func() int) {
		windows := 2
		if group {
			windows = 3
		}
		node := newLender(r, windows, chunks, 2*(l.nodes+2*l.tasks))
		return func(tasks int) []swapper {
			free := r.lane()
			back := node.offload(free.qp, nil)
			alloc := r.lane()
			if separate {
				node.offload(alloc.qp, back)
			}
			return shared(tasks, l.writers, func() swapper {
				connect := func(n *lane) verbs.QP {
					if separate {
						return n.plain()
					}
					return node.offload(n.qp, back)
				}
				w, lender := swapper{now: r.lane()}, alloc
				qps := []verbs.QP{connect(w.now)}
				w.soon = w.now
				if group {
					w.soon = r.lane()
					qps = append(qps, connect(w.soon))
				}
				if !separate {
					lender = w.now
				}
				w.take = func(*sim.Proc) (*swapSpace, error) { return lender.borrow(qps) }
				w.give = func(_ *sim.Proc, s *swapSpace) error {
					h := chain.Handle(s.entry)
					copy(free.buf.Bytes()[handleOff:], h[:])
					return free.ask(handleOff, chain.HandleSize, answerOff, 0)
				}
				return w
			})
		}, func() int { return 0 }
	}
}

// borrow has a chain take a chunk, with a window for each of the node's queue pairs.
func (n *lane) borrow(qps []verbs.QP) (*swapSpace, error) {
	le, b := binary.LittleEndian, n.buf.Bytes()
	at := page
	for _, qp := range qps {
		le.PutUint32(b[at:], qp.Num())
		at += 4
	}
	le.PutUint64(b[at:], n.buf.Addr()+answerOff)
	le.PutUint32(b[at+8:], uint32(n.buf.RKey()))
	if err := n.ask(page, chain.RequestSize(len(qps)+1), handleOff, 0); err != nil {
		return nil, err
	}
	answer := b[answerOff:]
	s := &swapSpace{addr: le.Uint64(answer), entry: le.Uint64(answer[8:]), now: verbs.RKey(le.Uint32(answer[16:]))}
	if s.soon = s.now; len(qps) > 1 {
		s.soon = verbs.RKey(le.Uint32(answer[20:]))
	}
	return s, nil
}

// swapManagers are the rows of figure 9, and OneSidedMW without separation, and without grouping as well.
var swapManagers = []swapManager{
	{swapStaticName, swapStatic},
	{swapRPC1Name, swapCore(verbs.MWType1)},
	{swapRPC2Name, swapCore(verbs.MWType2B)},
	{swapOursName, swapChains(true, true)},
	{swapNoSepName, swapChains(true, false)},
	{swapNoneName, swapChains(false, false)},
}

const (
	swapStaticName = "Static-MR"
	swapRPC1Name   = "RPC-MW type 1"
	swapRPC2Name   = "RPC-MW type 2"
	swapOursName   = "OneSidedMW"
	swapNoSepName  = "OneSidedMW without separation"
	swapNoneName   = "OneSidedMW without both"
)

// swapOutcome is the result of an experiment.
type swapOutcome struct {
	page time.Duration // what a task takes for a page, on average
	wait time.Duration // how long it waits for a fault's first page, on average
	cpu  float64       // share of the time that the node's core worked
	lent float64       // segments that a task has borrowed, on average, beyond what its far pages fill
}

// measureSwap runs one experiment in a world of its own.
func measureSwap(ctx context.Context, costs sim.Costs, seed uint64, m swapManager, l swapLoad) (o swapOutcome, err error) {
	defer caught(&err)
	costs.RPC = swapRPC
	r := newRig(ctx, costs, seed)
	defer r.close()
	x := &swapRun{r: r, l: l}
	node, busy := m.build(r, l, l.tasks*(resident+3*l.rounds+4))
	x.busy = busy
	var all []*swapTask // all tasks are made before any of them runs
	for i := range l.nodes {
		tasks := (l.tasks + l.nodes - 1 - i) / l.nodes
		if tasks == 0 {
			break
		}
		if i > 0 {
			dev := must(r.w.NewDevice(softnic.Config{}))
			defer dev.Close()
			r.client = &side{dev: dev, pd: must(dev.AllocPD())}
		}
		mine := &swapNode{}
		for _, w := range node(tasks) {
			all = append(all, &swapTask{x: x, node: mine, swapper: w, rng: rand.New(rand.NewPCG(seed, uint64(len(all))))})
		}
	}
	for i, t := range all {
		r.w.Go(fmt.Sprintf("task %d", i), t.run)
	}
	if err := r.w.Run(ctx); err != nil {
		return o, err
	}
	elapsed := x.end - x.start
	n := time.Duration(x.pages)
	return swapOutcome{page: x.spent / n, wait: x.waited / time.Duration(x.faults),
		cpu:  float64(time.Duration(x.served)*costs.RPC) / float64(elapsed),
		lent: x.excess / float64(x.pages)}, nil
}

// swapRun is an experiment under way.
type swapRun struct {
	r    *rig
	l    swapLoad
	busy func() int

	begun, ended  int           // tasks that have begun the rounds that count, and that have ended them
	start, end    time.Duration // from the first that began to the last that ended
	served        int           // requests that the core served: until start; after the end, from start to end
	pages, faults int
	spent, waited time.Duration
	excess        float64
}

// swapNode is a compute node. Its map from segments to far memory is locked while a segment is borrowed or given
// back, so all tasks that write pages out wait for that.
type swapNode struct{ segments sim.Mutex }

// locked runs f with the node's segments locked.
func (n *swapNode) locked(p *sim.Proc, f func() error) error {
	if err := n.segments.Lock(p); err != nil {
		return err
	}
	defer n.segments.Unlock()
	return f()
}

// swapTask goes through its memory.
type swapTask struct {
	swapper
	x       *swapRun
	node    *swapNode
	rng     *rand.Rand
	far     []*swapSpace // the oldest first; pages are written to the last and read from the first
	written int          // what to wait for until the pages written last have arrived
}

func (t *swapTask) run(p *sim.Proc) error {
	x, l := t.x, t.x.l
	if err := t.pause(p, 100*time.Microsecond); err != nil {
		return err
	}
	// Tasks begin at different places of a segment, as they do when they have run a while.
	for n := resident*l.segment + t.rng.IntN(l.segment/ahead)*ahead; n > 0; n -= ahead {
		if err := t.out(p); err != nil {
			return err
		}
	}
	faults := l.rounds * l.segment / ahead
	var start time.Duration
	for i := 0; x.ended < l.tasks && i < 3*faults; i++ {
		if i == faults/2 {
			if x.begun++; x.begun == 1 {
				x.start, x.served = p.Now(), x.busy()
			}
			start = p.Now()
		}
		counts := i >= faults/2 && i < faults/2+faults
		if err := t.fault(p, counts); err != nil {
			return err
		}
		if i == faults/2+faults-1 {
			x.spent += p.Now() - start
			x.pages += faults * ahead
			if x.ended++; x.ended == l.tasks {
				x.end, x.served = p.Now(), x.busy()-x.served
			}
		}
	}
	return nil
}

// pause rests for d on average.
func (t *swapTask) pause(p *sim.Proc, d time.Duration) error {
	return p.Sleep(time.Duration(t.rng.Int64N(int64(2*d) + 1)))
}

// fault brings a page and those behind it, and computes on them. At some point in between, it writes as many pages
// out.
func (t *swapTask) fault(p *sim.Proc, counts bool) error {
	s, start := t.far[0], p.Now()
	first, err := t.now.post(verbs.OpRead, s.addr, s.now)
	if err != nil {
		return err
	}
	var others [ahead]int
	for i := 1; i < ahead; i++ {
		if others[i], err = t.soon.post(verbs.OpRead, s.addr, s.soon); err != nil {
			return err
		}
	}
	if err := t.now.wait(p, first); err != nil {
		return err
	}
	if counts {
		t.x.waited += p.Now() - start
		t.x.faults++
	}
	reclaim := t.rng.IntN(ahead)
	for i := range ahead {
		if i > 0 {
			if err := t.soon.wait(p, others[i]); err != nil {
				return err
			}
		}
		rest := time.Duration(t.rng.Int64N(int64(2*t.x.l.compute) + 1))
		if i == reclaim {
			before := time.Duration(t.rng.Int64N(int64(rest) + 1))
			if err := p.Sleep(before); err != nil {
				return err
			}
			if err := t.out(p); err != nil {
				return err
			}
			rest -= before
		}
		if err := p.Sleep(rest); err != nil {
			return err
		}
	}
	if s.in += ahead; s.in == t.x.l.segment {
		t.far = t.far[1:]
		if err := t.soon.wait(p, t.soon.posted); err != nil {
			return err
		}
		if t.give != nil {
			if err := t.node.locked(p, func() error { return t.give(p, s) }); err != nil {
				return err
			}
		}
	}
	if counts {
		pages := 0
		for _, s := range t.far {
			pages += s.out - s.in
		}
		t.x.excess += ahead * (float64(len(t.far)) - float64(pages)/float64(t.x.l.segment))
	}
	return nil
}

// out writes out as many pages as a fault brings, after those of the call before have been written.
func (t *swapTask) out(p *sim.Proc) error {
	if err := t.soon.wait(p, t.written); err != nil {
		return err
	}
	return t.node.locked(p, func() (err error) {
		if len(t.far) == 0 || t.far[len(t.far)-1].out == t.x.l.segment {
			s, err := t.take(p)
			if err != nil {
				return err
			}
			t.far = append(t.far, s)
		}
		s := t.far[len(t.far)-1]
		for range ahead {
			if t.written, err = t.soon.post(verbs.OpWrite, s.addr, s.soon); err != nil {
				return err
			}
			s.out++
		}
		return nil
	})
}
