package allocbench

import (
	"context"
	"errors"

	"polder/memnode"
	"polder/memnode/twolayer"
	"polder/pool/finemem"
	"polder/pool/manager"
	"polder/verbs"
	"polder/verbs/softnic"
)

// service is one of FineMem's clients, which allocates every size from one node.
type service struct {
	*finemem.Session
	dev verbs.Device
}

// dialService connects one.
func (f *fabric) dialService(ctx context.Context, addr string) (s *service, err error) {
	dev, err := f.newDevice(softnic.Config{Name: "client"})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, dev.Close())
		}
	}()
	conn, err := f.dial(ctx, dev, addr)
	if err != nil {
		return nil, err
	}
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, err
	}
	cq, err := dev.CreateCQ(verbs.CQInit{Depth: 16})
	if err != nil {
		return nil, err
	}
	session, err := finemem.Manager{}.Attach(ctx, manager.Link{
		Device: dev, PD: pd, Conn: conn,
		Access: func() (verbs.QP, error) {
			return pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SendDepth: 4, RecvDepth: 1})
		},
	})
	if err != nil {
		return nil, err
	}
	return &service{session.(*finemem.Session), dev}, nil
}

// close disconnects.
func (s *service) close() error {
	s.Close()
	return s.dev.Close()
}

// startServices starts a node with chunks of twolayer.DefaultUnit, and services.
func (f *fabric) startServices(ctx context.Context, cfg memnode.Config, n int) (r *rig, all []*service, err error) {
	cfg.ChunkSize = twolayer.DefaultUnit
	if r, err = f.start(ctx, finemem.Manager{}, cfg, 0); err != nil {
		return nil, nil, err
	}
	for range n {
		s, err := f.dialService(ctx, r.addr)
		if err != nil {
			return nil, nil, errors.Join(err, r.close())
		}
		r.defers(s.close)
		all = append(all, s)
	}
	return r, all, nil
}

// fineSpare is what a node lends beside what a trace asks for: every client may
// leave some sections open for small blocks, which large ones cannot have then.
const fineSpare = 4 * 2 << 20

// startFine starts a node that lends a little more than a trace asks for.
func (f *fabric) startFine(ctx context.Context, t *Trace, clients int) (*rig, []lender, error) {
	const section = 2 << 20
	lend := (t.Bytes()+section-1)/section*section + int64(clients)*fineSpare
	r, services, err := f.startServices(ctx, memnode.Config{Lend: lend}, clients)
	if err != nil {
		return nil, nil, err
	}
	var lenders []lender
	for _, s := range services {
		lenders = append(lenders, fineLender{s})
	}
	return r, lenders, nil
}

// fineLender borrows blocks that are as large as they are asked to be.
type fineLender struct{ s *service }

func (l fineLender) alloc(ctx context.Context, q Request) (block, int64, error) {
	b := &fineBlock{s: l.s}
	err := l.s.Do(ctx, func(a *finemem.Allocator) (err error) {
		b.block, err = a.Alloc(ctx, int(q.Class))
		return err
	})
	return b, q.Size(), err
}

type fineBlock struct {
	s     *service
	block finemem.Block
}

func (b *fineBlock) free(ctx context.Context) error {
	return b.s.Do(ctx, func(a *finemem.Allocator) error { return a.Free(ctx, b.block) })
}
