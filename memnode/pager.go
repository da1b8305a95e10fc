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
// it one in loopback that runs the chain. A request is the address of an entry
// of the client's translation table, and behind it a page if that is to be
// written. The chain
//
//	WAIT       for the request, which the receive scatters into the fields below
//	WRITE      the entry's address to where the CPU sees it: see odrp, on limbo
//	FETCH_ADD  0 to the entry: a translation, or 0
//	CMP_SWAP   the opcodes of the next four from NOP to what they are, if it was 0
//	  FETCH_ADD  on the head of the client's queue of free pages
//	  READ       the element
//	  WRITE      zero into the element
//	  WRITE      the page's address into the entry
//	FETCH_ADD  0 to the entry: now it is a translation
//	READ       the page that came with the request into it, or
//	ENABLE     a SEND of it; the SEND says that the chain is ready again
//	...        restores the opcodes and its own counts, and enables itself
//
// The entry is read by an atomic operation because that must be aligned: half of
// one entry and half of the next one would make an address of the client's
// choice. The chain reaches its own ring, the table and the queue by windows of
// type 2B that are bound to its queue pair, so no client can.
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
	chainMR verbs.MR // the chain's ring, words and a page
	frontMR verbs.MR // the front's ring
	own     []verbs.MW
	wrs     []verbs.SendWR

	chainKey, tableKey, queueKey verbs.RKey

	trouble *atomic.Bool // set when the chain has failed
	onEvent func(verbs.AsyncEvent)
}

