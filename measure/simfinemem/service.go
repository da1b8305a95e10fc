package simfinemem

import (
	"context"
	"errors"

	"polder/memnode/twolayer"
	"polder/pool/finemem"
	"polder/verbs"
	"polder/verbs/sim"
)

// A Lender is a memory node of somebody else's experiment that lends chunks of one size
// by FineMem.
type Lender struct {
	r     *rig
	node  *lender
	users uint16
}

// NewLender returns a lender of so many chunks of size bytes each. costs are the world's costs of the NIC. Close it.
func NewLender(ctx context.Context, w *sim.World, costs sim.Costs, dev *sim.Device, pd verbs.PD, chunks, size int) (*Lender, error) {
	r := &rig{ctx: ctx, w: w, costs: Testbed(), node: &side{dev: dev, pd: pd}}
	r.costs.Costs = costs
	layout, err := twolayer.NewLayout(uint64(chunks)*uint64(size), uint64(size))
	if err != nil {
		return nil, err
	}
	l := &Lender{r: r}
	if l.node, err = newLender(r, layout); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	w.Daemon("worker", l.node.work)
	return l, nil
}

// Close ends the lender, and its device.
func (l *Lender) Close() error {
	var errs []error
	for _, f := range l.r.before {
		errs = append(errs, f())
	}
	errs = append(errs, l.r.node.dev.Close())
	for _, f := range l.r.after {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// A Service is the allocation service of a compute node, which serves one request of its
// threads at a time.
type Service struct {
	host *side
	user *fineMem
}

// Service returns the service of the compute node of a device.
func (l *Lender) Service(dev *sim.Device, pd verbs.PD) (*Service, error) {
	l.users++
	s := &Service{host: &side{dev: dev, pd: pd}}
	var err error
	s.user, err = newFineMem(l.r, s.host, l.users, finemem.Paper, false, l.node, &counts{})
	return s, err
}

// Alloc borrows a chunk for a thread, and returns a function that gives it back.
func (s *Service) Alloc(p *sim.Proc) (giveBack func(p *sim.Proc) error, err error) {
	costs, class := &s.user.r.costs, s.user.a.Layout().Least
	var at uint64
	err = s.host.serve(p, costs, queued, func() (err error) {
		at, err = s.user.alloc(p, class)
		return err
	})
	return func(p *sim.Proc) error {
		return s.host.serve(p, costs, queued, func() error { return s.user.free(p, at, class) })
	}, err
}
