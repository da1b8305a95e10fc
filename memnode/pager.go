package memnode

import (
	"fmt"
	"sync/atomic"

	"polder/internal/arena"
	"polder/memnode/chain"
	"polder/verbs"
)

// A pager is where the NIC serves one connection's requests for pages, in one
// direction: a queue pair that the client is connected to, the front, and beside
// it one in loopback that runs the chain (chain.Page). The chain reaches its own
// ring, the table and the queue by windows of type 2B that are bound to its queue
// pair, so no client can.
type pager struct {
	node    *Node
	t       *translation
	write   bool
	front   verbs.QP
	chain   verbs.QP
	recvCQ  verbs.CQ // of front: counted by WAIT only
	sentCQ  verbs.CQ
	cq      verbs.CQ // of chain: nobody looks
	mem     *arena.Mapping
	chainMR verbs.MR // the chain's memory
	frontMR verbs.MR // the front's ring
	own     []verbs.MW
	cfg     chain.PageConfig

	trouble *atomic.Bool // set when the chain has failed
	onEvent func(verbs.AsyncEvent)
}

// The layout of a pager's memory: the chain's, and the front's ring.
const (
	pagerFront  = chain.PageRingSize
	pagerMemory = pagerFront + 4096

	translatedPage = chain.MaxPage // bytes; less if chunks are smaller
)

func newPager(n *Node, t *translation, write bool, trouble *atomic.Bool, onEvent func(verbs.AsyncEvent)) (*pager, error) {
	p := &pager{node: n, t: t, write: write, trouble: trouble, onEvent: onEvent}
	if err := p.open(); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *pager) open() (err error) {
	if p.mem, err = arena.Anonymous(pagerMemory, false); err != nil {
		return err
	}
	pd, dev := p.node.pd, p.node.dev
	if p.chainMR, err = pd.RegMR(p.mem.Bytes()[:pagerFront], verbs.AccessLocalWrite|verbs.AccessMWBind); err != nil {
		return err
	}
	if p.frontMR, err = pd.RegMR(p.mem.Bytes()[pagerFront:], verbs.AccessLocalWrite); err != nil {
		return err
	}
	for _, cq := range []*verbs.CQ{&p.recvCQ, &p.sentCQ, &p.cq} {
		if *cq, err = dev.CreateCQ(verbs.CQInit{Depth: 4, IgnoreOverrun: true}); err != nil {
			return err
		}
	}
	p.front, err = pd.CreateQP(verbs.QPInit{
		SendCQ: p.sentCQ, RecvCQ: p.recvCQ, SendDepth: 1, RecvDepth: 2,
		Managed: true, ManagedRecv: true, SendRing: p.frontMR, OnEvent: p.onEvent,
	})
	if err != nil {
		return fmt.Errorf("cannot create a queue pair for pages: %w", err)
	}
	return nil
}

// start arms the pager, whose front has been connected.
func (p *pager) start() (err error) {
	pd, dev := p.node.pd, p.node.dev
	p.cfg = chain.PageConfig{
		Write: p.write, FrontQP: p.front.Num(), RecvCQ: p.recvCQ.Num(), SentCQ: p.sentCQ.Num(),
		Chain: chain.Region{Addr: p.chainMR.Addr(), LKey: p.chainMR.LKey()},
		Front: chain.Region{Addr: p.frontMR.Addr(), LKey: p.frontMR.LKey()},
		Head:  p.t.queueMR.Addr(), Size: p.t.ringSize, Memory: p.node.mem.mr.LKey(), PageSize: p.t.pageSize,
	}
	p.chain, err = pd.CreateQP(verbs.QPInit{
		SendCQ: p.cq, RecvCQ: p.cq, SendDepth: len(chain.Page(&p.cfg).Chain), RecvDepth: 1,
		Managed: true, SendRing: p.chainMR,
		OnEvent: func(e verbs.AsyncEvent) {
			if e.Type != verbs.EventCommEstablish {
				p.trouble.Store(true)
				p.onEvent(e)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("cannot create a queue pair for a chain: %w", err)
	}
	if err := dev.ConnectLoopback(p.chain, p.chain); err != nil {
		return err
	}
	if err := p.bindOwn(); err != nil {
		return err
	}
	program := chain.Page(&p.cfg)
	if err := p.chain.PostSend(program.Chain...); err != nil {
		return fmt.Errorf("cannot post a chain: %w", err)
	}
	program.Condition(p.mem.Bytes())
	if err := p.front.PostSend(program.Reply); err != nil {
		return fmt.Errorf("cannot post the answer: %w", err)
	}
	recv := verbs.RecvWR{SGL: program.Recv}
	if err := p.front.PostRecv(recv, recv); err != nil {
		return fmt.Errorf("cannot post receives: %w", err)
	}
	if err := p.chain.EnableSend(uint64(len(program.Chain))); err != nil {
		return err
	}
	return p.front.EnableRecv(1)
}

// bindOwn opens the metadata to the chain's queue pair, and to no other.
func (p *pager) bindOwn() error {
	const all = verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic
	b := p.node.mem.binder
	b.WRs = b.WRs[:0]
	for _, t := range []struct {
		mr  verbs.MR
		key *verbs.RKey
	}{{p.chainMR, &p.cfg.Chain.RKey}, {p.t.tableMR, &p.cfg.TableKey}, {p.t.queueMR, &p.cfg.QueueKey}} {
		mw, err := p.node.pd.AllocMW(verbs.MWType2B)
		if err != nil {
			return fmt.Errorf("cannot allocate a window for a chain: %w", err)
		}
		p.own = append(p.own, mw)
		old := mw.RKey()
		*t.key = verbs.MakeRKey(old.Index(), old.Key()+1)
		b.WRs = append(b.WRs, verbs.SendWR{
			Op: verbs.OpBindMW, Flags: verbs.SendSignaled, RKey: *t.key, BindLKey: t.mr.LKey(),
			RemoteAddr: t.mr.Addr(), BindLength: uint64(len(t.mr.Bytes())), BindAccess: all, QPN: p.chain.Num(),
		})
	}
	if _, err := b.Run(); err != nil {
		return fmt.Errorf("cannot open the metadata to a chain: %w", err)
	}
	return nil
}

// busyWith reports whether the chain may have read the entry at addr.
func (p *pager) busyWith(addr uint64) bool {
	return chain.Current(p.mem.Bytes()) == addr
}

// close stops the pager and releases everything.
func (p *pager) close() {
	for _, qp := range []verbs.QP{p.front, p.chain} {
		if qp != nil {
			qp.Close()
		}
	}
	for _, mw := range p.own {
		if err := mw.Dealloc(); err != nil {
			panic(fmt.Sprintf("BUG: cannot deallocate a chain's window: %v", err))
		}
	}
	for _, cq := range []verbs.CQ{p.recvCQ, p.sentCQ, p.cq} {
		if cq != nil {
			cq.Close()
		}
	}
	for _, mr := range []verbs.MR{p.chainMR, p.frontMR} {
		if mr != nil {
			mr.Deregister()
		}
	}
	if p.mem != nil {
		p.mem.Close()
	}
}
