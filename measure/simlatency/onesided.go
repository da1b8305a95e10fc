package simlatency

import (
	"encoding/binary"

	"polder/memnode/chain"
	"polder/verbs"
	"polder/verbs/sim"
)

// windows is how many windows a chunk has, except for tasks that swap: one for the Free QP and one for access, as in
// section 5.2 of the paper.
const windows = 2

// lender is a memory node that runs OneSidedMW's chains: those of package
// memnode/chain, which the product runs.
type lender struct {
	r                *rig
	windows          int // of a chunk
	table            *chain.Table
	queue            *chain.Queue
	tableMR, queueMR verbs.MR
	admin            verbs.QP // binds windows for the chains, in loopback
	adminCQ          verbs.CQ
	offloads         int
	entries          map[uint32]uint64 // of chunks, by the index of their access window's key
}

func newLender(r *rig, windows, chunks, chains int) *lender {
	n := r.node
	l := &lender{r: r, windows: windows, adminCQ: n.cq(16), entries: make(map[uint32]uint64)}
	l.admin = n.queuePair(l.adminCQ)
	check(n.dev.ConnectLoopback(l.admin, l.admin))

	const private = verbs.AccessLocalWrite | verbs.AccessMWBind
	table := make([]byte, chain.TableSize(chunks))
	l.tableMR = must(n.pd.RegMR(table, private))
	l.table = must(chain.NewTable(table, l.tableMR.Addr(), windows))
	queue := make([]byte, chain.QueueSize(chunks, chains))
	l.queueMR = must(n.pd.RegMR(queue, private))
	l.queue = chain.NewQueue(queue, l.queueMR.Addr(), chunks, chains)
	memory := n.memory(min(chunks, distinct)*page, private)
	for i := range uint32(chunks) {
		l.table.Describe(i, memory.Addr()+uint64(i%distinct)*page, memory.LKey())
		for j := range windows {
			key := n.window(verbs.MWType2B)
			l.table.SetKey(i, j, key)
			l.entries[key.Index()] = l.table.Entry(i)
		}
		l.queue.Push(l.table.Entry(i))
	}
	return l
}

// bind binds a window over a region to a queue pair in loopback, so that its
// chain, and nobody else, can use it.
func (r *rig) bind(admin verbs.QP, cq verbs.CQ, m verbs.MR, to verbs.QP) (key verbs.RKey) {
	key = r.node.window(verbs.MWType2B)
	r.do(func(*sim.Proc) error {
		err := admin.PostSend(verbs.SendWR{Op: verbs.OpBindMW, Flags: verbs.SendSignaled, RKey: key, BindLKey: m.LKey(),
			RemoteAddr: m.Addr(), BindLength: uint64(len(m.Bytes())), BindAccess: windowAccess, QPN: to.Num()})
		if err != nil {
			return err
		}
		_, err = r.await(cq)
		return err
	})
	return key
}

// offload makes a queue pair of the node's that carries a chain, and connects it to a client's. If free is nil, the
// chain frees chunks. Otherwise it allocates them, and free is the queue pair that carries the chain that frees them.
// As in the paper's experiment there are no budgets.
func (l *lender) offload(client verbs.QP, free verbs.QP) (front verbs.QP) {
	n := l.r.node
	cfg := &chain.Config{Table: l.table, Queue: l.queue, ChunkSize: page,
		Access: verbs.AccessRemoteRead | verbs.AccessRemoteWrite}
	program, depth := chain.Free, l.windows+1
	if free != nil {
		program, depth = chain.Alloc, 2
		cfg.FreeQP = free.Num()
	} else {
		cfg.To = l.queue.Tail()
	}
	front, frontRing := l.r.front(client, depth, &cfg.RecvCQ, &cfg.SentCQ)
	cfg.FrontQP = front.Num()
	cfg.Front = chain.Region{Addr: frontRing.Addr(), LKey: frontRing.LKey()}

	ring := n.memory(chain.RingSize, verbs.AccessLocalWrite|verbs.AccessMWBind)
	cfg.Chain = chain.Region{Addr: ring.Addr(), LKey: ring.LKey()}
	qp := l.r.loop(ring, len(program(cfg).Chain))
	cfg.Chain.RKey = l.r.bind(l.admin, l.adminCQ, ring, qp)
	cfg.TableKey = l.r.bind(l.admin, l.adminCQ, l.tableMR, qp)
	cfg.QueueKey = l.r.bind(l.admin, l.adminCQ, l.queueMR, qp)
	l.offloads++
	chain.SetOwner(ring.Bytes(), uint64(l.offloads))

	p := program(cfg)
	check(qp.PostSend(p.Chain...))
	l.r.start(qp, len(p.Chain), front, p.Front, p.Recv)
	return front
}

