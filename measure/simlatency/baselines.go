package simlatency

import (
	"encoding/binary"
	"fmt"

	"polder/verbs"
	"polder/verbs/sim"
)

// static are threads that access memory which was registered as a whole: they
// have nothing to allocate.
func static(r *rig, threads, _ int) []thread {
	memory := r.node.memory(threads*page, clientAccess)
	return repeat(threads, func(i int) thread {
		a := r.accessor()
		a.addr, a.key = memory.Addr()+uint64(i*page), memory.RKey()
		r.join(a.qp, r.node.queuePair(r.node.cq(16)))
		return thread{access: a.access}
	})
}

// core is the memory node's only core, which serves RPC-MW's requests.
type core struct {
	r      *rig
	typ    verbs.MWType // 0: all memory is open from the start, and nothing is bound
	cq     verbs.CQ     // where requests arrive
	memory verbs.MR
	reply  verbs.MR // replySize for every chunk
	qps    map[uint32]verbs.QP
	keys   []verbs.RKey // of windows that are not bound, or of all memory
	given  int
}

const replySize = 16

func newCore(r *rig, typ verbs.MWType, chunks int) *core {
	n := r.node
	c := &core{r: r, typ: typ, cq: n.cq(1024), qps: make(map[uint32]verbs.QP),
		memory: n.memory(min(chunks, distinct)*page, verbs.AccessLocalWrite|verbs.AccessMWBind),
		reply:  n.memory(chunks*replySize, 0)}
	c.keys = repeat(chunks, func(int) verbs.RKey {
		if typ == 0 {
			return c.memory.RKey()
		}
		return n.window(typ)
	})
	return c
}

// connect connects a client's queue pair.
func (c *core) connect(qp verbs.QP) {
	n := c.r.node
	peer := must(n.pd.CreateQP(verbs.QPInit{SendCQ: n.counter(), RecvCQ: c.cq, SendDepth: 64, RecvDepth: 64}))
	check(peer.PostRecv(verbs.RecvWR{}, verbs.RecvWR{}))
	c.qps[peer.Num()] = peer
	c.r.join(qp, peer)
}

// serve is the core's process: one request after the other.
func (c *core) serve(p *sim.Proc) error {
	for {
		wc, err := c.r.await(c.cq)
		if err != nil {
			return err
		}
		if err := p.Sleep(c.r.costs.RPC); err != nil {
			return err
		}
		if err := c.answer(c.qps[wc.QPN]); err != nil {
			return err
		}
	}
}

// answer binds a window to the next chunk and replies with its address and key,
// in one doorbell. To take a chunk back costs the core as much: it unbinds.
func (c *core) answer(qp verbs.QP) error {
	if c.given == len(c.keys) {
		return fmt.Errorf("cannot allocate: all %d chunks are given out", c.given)
	}
	key, addr := c.keys[c.given], c.memory.Addr()+uint64(c.given%distinct*page)
	reply := c.given * replySize
	le, b := binary.LittleEndian, c.reply.Bytes()[reply:]
	le.PutUint64(b, addr)
	le.PutUint32(b[8:], uint32(key))
	c.given++
	if err := qp.PostRecv(verbs.RecvWR{}); err != nil {
		return err
	}
	wrs := []verbs.SendWR{
		{Op: verbs.OpBindMW, RKey: key, BindLKey: c.memory.LKey(), RemoteAddr: addr, BindLength: page,
			BindAccess: verbs.AccessRemoteRead | verbs.AccessRemoteWrite},
		{Op: verbs.OpSend, SGL: []verbs.SGE{local(c.reply, reply, replySize)}}}
	if c.typ == 0 {
		wrs = wrs[1:]
	}
	return qp.PostSend(wrs...)
}

// request asks for a chunk.
func (a *accessor) request(*sim.Proc, int) error {
	if err := a.qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{local(a.buf, page, replySize)}}); err != nil {
		return err
	}
	if err := a.qp.PostSend(verbs.SendWR{Op: verbs.OpSend}); err != nil {
		return err
	}
	if _, err := a.r.await(a.cq); err != nil {
		return err
	}
	le, b := binary.LittleEndian, a.buf.Bytes()[page:]
	a.addr, a.key = le.Uint64(b), verbs.RKey(le.Uint32(b[8:]))
	return nil
}

// rpc are threads that allocate by messages to the node's core.
func rpc(typ verbs.MWType) manager {
	return func(r *rig, threads, rounds int) []thread {
		c := newCore(r, typ, threads*most(rounds))
		r.w.Daemon("core", c.serve)
		return repeat(threads, func(int) thread {
			a := r.accessor()
			c.connect(a.qp)
			return thread{allocate: a.request, access: a.access}
		})
	}
}
