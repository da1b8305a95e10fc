package simlatency

import (
	"encoding/binary"

	"polder/memnode/chain"
	"polder/verbs"
	"polder/verbs/sim"
)

// pager is a memory node that runs ODRP's chains as its authors have them (section
// 2.2.3 of the paper): one for accesses and another for first touches; the client
// knows which it needs. pageNode is what the product runs.
//
// Every client has a translation table of words, one per swap slot, and every
// access goes through a chain that looks the slot's page up. A client's requests
// say which word, an address that the table's window confines, and where the
// page goes to or comes from.
type pager struct {
	r       *rig
	queue   *chain.Queue // of pages that are free
	queueMR verbs.MR
	memory  verbs.MR
	admin   verbs.QP
	adminCQ verbs.CQ
}

func newPager(r *rig, pages, chains int) *pager {
	n := r.node
	g := &pager{r: r, adminCQ: n.cq(16)}
	g.admin = n.queuePair(g.adminCQ)
	check(n.dev.ConnectLoopback(g.admin, g.admin))
	g.memory = n.memory(min(pages, distinct)*page, verbs.AccessLocalWrite)
	queue := make([]byte, chain.QueueSize(pages, chains))
	g.queueMR = must(n.pd.RegMR(queue, verbs.AccessLocalWrite|verbs.AccessMWBind))
	g.queue = chain.NewQueue(queue, g.queueMR.Addr(), pages, chains)
	for i := range pages {
		g.queue.Push(g.memory.Addr() + uint64(i%distinct*page))
	}
	return g
}

// table makes a translation table.
func (g *pager) table(slots int) verbs.MR {
	return g.r.node.memory(8*slots, verbs.AccessLocalWrite|verbs.AccessMWBind)
}

// odrpRing is the size of the memory of a chain's ring: requests, then a word of
// zero and one that takes what nobody needs.
const odrpRing = 2048

// offload makes a queue pair that carries a chain for op, READ or WRITE of a
// page, and connects it to the client's. One that allocates gives every slot
// that it is asked for a new page first: first-touch WRITE, ODRP's AllocWrite.
func (g *pager) offload(client verbs.QP, table verbs.MR, op verbs.Opcode, allocates bool) {
	var recvCQ, sentCQ uint32
	const depth = 2
	front, frontRing := g.r.front(client, depth, &recvCQ, &sentCQ)
	ring := g.r.node.memory(odrpRing, verbs.AccessLocalWrite|verbs.AccessMWBind)

	b := &builder{ring: ring}
	build := func(tableKey, queueKey verbs.RKey) (recv []verbs.SGE) {
		b.wrs = nil
		// The first request of the front moves the page.
		local := local(frontRing, verbs.WQESGE0, 8)
		wait := b.add(verbs.SendWR{Op: verbs.OpWait, CQN: recvCQ, Count: 1})
		var slot int
		if allocates {
			head := b.add(verbs.SendWR{Op: verbs.OpMaskedFetchAdd, RemoteAddr: g.queue.Head(), RKey: queueKey,
				Swap: 8, Compare: g.queue.Wrap()})
			const dup, element, zero = 2, 3, 5
			b.wrs[head].SGL = []verbs.SGE{b.field(element, verbs.WQEAddr, 8)}
			b.add(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.SendFence, RemoteAddr: b.field(zero, verbs.WQEAddr, 8).Addr,
				RKey: b.key, SGL: b.wrs[head].SGL})
			b.add(verbs.SendWR{Op: verbs.OpRead, RKey: queueKey, SGL: []verbs.SGE{local}})
			slot = b.add(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.SendFence, RKey: tableKey, SGL: []verbs.SGE{local}})
			b.add(verbs.SendWR{Op: verbs.OpWrite, RKey: queueKey, SGL: []verbs.SGE{b.word(odrpZero)}})
		} else {
			slot = b.add(verbs.SendWR{Op: verbs.OpRead, RKey: tableKey, SGL: []verbs.SGE{local}})
		}
		open := b.add(verbs.SendWR{Op: verbs.OpEnableRecv, QPN: front.Num(), Count: 2})
		move := b.add(verbs.SendWR{Op: verbs.OpEnable, Flags: verbs.SendFence, QPN: front.Num(), Count: depth})
		moved := b.add(verbs.SendWR{Op: verbs.OpWait, CQN: sentCQ, Count: 1})
		b.bump(wait, 1)
		b.bump(open, 1)
		b.bump(move, depth)
		b.bump(moved, 1)
		b.again()
		return []verbs.SGE{b.field(slot, verbs.WQEAddr, 8), {Addr: frontRing.Addr() + verbs.WQEAddr, Length: 12, LKey: frontRing.LKey()}}
	}
	build(0, 0)
	qp := g.r.loop(ring, len(b.wrs))
	b.key = g.r.bind(g.admin, g.adminCQ, ring, qp)
	tableKey := g.r.bind(g.admin, g.adminCQ, table, qp)
	queueKey := g.r.bind(g.admin, g.adminCQ, g.queueMR, qp)
	recv := build(tableKey, queueKey)

	move := verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{{Length: page, LKey: g.memory.LKey()}}}
	if op == verbs.OpWrite { // the page comes from the client
		move.Op = verbs.OpRead
	}
	check(qp.PostSend(b.wrs...))
	g.r.start(qp, len(b.wrs), front, []verbs.SendWR{
		move,
		{Op: verbs.OpSend, Flags: verbs.SendFence | verbs.SendSignaled},
	}, recv)
}

