package simlatency

import (
	"encoding/binary"

	"polder/memnode/chain"
	"polder/verbs"
	"polder/verbs/sim"
)

// pageNode is a memory node that runs ODRP's chains as the product does: those of package memnode/chain. One chain
// serves both the first touch of a page and all later ones. So the client need not know which it is, and gains
// nothing if it lies about it. The price: where there is a page already, the work requests that allocate one are
// executed as NOPs.
type pageNode struct {
	r       *rig
	memory  verbs.MR
	admin   verbs.QP
	adminCQ verbs.CQ
}

func newPageNode(r *rig) *pageNode {
	n := r.node
	g := &pageNode{r: r, adminCQ: n.cq(16)}
	g.admin = n.queuePair(g.adminCQ)
	check(n.dev.ConnectLoopback(g.admin, g.admin))
	g.memory = n.memory(distinct*page, verbs.AccessLocalWrite)
	return g
}

// toucher is a client of such a node.
type toucher struct {
	r       *rig
	cq      verbs.CQ
	buf     verbs.MR // request: an entry's address, and the page behind it
	table   verbs.MR // the node's
	queue   *chain.Queue
	queueMR verbs.MR
	in, out verbs.QP
}

// toucher makes a client with a table of some entries, and as many pages in its
// queue.
func (g *pageNode) toucher(entries int) *toucher {
	const private = verbs.AccessLocalWrite | verbs.AccessMWBind
	c, n := g.r.client, g.r.node
	s := &toucher{r: g.r, cq: c.cq(64), buf: c.memory(2*page, verbs.AccessLocalWrite), table: n.memory(8*entries, private)}
	s.queueMR = n.memory(chain.QueueSize(entries, 2), private)
	s.queue = chain.NewQueue(s.queueMR.Bytes(), s.queueMR.Addr(), entries, 2)
	for i := range entries {
		s.queue.Push(g.memory.Addr() + uint64(i%distinct*page))
	}
	s.in, s.out = c.queuePair(s.cq), c.queuePair(s.cq)
	g.offload(s.in, s, false)
	g.offload(s.out, s, true)
	return s
}

// offload makes a queue pair that carries the chain for one direction, and
// connects it to the client's.
func (g *pageNode) offload(client verbs.QP, s *toucher, write bool) {
	cfg := &chain.PageConfig{Write: write, Head: s.queue.Head(), Size: s.queue.Size(), Memory: g.memory.LKey(), PageSize: page}
	front, frontRing := g.r.front(client, 1, &cfg.RecvCQ, &cfg.SentCQ)
	cfg.FrontQP = front.Num()
	cfg.Front = chain.Region{Addr: frontRing.Addr(), LKey: frontRing.LKey()}
	ring := g.r.node.memory(chain.PageRingSize, verbs.AccessLocalWrite|verbs.AccessMWBind)
	cfg.Chain = chain.Region{Addr: ring.Addr(), LKey: ring.LKey()}
	qp := g.r.loop(ring, len(chain.Page(cfg).Chain))
	cfg.Chain.RKey = g.r.bind(g.admin, g.adminCQ, ring, qp)
	cfg.TableKey = g.r.bind(g.admin, g.adminCQ, s.table, qp)
	cfg.QueueKey = g.r.bind(g.admin, g.adminCQ, s.queueMR, qp)
	p := chain.Page(cfg)
	check(qp.PostSend(p.Chain...))
	p.Condition(ring.Bytes())
	g.r.start(qp, len(p.Chain), front, []verbs.SendWR{p.Reply}, p.Recv)
}

// move reads or writes the page of an entry.
func (s *toucher) move(write bool, entry int) error {
	binary.LittleEndian.PutUint64(s.buf.Bytes(), s.table.Addr()+uint64(8*entry))
	qp, request := s.in, local(s.buf, 0, 8)
	answer := verbs.RecvWR{SGL: []verbs.SGE{local(s.buf, 8, page)}}
	if write {
		qp, request, answer = s.out, local(s.buf, 0, 8+page), verbs.RecvWR{}
	}
	if err := qp.PostRecv(answer); err != nil {
		return err
	}
	if err := qp.PostSend(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{request}}); err != nil {
		return err
	}
	_, err := s.r.await(s.cq)
	return err
}

// odrp makes threads whose every access is a request: the first access to a page allocates it.
func odrp(r *rig, threads, rounds int) []thread {
	g := newPageNode(r)
	return repeat(threads, func(int) thread {
		s := g.toucher(most(rounds))
		return thread{
			allocate: func(_ *sim.Proc, i int) error { return s.move(true, i) },
			access:   func(_ *sim.Proc, i int) error { return s.move(i%2 == 1, i) },
		}
	})
}
