package simfinemem

import (
	"encoding/binary"
	"time"

	"polder/verbs"
	"polder/verbs/sim"
)

// core is the memory node's only core, which serves requests to allocate and to
// free one after the other.
type core struct {
	r     *rig
	cq    verbs.CQ // where requests arrive
	qps   map[uint32]*served
	reply verbs.MR
	given uint64
	// busy is how long a request takes.
	busy func(class int) time.Duration
}

// caller is a thread that asks the core.
type caller struct {
	r   *rig
	qp  verbs.QP
	cq  verbs.CQ
	buf verbs.MR // the request, and at replyAt the reply
}

const (
	requestSize = 16
	replyAt     = 64
	replySize   = 16
)

// calling makes allocators that ask the memory node's core. busy says how long the core takes for a request of a
// class. Every thread has a queue pair of its own: there is no service between it and the node, since the node looks
// after isolation.
func calling(r *rig, threads int, busy func(class int) time.Duration) ([]allocator, error) {
	c := &core{r: r, qps: make(map[uint32]*served), busy: busy}
	var err error
	if c.cq, err = r.node.dev.CreateCQ(verbs.CQInit{Depth: 4 * mostThreads}); err != nil {
		return nil, err
	}
	if c.reply, err = r.node.pd.RegMR(make([]byte, replySize), 0); err != nil {
		return nil, err
	}
	all := make([]allocator, threads)
	for i := range all {
		if all[i], err = c.connect(r.host(i)); err != nil {
			return nil, err
		}
	}
	r.w.Daemon("core", c.serve)
	return all, nil
}

func (c *core) connect(from *side) (*caller, error) {
	a := &caller{r: c.r}
	var err error
	if a.qp, a.cq, err = from.queuePair(16); err != nil {
		return nil, err
	}
	if a.buf, err = from.pd.RegMR(make([]byte, replyAt+replySize), verbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	sent, err := c.r.node.dev.CreateCQ(verbs.CQInit{Depth: 16, IgnoreOverrun: true})
	if err != nil {
		return nil, err
	}
	peer, err := c.r.node.pd.CreateQP(verbs.QPInit{SendCQ: sent, RecvCQ: c.cq, SendDepth: 16, RecvDepth: 16})
	if err != nil {
		return nil, err
	}
	request, err := c.r.node.pd.RegMR(make([]byte, requestSize), verbs.AccessLocalWrite)
	if err != nil {
		return nil, err
	}
	wr := verbs.RecvWR{ID: uint64(len(c.qps)), SGL: []verbs.SGE{{Addr: request.Addr(), Length: requestSize, LKey: request.LKey()}}}
	if err := peer.PostRecv(wr); err != nil {
		return nil, err
	}
	c.qps[peer.Num()] = &served{QP: peer, recv: wr, request: request}
	return a, c.r.w.Join(from.dev, a.qp, c.r.node.dev, peer)
}

// served is a queue pair of the core's, and where its requests arrive.
type served struct {
	verbs.QP
	recv    verbs.RecvWR
	request verbs.MR
}

// serve is the core's process.
func (c *core) serve(p *sim.Proc) error {
	for {
		wc, err := c.r.await(c.cq)
		if err != nil {
			return err
		}
		qp := c.qps[wc.QPN]
		class := int(qp.request.Bytes()[0])
		if err := p.Sleep(c.busy(class)); err != nil {
			return err
		}
		c.given++
		binary.LittleEndian.PutUint64(c.reply.Bytes(), c.given)
		if err := qp.PostRecv(qp.recv); err != nil {
			return err
		}
		err = qp.PostSend(verbs.SendWR{Op: verbs.OpSend,
			SGL: []verbs.SGE{{Addr: c.reply.Addr(), Length: replySize, LKey: c.reply.LKey()}}})
		if err != nil {
			return err
		}
	}
}

// call sends a request and waits for its reply.
func (a *caller) call(class int) (uint64, error) {
	a.buf.Bytes()[0] = byte(class)
	err := a.qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{{Addr: a.buf.Addr() + replyAt, Length: replySize, LKey: a.buf.LKey()}}})
	if err != nil {
		return 0, err
	}
	err = a.qp.PostSend(verbs.SendWR{Op: verbs.OpSend,
		SGL: []verbs.SGE{{Addr: a.buf.Addr(), Length: requestSize, LKey: a.buf.LKey()}}})
	if err != nil {
		return 0, err
	}
	if _, err := a.r.await(a.cq); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(a.buf.Bytes()[replyAt:]), nil
}

// alloc implements allocator.
func (a *caller) alloc(_ *sim.Proc, class int) (uint64, error) { return a.call(class) }

// free implements allocator. Assumed: it keeps the core busy for as long as an allocation does, since it unbinds what
// the allocation has bound.
func (a *caller) free(_ *sim.Proc, _ uint64, class int) error {
	_, err := a.call(class)
	return err
}