// The layout of a pager's memory. The chain's ring comes first.
const (
	pagerTrash   = 3072 // takes what nobody needs
	pagerZero    = 3080 // 0
	pagerElement = 3088 // what was taken from the queue
	pagerCurrent = 3096 // the entry that is being worked on, or 0
	pagerStaging = 4096 // a page to be written
	pagerFront   = 8192 // the front's ring
	pagerMemory  = 12288

	translatedPage = 4096 // bytes; less if chunks are smaller
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
	const depth = pagerTrash / verbs.WQESize
	pd, dev := p.node.pd, p.node.dev
	p.build() // for its length
	p.chain, err = pd.CreateQP(verbs.QPInit{
		SendCQ: p.cq, RecvCQ: p.cq, SendDepth: len(p.wrs), RecvDepth: 1,
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
	if len(p.wrs) > depth {
		panic("BUG: the chain does not fit into its ring")
	}
	if err := dev.ConnectLoopback(p.chain, p.chain); err != nil {
		return err
	}
	if err := p.bindOwn(); err != nil {
		return err
	}
	conditions := p.build()
	if err := p.chain.PostSend(p.wrs...); err != nil {
		return fmt.Errorf("cannot post a chain: %w", err)
	}
	// What is executed for an entry without a page only is a NOP, until it
	// gets its opcode and flags back.
	ring := p.mem.Bytes()
	for _, c := range conditions {
		header := ring[c.request*verbs.WQESize:]
		chain.Store(ring[c.flip*verbs.WQESize+verbs.WQESwap:], chain.Load(header))
		chain.Store(header, 0)
	}
	size := p.t.pageSize
	reply := verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled}
	request := []verbs.SGE{p.field(p.entry(), verbs.WQEAddr, 8)}
	if p.write {
		request = append(request, p.at(pagerStaging, size))
	} else {
		// The address is the chain's to fill in.
		reply.SGL = []verbs.SGE{{Length: uint32(size), LKey: p.node.mem.mr.LKey()}}
	}
	if err := p.front.PostSend(reply); err != nil {
		return fmt.Errorf("cannot post the answer: %w", err)
	}
	recv := verbs.RecvWR{SGL: request}
	if err := p.front.PostRecv(recv, recv); err != nil {
		return fmt.Errorf("cannot post receives: %w", err)
	}
	if err := p.chain.EnableSend(uint64(len(p.wrs))); err != nil {
		return err
	}
	return p.front.EnableRecv(1)
}

// bindOwn opens the metadata to the chain's queue pair, and to no other.
func (p *pager) bindOwn() error {
	const all = verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic
	b := p.node.mem.binder
	b.wrs = b.wrs[:0]
	for _, t := range []struct {
		mr  verbs.MR
		key *verbs.RKey
	}{{p.chainMR, &p.chainKey}, {p.t.tableMR, &p.tableKey}, {p.t.queueMR, &p.queueKey}} {
		mw, err := p.node.pd.AllocMW(verbs.MWType2B)
		if err != nil {
			return fmt.Errorf("cannot allocate a window for a chain: %w", err)
		}
		p.own = append(p.own, mw)
		old := mw.RKey()
		*t.key = verbs.MakeRKey(old.Index(), old.Key()+1)
		b.wrs = append(b.wrs, verbs.SendWR{
			Op: verbs.OpBindMW, Flags: verbs.SendSignaled, RKey: *t.key, BindLKey: t.mr.LKey(),
			RemoteAddr: t.mr.Addr(), BindLength: uint64(len(t.mr.Bytes())), BindAccess: all, QPN: p.chain.Num(),
		})
	}
	if _, err := b.run(); err != nil {
		return fmt.Errorf("cannot open the metadata to a chain: %w", err)
	}
	return nil
}

// at is an SGE in the pager's memory.
func (p *pager) at(off, size int) verbs.SGE {
	return verbs.SGE{Addr: p.chainMR.Addr() + uint64(off), Length: uint32(size), LKey: p.chainMR.LKey()}
}

// field is an SGE for a field of the chain's request of an index.
func (p *pager) field(index, off, size int) verbs.SGE {
	return p.at(index*verbs.WQESize+off, size)
}

func (p *pager) add(wr verbs.SendWR) int {
	wr.ID = uint64(len(p.wrs))
	p.wrs = append(p.wrs, wr)
	return len(p.wrs) - 1
}

// put appends a WRITE of a word of the pager's memory to another of it.
func (p *pager) put(from, to verbs.SGE, flags verbs.SendFlags) int {
	return p.add(verbs.SendWR{Op: verbs.OpWrite, Flags: flags, RemoteAddr: to.Addr, RKey: p.chainKey, SGL: []verbs.SGE{from}})
}

func (p *pager) bump(index int, by uint64) {
	p.add(verbs.SendWR{Op: verbs.OpFetchAdd, RemoteAddr: p.field(index, verbs.WQEAddr, 8).Addr,
		RKey: p.chainKey, Swap: by, SGL: []verbs.SGE{p.at(pagerTrash, 8)}})
}

// entry is the index of the first look at the entry, whose address is the
// request's.
func (p *pager) entry() int { return 4 }

// A condition is a request that is executed only if another has flipped its
// opcode.
type condition struct{ request, flip int }

// build makes the chain anew.
func (p *pager) build() (conditions []condition) {
	const fence = verbs.SendFence
	const conditional = 4
	p.wrs = p.wrs[:0]
	wait := p.add(verbs.SendWR{Op: verbs.OpWait, CQN: p.recvCQ.Num(), Count: 1})
	flip := p.entry() + conditional
	pop := flip + conditional
	element, zero, install, again := pop+2, pop+3, pop+4, pop+5
	addr := p.field(p.entry(), verbs.WQEAddr, 8)
	p.put(addr, p.at(pagerCurrent, 8), 0)
	p.put(addr, p.field(install, verbs.WQEAddr, 8), 0)
	p.put(addr, p.field(again, verbs.WQEAddr, 8), 0)
	found := p.field(flip, verbs.WQECompare, 8)
	p.add(verbs.SendWR{Op: verbs.OpFetchAdd, RKey: p.tableKey, SGL: []verbs.SGE{found}})
	for i := 1; i < conditional; i++ {
		p.put(found, p.field(flip+i, verbs.WQECompare, 8), fence)
	}
	for i, request := range []int{pop, element, zero, install} {
		conditions = append(conditions, condition{request, flip + i})
		p.add(verbs.SendWR{Op: verbs.OpCmpSwap, RemoteAddr: p.field(request, 0, 8).Addr, RKey: p.chainKey,
			SGL: []verbs.SGE{p.at(pagerTrash, 8)}})
	}
	p.add(verbs.SendWR{Op: verbs.OpMaskedFetchAdd, RemoteAddr: p.t.queueMR.Addr(), RKey: p.queueKey,
		Swap: 8, Compare: p.t.ringSize >> 1, SGL: []verbs.SGE{p.field(element, verbs.WQEAddr, 8)}})
	p.put(p.field(element, verbs.WQEAddr, 8), p.field(zero, verbs.WQEAddr, 8), fence)
	p.add(verbs.SendWR{Op: verbs.OpRead, RKey: p.queueKey, SGL: []verbs.SGE{p.at(pagerElement, 8)}})
	p.add(verbs.SendWR{Op: verbs.OpWrite, Flags: fence, RKey: p.queueKey, SGL: []verbs.SGE{p.at(pagerZero, 8)}})
	p.add(verbs.SendWR{Op: verbs.OpWrite, Flags: fence, RKey: p.tableKey, SGL: []verbs.SGE{p.at(pagerElement, 8)}})
	translated := verbs.SGE{Addr: p.frontMR.Addr() + verbs.WQESGE0, Length: 8, LKey: p.frontMR.LKey()}
	if p.write {
		translated = p.field(again+1, verbs.WQESGE0, 8)
	}
	p.add(verbs.SendWR{Op: verbs.OpFetchAdd, Flags: fence, RKey: p.tableKey, SGL: []verbs.SGE{translated}})
	if p.write {
		p.add(verbs.SendWR{Op: verbs.OpRead, Flags: fence, RemoteAddr: p.at(pagerStaging, 0).Addr, RKey: p.chainKey,
			SGL: []verbs.SGE{{Length: uint32(p.t.pageSize), LKey: p.node.mem.mr.LKey()}}})
	}
	// Opened when the page that came with the request has been used.
	open := p.add(verbs.SendWR{Op: verbs.OpEnableRecv, Flags: fence, QPN: p.front.Num(), Count: 2})
	reply := p.add(verbs.SendWR{Op: verbs.OpEnable, Flags: fence, QPN: p.front.Num(), Count: 1})
	sent := p.add(verbs.SendWR{Op: verbs.OpWait, CQN: p.sentCQ.Num(), Count: 1})
	p.put(p.at(pagerZero, 8), p.at(pagerCurrent, 8), 0)
	for _, c := range conditions {
		p.put(p.at(pagerZero, 8), p.field(c.request, 0, 8), 0)
	}
	for _, i := range []int{wait, open, reply, sent} {
		p.bump(i, 1)
	}
	length := uint64(len(p.wrs) + 2)
	p.bump(len(p.wrs)+1, length)
	p.add(verbs.SendWR{Op: verbs.OpEnable, Flags: fence, Count: length})
	return conditions
}

// busyWith reports whether the chain may have read the entry at addr.
func (p *pager) busyWith(addr uint64) bool {
	return chain.Load(p.mem.Bytes()[pagerCurrent:]) == addr
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
