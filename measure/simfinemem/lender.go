package simfinemem

import (
	"errors"
	"time"

	"polder/internal/arena"
	"polder/memnode/rebind"
	"polder/memnode/twolayer"
	"polder/verbs"
	"polder/verbs/sim"
)

// lender is the memory node, as far as FineMem needs it: the words, and the product's
// worker, package memnode/rebind, with its constants. What the simulation adds is the
// time that the node's core takes.
type lender struct {
	r      *rig
	table  *twolayer.Table
	words  verbs.MR
	worker *rebind.Worker
	bells  verbs.CQ
	ringer map[uint32]verbs.QP
	// core is held by whoever computes: the worker, or the answer to a request. In the
	// product both are the control goroutine's.
	core sim.Mutex
}

func newLender(r *rig, l twolayer.Layout) (*lender, error) {
	n := &lender{r: r, ringer: make(map[uint32]verbs.QP)}
	words := make([]byte, l.Bytes())
	var err error
	if n.table, err = twolayer.NewTable(words, l); err != nil {
		return nil, err
	}
	if n.words, err = r.node.pd.RegMR(words, remote); err != nil {
		return nil, err
	}
	if n.bells, err = r.node.dev.CreateCQ(verbs.CQInit{Depth: rebind.Doorbells * mostThreads}); err != nil {
		return nil, err
	}
	mem := rebind.Memory{PD: r.node.pd}
	if mem.Map, err = arena.Anonymous(int(uint64(l.Chunks)*l.Unit), false); err != nil {
		return nil, err
	}
	r.after = append(r.after, mem.Map.Close)
	if mem.MR, err = r.node.pd.RegMR(mem.Map.Bytes(), verbs.AccessLocalWrite|verbs.AccessMWBind); err != nil {
		return nil, err
	}
	r.w.Go("set-up", func(*sim.Proc) (err error) {
		if n.worker, err = rebind.New(r.node.dev, mem, n.table); err == nil {
			r.before = append(r.before, n.worker.Close)
		}
		return err
	})
	return n, r.w.Run(r.ctx)
}

// metadataQP is the node's end of a client's queue pair.
func (n *lender) metadataQP() (verbs.QP, error) {
	sent, err := n.r.node.dev.CreateCQ(verbs.CQInit{Depth: 16, IgnoreOverrun: true})
	if err != nil {
		return nil, err
	}
	qp, err := n.r.node.pd.CreateQP(verbs.QPInit{SendCQ: sent, RecvCQ: n.bells, SendDepth: 1, RecvDepth: rebind.Doorbells})
	if err != nil {
		return nil, err
	}
	n.ringer[qp.Num()] = qp
	return qp, qp.PostRecv(make([]verbs.RecvWR, rebind.Doorbells)...)
}

// answerBells posts again the receive of every doorbell that has come.
func (n *lender) answerBells() error {
	var wcs [32]verbs.WC
	for got := n.bells.Poll(wcs[:]); got > 0; got = n.bells.Poll(wcs[:]) {
		for _, wc := range wcs[:got] {
			if err := errors.Join(wc.Err(), n.ringer[wc.QPN].PostRecv(verbs.RecvWR{})); err != nil {
				return err
			}
		}
	}
	return nil
}

// work is the worker's process, which does what the node's control goroutine does.
func (n *lender) work(p *sim.Proc) error {
	for {
		if err := n.answerBells(); err != nil {
			return err
		}
		rest := n.worker.Turn()
		next := p.Now() + rest
		for !n.worker.Idle() {
			if err := n.batch(p); err != nil {
				return err
			}
		}
		if n.worker.Again() {
			continue
		}
		if rest < rebind.SlowPoll {
			if err := p.Sleep(next - p.Now()); err != nil {
				return err
			}
			continue
		}
		if err := n.bells.Wait(n.r.ctx); err != nil { // no doorbell gets lost here, so no timeout is needed
			return err
		}
		if err := p.Sleep(n.r.costs.Wake); err != nil {
			return err
		}
	}
}

// batch has the worker deal with a batch, and takes the core's time for it.
func (n *lender) batch(p *sim.Proc) error {
	if err := n.core.Lock(p); err != nil {
		return err
	}
	defer n.core.Unlock()
	if n.worker.Idle() {
		return nil // somebody else was faster
	}
	done, err := n.worker.Batch()
	if err != nil {
		return err
	}
	c, pages := &n.r.costs, time.Duration(1)<<n.table.Least
	return p.Sleep(time.Duration(done) * (c.Host + pages*c.Zero))
}

// settle does what the node does, as memnode, when a client asks it to deal with all that was freed, and takes as
// long.
func (n *lender) settle(p *sim.Proc) error {
	c := &n.r.costs
	if err := p.Sleep(2*c.PCIeWrite + 2*c.Wire); err != nil { // the messages
		return err
	}
	if err := n.core.Lock(p); err != nil {
		return err
	}
	err := p.Sleep(c.Wake)
	want := n.worker.Backlog()
	n.core.Unlock()
	for err == nil && n.worker.Done() < want {
		err = n.batch(p)
	}
	for i := uint32(0); err == nil && i < n.table.Sections(); i++ {
		n.worker.CloseIdle(i)
	}
	return err
}
