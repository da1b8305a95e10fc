package memnode

import (
	"fmt"
	"slices"
	"sync/atomic"

	"polder/internal/arena"
	"polder/memnode/chain"
	"polder/memnode/wire"
	"polder/verbs"
)

// A desk is where the NIC serves one connection's requests to allocate or to free. It has two queue pairs: the front,
// which the client is connected to, and beside it one in loopback that runs the chain. The fields belong to the
// control goroutine.
type desk struct {
	w       *windows
	front   verbs.QP
	chain   verbs.QP // nil while it has failed
	recvCQ  verbs.CQ // of front: only WAITs count its completions
	sentCQ  verbs.CQ
	cq      verbs.CQ // of chain: a WAIT of the allocation chain counts the free chain's completions
	mem     *arena.Mapping
	chainMR verbs.MR
	frontMR verbs.MR
	own     []verbs.MW // windows that are bound to chain
	program *chain.Program
	make    func(*chain.Config) *chain.Program
	cfg     chain.Config
	onEvent func(verbs.AsyncEvent)
	refused atomic.Bool // front has failed, and not because the client closed its end
}

// newDesk returns a desk that runs the chain that make builds. cfg holds what make needs beyond the table and the
// queue; owner is the owner number of the client's session.
func newDesk(dev verbs.Device, w *windows, owner uint64, make func(*chain.Config) *chain.Program, cfg chain.Config, onEvent func(verbs.AsyncEvent)) (*desk, error) {
	d := &desk{w: w, make: make, cfg: cfg, onEvent: onEvent}
	if err := d.open(dev, owner); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

func (d *desk) open(dev verbs.Device, owner uint64) (err error) {
	if d.mem, err = arena.Anonymous(2*chain.RingSize, false); err != nil {
		return err
	}
	const rights = verbs.AccessLocalWrite | verbs.AccessMWBind
	if d.chainMR, err = d.w.pd.RegMR(d.mem.Bytes()[:chain.RingSize], rights); err != nil {
		return err
	}
	if d.frontMR, err = d.w.pd.RegMR(d.mem.Bytes()[chain.RingSize:], rights); err != nil {
		return err
	}
	chain.SetOwner(d.ring(), owner)
	for _, cq := range []*verbs.CQ{&d.recvCQ, &d.sentCQ} {
		if *cq, err = dev.CreateCQ(verbs.CQInit{Depth: 4, IgnoreOverrun: true}); err != nil {
			return err
		}
	}
	if d.cq, err = dev.CreateCQ(verbs.CQInit{Depth: 1, IgnoreOverrun: true}); err != nil {
		return err
	}
	d.cfg.Prefetched = dev.Attr().Prefetches
	d.cfg.Table, d.cfg.Queue = d.w.table, d.w.queue
	d.cfg.RecvCQ, d.cfg.SentCQ = d.recvCQ.Num(), d.sentCQ.Num()
	d.cfg.Chain = chain.Region{Addr: d.chainMR.Addr(), LKey: d.chainMR.LKey()}
	d.cfg.Front = chain.Region{Addr: d.frontMR.Addr(), LKey: d.frontMR.LKey()}
	p := d.make(&d.cfg) // for its sizes
	if d.front, err = d.w.pd.CreateQP(verbs.QPInit{
		SendCQ: d.sentCQ, RecvCQ: d.recvCQ, SendDepth: len(p.Front), RecvDepth: 2,
		Managed: true, ManagedRecv: true, SendRing: d.frontMR,
		OnEvent: func(e verbs.AsyncEvent) {
			if e.Type != verbs.EventCommEstablish && e.Type != verbs.EventDisconnected {
				d.refused.Store(true)
			}
			d.onEvent(e)
		},
	}); err != nil {
		return err
	}
	d.cfg.FrontQP = d.front.Num()
	return nil
}

// ring is the memory of the chain's queue.
func (d *desk) ring() []byte { return d.mem.Bytes()[:chain.RingSize] }

// start arms the desk whose front has been connected.
func (d *desk) start(dev verbs.Device) error {
	if err := d.arm(dev); err != nil {
		return err
	}
	p := d.program
	if err := d.front.PostSend(p.Front...); err != nil {
		return fmt.Errorf("cannot post the answer: %w", err)
	}
	recv := verbs.RecvWR{SGL: p.Recv}
	if err := d.front.PostRecv(recv, recv); err != nil {
		return fmt.Errorf("cannot post receives: %w", err)
	}
	return d.front.EnableRecv(1)
}

// arm makes a new queue pair run the chain.
func (d *desk) arm(dev verbs.Device) (err error) {
	depth := len(d.make(&d.cfg).Chain)
	d.chain, err = d.w.pd.CreateQP(verbs.QPInit{
		SendCQ: d.cq, RecvCQ: d.cq, SendDepth: depth, RecvDepth: 1,
		Managed: true, SendRing: d.chainMR, OnEvent: d.onEvent,
	})
	if err != nil {
		return fmt.Errorf("cannot create a queue pair for a chain: %w", err)
	}
	if err := dev.ConnectLoopback(d.chain, d.chain); err != nil {
		return err
	}
	if err := d.bindOwn(); err != nil {
		return err
	}
	d.program = d.make(&d.cfg)
	if err := d.chain.PostSend(d.program.Chain...); err != nil {
		return fmt.Errorf("cannot post a chain: %w", err)
	}
	return d.chain.EnableSend(uint64(d.program.First))
}

// bindOwn opens the metadata to the chain's queue pair, and to no other.
func (d *desk) bindOwn() error {
	type target struct {
		mr     verbs.MR
		access verbs.Access
		key    *verbs.RKey
	}
	const all = verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic
	targets := []target{
		{d.w.tableMR, all, &d.cfg.TableKey},
		{d.w.queueMR, all, &d.cfg.QueueKey},
		{d.chainMR, all, &d.cfg.Chain.RKey},
	}
	if d.cfg.Zeros != nil {
		targets = append(targets, target{d.w.mr, verbs.AccessRemoteWrite, &d.cfg.ZeroRKey})
	}
	b := d.w.binder
	b.WRs = b.WRs[:0]
	for _, t := range targets {
		mw, err := d.w.pd.AllocMW(verbs.MWType2B)
		if err != nil {
			return fmt.Errorf("cannot allocate a window for a chain: %w", err)
		}
		d.own = append(d.own, mw)
		*t.key = next(mw.RKey())
		length := uint64(len(t.mr.Bytes()))
		if t.mr == d.w.tableMR {
			// Not the padding behind it: see package chain on handles.
			length = uint64(len(d.w.all)/d.w.count) * verbs.EntrySize
		}
		b.WRs = append(b.WRs, verbs.SendWR{
			Op: verbs.OpBindMW, Flags: verbs.SendSignaled, RKey: *t.key, BindLKey: t.mr.LKey(),
			RemoteAddr: t.mr.Addr(), BindLength: length, BindAccess: t.access, QPN: d.chain.Num(),
		})
	}
	if _, err := b.Run(); err != nil {
		return fmt.Errorf("cannot open the metadata to a chain: %w", err)
	}
	return nil
}

// disarm destroys the chain's queue pair.
func (d *desk) disarm() {
	if d.chain != nil {
		d.chain.Close()
		d.chain = nil
	}
	for i := range d.own {
		d.w.drop(&d.own[i])
	}
	d.own = d.own[:0]
}

// resume arms the desk again after its chain has failed. done and failed are how many requests the chain has served,
// and has received in vain.
func (d *desk) resume(dev verbs.Device, done, failed uint64) error {
	d.cfg.Done, d.cfg.Failed = done, failed
	if err := d.arm(dev); err != nil {
		return err
	}
	return d.front.EnableRecv(done + failed + 1)
}

// received is how many requests the chain has begun to serve. Anybody may call it.
func (d *desk) received() uint64 { return chain.Received(d.ring()) }

// close releases everything. The windows that are bound to the front are already gone.
func (d *desk) close() {
	d.disarm()
	if d.front != nil {
		d.front.Close()
	}
	for _, cq := range []verbs.CQ{d.recvCQ, d.sentCQ, d.cq} {
		if cq != nil {
			cq.Close()
		}
	}
	for _, mr := range []verbs.MR{d.chainMR, d.frontMR} {
		if mr != nil {
			mr.Deregister()
		}
	}
	if d.mem != nil {
		d.mem.Close()
	}
}

// A counter is what onesided keeps for one connection: the queue pairs and chains by which the NIC serves its chunks.
type counter struct {
	client  *client
	owner   uint64
	groups  [][]verbs.QP // access queue pairs, nil where not yet connected
	pairs   []pair
	listed  []wire.Grant // the chunks its session had when it connected, bound to its queue pairs
	bound   bool
	cut     bool // it asked for more than its budget
	trouble atomic.Bool
}

// A pair is what a client allocates chunks with, and frees those chunks with. Each pair has a part of the client's
// budget. The NIC counts every pair by itself, so the parts together keep the client within its whole budget.
type pair struct {
	account chain.Account
	alloc   *desk // nil if the allocation verb is used
	free    *desk
	verb    verbs.QP // for the allocation verb; nil if chains are used
}

// freed is how many requests p's free chain has begun to serve.
func (p *pair) freed() uint64 {
	if p.free == nil {
		return 0
	}
	return p.free.received()
}

// first is the queue pair that the first window of each of p's chunks is bound to. A free over it proves that the
// chunk's owner asks.
func (p *pair) first() verbs.QP {
	if p.verb != nil {
		return p.verb
	}
	return p.free.front
}

// complete reports whether every queue pair is connected.
func (k *counter) complete() error {
	for i, group := range k.groups {
		if slices.Contains(group, nil) {
			return fmt.Errorf("an access queue pair of group %d of %d is not connected", i, len(k.groups))
		}
	}
	for i := range k.pairs {
		if p := &k.pairs[i]; p.verb == nil && (p.alloc == nil || p.free == nil) {
			return fmt.Errorf("queue pair %d of %d to allocate with is not connected", i, len(k.pairs))
		}
	}
	return nil
}
