package odrp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"polder/internal/arena"
	"polder/memnode/chain"
	"polder/verbs"
)

// Pagers are the two pagers by which one connection reaches its client's table.
type Pagers struct {
	t       *Table
	by      [2]*pager // to read and to write pages
	trouble atomic.Bool
	onEvent func(verbs.AsyncEvent)
	stopped func()
}

// Open returns the pagers of the connection that t's client has now. onEvent is called, in any goroutine, with the
// events of their queue pairs. stopped is called when the pagers have had to stop, whatever the client does; their
// queue pairs are closed then.
func (t *Table) Open(onEvent func(verbs.AsyncEvent), stopped func()) *Pagers {
	t.pagers = &Pagers{t: t, onEvent: onEvent, stopped: stopped}
	return t.pagers
}

// Connect answers a request for the queue pair of a pager, which is to write or to read pages. The answer is the
// address of the table. The returned queue pair is nil if the connection has gone meanwhile.
func (p *Pagers) Connect(write bool, req verbs.ConnRequest) (verbs.QP, error) {
	to := &p.by[0]
	if write {
		to = &p.by[1]
	}
	switch {
	case p.t.pagers != p:
		return nil, errors.New("this connection's pages have been taken away")
	case *to != nil:
		return nil, errors.New("a connection has one queue pair for pages each way")
	}
	by, err := newPager(p.t, write, &p.trouble, p.onEvent)
	if err != nil {
		return nil, err
	}
	if err := req.Accept(by.front, binary.LittleEndian.AppendUint64(nil, p.t.tableMR.Addr())); err != nil {
		by.close()
		return nil, nil // the connection is gone, and its watcher will say so
	}
	*to = by
	return by.front, by.start()
}

// Failed reports whether a chain has failed, because the client has asked for a page that it has no right to, or the
// pagers have had to stop. Anybody may call it.
func (p *Pagers) Failed() bool { return p.trouble.Load() }

func (p *Pagers) stop() {
	for i := range p.by {
		if p.by[i] != nil {
			p.by[i].close()
			p.by[i] = nil
		}
	}
	p.trouble.Store(true)
	p.stopped()
}

// busyWith reports whether a chain may have read the entry at addr.
func (p *Pagers) busyWith(addr uint64) bool {
	if p != nil {
		for _, by := range p.by {
			if by != nil && by.busyWith(addr) {
				return true
			}
		}
	}
	return false
}

// A pager is where the NIC serves one connection's requests for pages, in one direction. It has two queue pairs: the
// front, which the client is connected to, and beside it one in loopback that runs the chain (chain.Page). The chain
// reaches its own ring, the table and the queue by windows of type 2B that are bound to the chain's queue pair, so no
// client can use them.
type pager struct {
	t       *Table
	write   bool
	front   verbs.QP
	chain   verbs.QP
	recvCQ  verbs.CQ // of front: only WAITs count its completions
	sentCQ  verbs.CQ
	cq      verbs.CQ // of chain: nobody looks at it
	mem     *arena.Mapping
	chainMR verbs.MR // the chain's memory
	frontMR verbs.MR // the front's ring
	own     []verbs.MW
	cfg     chain.PageConfig

	trouble *atomic.Bool // set when the chain has failed
	onEvent func(verbs.AsyncEvent)
}

// The layout of a pager's memory: the chain's memory, then the front's ring.
const (
	pagerFront  = chain.PageRingSize
	pagerMemory = pagerFront + 4096
)

func newPager(t *Table, write bool, trouble *atomic.Bool, onEvent func(verbs.AsyncEvent)) (*pager, error) {
	p := &pager{t: t, write: write, trouble: trouble, onEvent: onEvent}
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
	pd, dev := p.t.p.PD, p.t.p.Dev
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
	pd, dev := p.t.p.PD, p.t.p.Dev
	p.cfg = chain.PageConfig{
		Write: p.write, FrontQP: p.front.Num(), RecvCQ: p.recvCQ.Num(), SentCQ: p.sentCQ.Num(),
		Chain: chain.Region{Addr: p.chainMR.Addr(), LKey: p.chainMR.LKey()},
		Front: chain.Region{Addr: p.frontMR.Addr(), LKey: p.frontMR.LKey()},
		Head:  p.t.queueMR.Addr(), Size: p.t.ringSize, Memory: p.t.p.MR.LKey(), PageSize: p.t.p.size,
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
	b := p.t.p.Binder
	b.WRs = b.WRs[:0]
	for _, t := range []struct {
		mr  verbs.MR
		key *verbs.RKey
	}{{p.chainMR, &p.cfg.Chain.RKey}, {p.t.tableMR, &p.cfg.TableKey}, {p.t.queueMR, &p.cfg.QueueKey}} {
		mw, err := p.t.p.PD.AllocMW(verbs.MWType2B)
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
