package simlatency

import (
	"polder/measure/simfinemem"
	"polder/memnode/chain"
	"polder/verbs"
	"polder/verbs/sim"
)

// A kvManager returns two functions. connect lets the threads of one compute node, the rig's client, borrow chunks;
// all compute nodes together borrow no more than chunks. busy returns how many requests the memory node's core has
// served.
type kvManager func(r *rig, chunks, threads int) (connect func(threads []*kvThread), busy func() int)

// kvStatic is Static-MR: 16 MiB are registered at a time, before they are needed. Nothing is waited for, and deleting
// entries never makes 16 MiB free.
func kvStatic(*rig, int, int) (func([]*kvThread), func() int) {
	return func(threads []*kvThread) {
		for _, t := range threads {
			t.take = func(*sim.Proc) (giveBack, error) { return nil, nil }
		}
	}, func() int { return 0 }
}

// kvRPC is RPC-MW: a message to the node's core, or to one of as many cores as there are threads. With typ 0 it is
// Premmap-RPC: no window is bound, and giving a chunk back takes a message, too.
func kvRPC(typ verbs.MWType, unlimited bool) kvManager {
	return func(r *rig, chunks, threads int) (func([]*kvThread), func() int) {
		cores := 1
		if unlimited {
			cores = threads
		}
		requests := chunks
		if typ == 0 {
			requests *= 2
		}
		all := repeat(cores, func(int) *core { return newCore(r, typ, (requests+cores-1)/cores+16) })
		for _, c := range all {
			r.w.Daemon("core", c.serve)
		}
		next, at := 0, make(map[*kvThread]*accessor)
		connect := func(threads []*kvThread) {
			for _, t := range threads {
				a := r.accessor()
				all[next%cores].connect(a.qp)
				next++
				at[t] = a
				t.take = func(p *sim.Proc) (giveBack, error) {
					return func(t *kvThread) error { return at[t].request(t.p, 0) }, a.request(p, 0)
				}
			}
		}
		return connect, func() (n int) {
			for _, c := range all {
				n += c.given
			}
			return n
		}
	}
}

// kvOneSided is OneSidedMW: chains, with so many pairs of an Alloc QP and a Free QP for each compute node. If pairs
// is 0, there is a pair for each thread.
func kvOneSided(pairs int) kvManager {
	return func(r *rig, chunks, threads int) (func([]*kvThread), func() int) {
		node := newLender(r, windows, chunks, 2*threads)
		return func(threads []*kvThread) {
			n := pairs
			if n == 0 {
				n = len(threads)
			}
			ends := repeat(n, func(int) *borrower { return node.borrower() })
			for i, t := range threads {
				b, a := ends[i%n], r.accessor()
				t.take = func(p *sim.Proc) (giveBack, error) {
					if err := b.mu.Lock(p); err != nil {
						return nil, err
					}
					defer b.mu.Unlock()
					err := b.allocate(a, b.front.Num())
					entry := node.entries[a.key.Index()]
					return func(t *kvThread) error { return b.release(t.p, entry) }, err
				}
			}
		}, func() int { return 0 }
	}
}

// kvFineMem is FineMem, with an allocation service on each compute node.
func kvFineMem(r *rig, chunks, _ int) (func([]*kvThread), func() int) {
	var node *simfinemem.Lender
	return func(threads []*kvThread) {
		if node == nil {
			node = must(simfinemem.NewLender(r.ctx, r.w, r.costs, r.node.dev, r.node.pd, chunks, threads[0].store.size))
			r.closers = append(r.closers, node.Close)
		}
		service := must(node.Service(r.client.dev, r.client.pd))
		for _, t := range threads {
			t.take = func(p *sim.Proc) (giveBack, error) {
				give, err := service.Alloc(p)
				return func(t *kvThread) error { return give(t.p) }, err
			}
		}
	}, func() int { return 0 }
}

// release gives back a chunk that b has allocated; entry is the chunk's in the node's table.
func (b *borrower) release(p *sim.Proc, entry uint64) error {
	if err := b.freeMu.Lock(p); err != nil {
		return err
	}
	defer b.freeMu.Unlock()
	if err := b.free.PostRecv(verbs.RecvWR{}); err != nil {
		return err
	}
	h := chain.Handle(entry)
	copy(b.buf.Bytes()[handleOff:], h[:])
	if err := b.free.PostSend(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{local(b.buf, handleOff, chain.HandleSize)}}); err != nil {
		return err
	}
	_, err := b.r.await(b.freeCQ)
	return err
}