// Words behind the requests of an ODRP chain's ring.
const (
	odrpZero  = odrpRing - 8
	odrpTrash = odrpRing - 16
)

// builder builds a chain that recycles itself.
type builder struct {
	ring verbs.MR
	key  verbs.RKey // of a window over it, bound to the chain's queue pair
	wrs  []verbs.SendWR
}

func (b *builder) add(wr verbs.SendWR) int {
	b.wrs = append(b.wrs, wr)
	return len(b.wrs) - 1
}

func (b *builder) word(off int) verbs.SGE { return local(b.ring, off, 8) }

func (b *builder) field(index, off, size int) verbs.SGE {
	return local(b.ring, index*verbs.WQESize+off, size)
}

// bump appends a FETCH_ADD to the count of the request of an index.
func (b *builder) bump(index int, by uint64) {
	b.add(verbs.SendWR{Op: verbs.OpFetchAdd, RemoteAddr: b.field(index, verbs.WQEAddr, 8).Addr, RKey: b.key,
		Swap: by, SGL: []verbs.SGE{b.word(odrpTrash)}})
}

// again appends what makes the chain start over.
func (b *builder) again() {
	length := uint64(len(b.wrs) + 2)
	b.bump(len(b.wrs)+1, length)
	b.add(verbs.SendWR{Op: verbs.OpEnable, Flags: verbs.SendFence, Count: 2 * length})
}

// swapper is a client of ODRP.
type swapper struct {
	r       *rig
	cq      verbs.CQ
	buf     verbs.MR // page, request
	table   verbs.MR // the node's
	alloc   verbs.QP
	in, out verbs.QP
}

func (g *pager) swapper(slots int) *swapper {
	c := g.r.client
	s := &swapper{r: g.r, cq: c.cq(64), buf: c.memory(2*page, clientAccess), table: g.table(slots)}
	s.alloc, s.in, s.out = c.queuePair(s.cq), c.queuePair(s.cq), c.queuePair(s.cq)
	g.offload(s.alloc, s.table, verbs.OpWrite, true)
	g.offload(s.in, s.table, verbs.OpRead, false)
	g.offload(s.out, s.table, verbs.OpWrite, false)
	return s
}

// request asks for one page to be moved and waits until it has been.
func (s *swapper) request(qp verbs.QP, slot int) error {
	le, b := binary.LittleEndian, s.buf.Bytes()[page:]
	le.PutUint64(b, s.table.Addr()+uint64(8*slot))
	le.PutUint64(b[8:], s.buf.Addr())
	le.PutUint32(b[16:], uint32(s.buf.RKey()))
	if err := qp.PostRecv(verbs.RecvWR{}); err != nil {
		return err
	}
	if err := qp.PostSend(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{local(s.buf, page, 20)}}); err != nil {
		return err
	}
	_, err := s.r.await(s.cq)
	return err
}

// odrp are threads whose every access is a request: the first of a page
// allocates it.
func odrp(r *rig, threads, rounds int) []thread {
	g := newPager(r, threads*most(rounds), 3*threads)
	return repeat(threads, func(int) thread {
		s := g.swapper(most(rounds))
		return thread{
			allocate: func(_ *sim.Proc, i int) error { return s.request(s.alloc, i) },
			access: func(_ *sim.Proc, i int) error {
				if i%2 == 1 {
					return s.request(s.out, i)
				}
				return s.request(s.in, i)
			},
		}
	})
}