// front makes the queue pair that a client's requests arrive at.
func (r *rig) front(client verbs.QP, depth int, recvCQ, sentCQ *uint32) (front verbs.QP, ring verbs.MR) {
	n := r.node
	ring = n.memory(depth*verbs.WQESize, verbs.AccessLocalWrite)
	recv, sent := n.counter(), n.counter()
	*recvCQ, *sentCQ = recv.Num(), sent.Num()
	front = must(n.pd.CreateQP(verbs.QPInit{SendCQ: sent, RecvCQ: recv, SendDepth: depth, RecvDepth: 2,
		Managed: true, ManagedRecv: true, SendRing: ring}))
	r.join(client, front)
	return front, ring
}

// loop makes the queue pair in loopback that executes a chain.
func (r *rig) loop(ring verbs.MR, depth int) verbs.QP {
	cq := r.node.counter()
	qp := must(r.node.pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SendDepth: depth, Managed: true, SendRing: ring}))
	check(r.node.dev.ConnectLoopback(qp, qp))
	return qp
}

// start posts the work requests of a chain's front, and lets the first request in. The chain itself must have been
// posted.
func (r *rig) start(qp verbs.QP, depth int, front verbs.QP, answers []verbs.SendWR, recv []verbs.SGE) {
	check(front.PostSend(answers...))
	check(front.PostRecv(verbs.RecvWR{SGL: recv}, verbs.RecvWR{SGL: recv}))
	check(front.EnableRecv(1))
	check(qp.EnableSend(uint64(depth)))
}

// borrower is a client's Alloc QP, and the Free QP beside it.
type borrower struct {
	accessor          // its queue pair is the Alloc QP
	front    verbs.QP // the node's end of it
	mu       sim.Mutex

	free   verbs.QP // the Free QP
	freeCQ verbs.CQ
	freeMu sim.Mutex
}

func (l *lender) borrower() *borrower {
	b := &borrower{accessor: *l.r.accessor()}
	c := l.r.client
	b.freeCQ = c.cq(64)
	b.free = c.queuePair(b.freeCQ)
	b.front = l.offload(b.qp, l.offload(b.free, nil))
	return b
}

// The requests and the answer lie behind the page in an accessor's buffer.
const (
	answerOff = page + 64
	handleOff = page + 128
)

// allocate takes a chunk for a, with a window that belongs to the node's queue pair with that number.
func (b *borrower) allocate(a *accessor, number uint32) error {
	le, buf := binary.LittleEndian, b.buf.Bytes()
	le.PutUint32(buf[page:], number)
	le.PutUint64(buf[page+4:], b.buf.Addr()+answerOff)
	le.PutUint32(buf[page+12:], uint32(b.buf.RKey()))
	if err := b.qp.PostRecv(verbs.RecvWR{}); err != nil {
		return err
	}
	request := local(b.buf, page, chain.RequestSize(windows))
	if err := b.qp.PostSend(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{request}}); err != nil {
		return err
	}
	if _, err := b.r.await(b.cq); err != nil {
		return err
	}
	a.addr, a.key = le.Uint64(buf[answerOff:]), verbs.RKey(le.Uint32(buf[answerOff+16:]))
	return nil
}

// oneSided makes threads that access memory through the queue pair that they allocate it with: each queue pair
// carries offloaded logic.
func oneSided(r *rig, threads, rounds int) []thread {
	node := newLender(r, windows, threads*most(rounds), 2*threads)
	return repeat(threads, func(int) thread {
		b := node.borrower()
		return thread{
			allocate: func(*sim.Proc, int) error { return b.allocate(&b.accessor, b.front.Num()) },
			access:   b.access,
		}
	})
}

// separated makes threads that access memory through queue pairs of their own, and allocate it with a number of Alloc
// QPs that they share.
func separated(pairs int) manager {
	return func(r *rig, threads, rounds int) []thread {
		pairs := min(pairs, threads)
		node := newLender(r, windows, threads*most(rounds), 2*pairs)
		borrowers := repeat(pairs, func(int) *borrower { return node.borrower() })
		return repeat(threads, func(i int) thread {
			a, b := r.accessor(), borrowers[i%pairs]
			peer := r.node.queuePair(r.node.cq(16))
			r.join(a.qp, peer)
			return thread{
				allocate: func(p *sim.Proc, _ int) error {
					if err := b.mu.Lock(p); err != nil {
						return err
					}
					defer b.mu.Unlock()
					return b.allocate(a, peer.Num())
				},
				access: a.access,
			}
		})
	}
}

// besides makes threads that access registered memory while queue pairs with offloaded logic wait for requests that
// do not come.
func besides(offloads int) manager {
	return func(r *rig, threads, rounds int) []thread {
		node := newLender(r, windows, 1, offloads)
		var free verbs.QP
		for i := range offloads { // half of them are Alloc QPs
			front := node.offload(r.client.queuePair(r.client.cq(16)), free)
			if free = nil; i%2 == 0 {
				free = front
			}
		}
		return static(r, threads, rounds)
	}
}
