package simcluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"polder/measure/simfinemem"
	"polder/memnode/twolayer"
	"polder/verbs/sim"
	"polder/verbs/softnic"
)

// grain is how many MiB a server borrows at a time, when the allocator runs.
const grain = 16

// pool is a pool of far memory in virtual time, which package pool/finemem allocates over the worker of memory nodes.
// A chunk of 4 KiB stands for one of grain MiB: with 16 MiB, a pool of 160 GiB takes 40 MiB here.
type pool struct {
	ctx     context.Context
	grain   int // MiB that a chunk stands for
	w       *sim.World
	lender  *simfinemem.Lender
	servers []*borrower
	closers []func() error

	lent, back int           // chunks
	took       time.Duration // to borrow all of them and give them back, in virtual time
}

// borrower is a server.
type borrower struct {
	service *simfinemem.Service
	chunks  []func(p *sim.Proc) error // one function for each chunk, which gives it back
}

func newPool(ctx context.Context, servers, mib, grain int) (p *pool, err error) {
	costs := simfinemem.Testbed().Costs
	w, err := sim.New(costs)
	if err != nil {
		return nil, err
	}
	p = &pool{ctx: ctx, grain: grain, w: w}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	dev, err := w.NewDevice(softnic.Config{})
	if err != nil {
		return p, err
	}
	pd, err := dev.AllocPD()
	if err != nil {
		return p, errors.Join(err, dev.Close())
	}
	if p.lender, err = simfinemem.NewLender(ctx, w, costs, dev, pd, mib/grain, twolayer.DefaultUnit); err != nil {
		return p, err
	}
	for range servers {
		dev, err := w.NewDevice(softnic.Config{})
		if err != nil {
			return p, err
		}
		p.closers = append(p.closers, dev.Close)
		pd, err := dev.AllocPD()
		if err != nil {
			return p, err
		}
		service, err := p.lender.Service(dev, pd)
		if err != nil {
			return p, err
		}
		p.servers = append(p.servers, &borrower{service: service})
	}
	return p, nil
}

// borrow has a server borrow chunks, or give some back, until it has mib MiB.
func (p *pool) borrow(server, mib int) error {
	s, want := p.servers[server], mib/p.grain
	start := p.w.Now()
	p.w.Go("server", func(proc *sim.Proc) error {
		for len(s.chunks) > want {
			last := len(s.chunks) - 1
			if err := s.chunks[last](proc); err != nil {
				return err
			}
			s.chunks = s.chunks[:last]
			p.back++
		}
		for len(s.chunks) < want {
			give, err := s.service.Alloc(proc)
			if err != nil {
				return fmt.Errorf("cannot borrow chunk %d of %d: %w", len(s.chunks)+1, want, err)
			}
			s.chunks = append(s.chunks, give)
			p.lent++
		}
		p.took += proc.Now() - start
		return nil
	})
	return p.w.Run(p.ctx)
}

func (p *pool) close() error {
	var errs []error
	if p.lender != nil {
		errs = append(errs, p.lender.Close())
	}
	for _, f := range p.closers {
		errs = append(errs, f())
	}
	return errors.Join(append(errs, p.w.Close())...)
}
