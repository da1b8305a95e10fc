package simfinemem

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"polder/measure/arrayscan"
	"polder/verbs"
	"polder/verbs/sim"
	"polder/verbs/softnic"
)

// rig is a world with compute nodes and a memory node.
type rig struct {
	ctx     context.Context
	w       *sim.World
	costs   Costs
	seed    uint64
	node    *side
	compute []*side
	// What is closed before the devices and after them.
	before, after []func() error
}

// side is a machine.
type side struct {
	dev *sim.Device
	pd  verbs.PD
	// service is held while the machine's allocation service is busy.
	service sim.Mutex
}

func newRig(ctx context.Context, costs Costs, seed uint64) (*rig, error) {
	w, err := sim.New(costs.Costs)
	if err != nil {
		return nil, err
	}
	r := &rig{ctx: ctx, w: w, costs: costs, seed: seed}
	for i := range computeNodes + 1 {
		s, err := newSide(w)
		if err != nil {
			return nil, errors.Join(err, r.close())
		}
		if i == 0 {
			r.node = s
		} else {
			r.compute = append(r.compute, s)
		}
	}
	return r, nil
}

func newSide(w *sim.World) (*side, error) {
	dev, err := w.NewDevice(softnic.Config{})
	if err != nil {
		return nil, err
	}
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return &side{dev: dev, pd: pd}, nil
}

func (r *rig) close() error {
	var errs []error
	for _, f := range r.before {
		errs = append(errs, f())
	}
	for _, s := range append(r.compute, r.node) {
		if s != nil {
			errs = append(errs, s.dev.Close())
		}
	}
	for _, f := range r.after {
		errs = append(errs, f())
	}
	return errors.Join(append(errs, r.w.Close())...)
}

// host returns the compute node of a thread.
func (r *rig) host(thread int) *side { return r.compute[thread%len(r.compute)] }

// queuePair makes a queue pair that completes into a CQ of its own.
func (s *side) queuePair(depth int) (verbs.QP, verbs.CQ, error) {
	cq, err := s.dev.CreateCQ(verbs.CQInit{Depth: 2 * depth})
	if err != nil {
		return nil, nil, err
	}
	qp, err := s.pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SendDepth: depth, RecvDepth: depth})
	return qp, cq, err
}

// await waits for the next completion of cq, which is to be a success.
func (r *rig) await(cq verbs.CQ) (verbs.WC, error) {
	var wc [1]verbs.WC
	if err := cq.Wait(r.ctx); err != nil {
		return wc[0], err
	}
	cq.Poll(wc[:])
	if err := wc[0].Err(); err != nil {
		return wc[0], fmt.Errorf("cannot complete a work request: %w", err)
	}
	return wc[0], nil
}

// fabric is a queue pair that reaches words of the memory node's. One process
// uses it at a time.
type fabric struct {
	r   *rig
	qp  verbs.QP
	cq  verbs.CQ
	buf verbs.MR // what READs and atomics bring
	to  verbs.MR
}

// reach makes a fabric from a compute node to memory of the node's.
func (r *rig) reach(from *side, to verbs.MR) (*fabric, error) {
	f := &fabric{r: r, to: to}
	var err error
	if f.qp, f.cq, err = from.queuePair(arrayscan.MaxSwaps); err != nil {
		return nil, err
	}
	if f.buf, err = from.pd.RegMR(make([]byte, arrayscan.MaxRead), verbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	peer, _, err := r.node.queuePair(16)
	if err != nil {
		return nil, err
	}
	return f, r.w.Join(from.dev, f.qp, r.node.dev, peer)
}

// remote is the access that one-sided metadata needs.
const remote = verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic

// Read implements arrayscan.Words.
func (f *fabric) Read(_ context.Context, off uint64, n int) ([]byte, error) {
	wr := verbs.SendWR{Op: verbs.OpRead, Flags: verbs.SendSignaled, RemoteAddr: f.to.Addr() + off, RKey: f.to.RKey(),
		SGL: []verbs.SGE{{Addr: f.buf.Addr(), Length: uint32(n), LKey: f.buf.LKey()}}}
	if err := f.qp.PostSend(wr); err != nil {
		return nil, err
	}
	_, err := f.r.await(f.cq)
	return f.buf.Bytes()[:n], err
}

// CompareAndSwap implements arrayscan.Words.
func (f *fabric) CompareAndSwap(_ context.Context, ops []arrayscan.Swap) ([]uint64, error) {
	wrs := make([]verbs.SendWR, len(ops))
	for i, op := range ops {
		wrs[i] = verbs.SendWR{Op: verbs.OpCmpSwap, Flags: verbs.SendSignaled, RemoteAddr: f.to.Addr() + op.Off, RKey: f.to.RKey(),
			Compare: op.Old, Swap: op.New, SGL: []verbs.SGE{{Addr: f.buf.Addr() + uint64(8*i), Length: 8, LKey: f.buf.LKey()}}}
	}
	if err := f.qp.PostSend(wrs...); err != nil {
		return nil, err
	}
	was := make([]uint64, len(ops))
	for range ops {
		if _, err := f.r.await(f.cq); err != nil {
			return nil, err
		}
	}
	for i := range was {
		was[i] = binary.LittleEndian.Uint64(f.buf.Bytes()[8*i:])
	}
	return was, nil
}
