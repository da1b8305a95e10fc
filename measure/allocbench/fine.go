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

// service is a client of FineMem's, which allocates blocks of any size from one node.
type service struct {
	*finemem.Session
	dev verbs.Device
}

// dialService connects a service to the node at addr.
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

// startServices starts a node with chunks of twolayer.DefaultUnit, and n services of it.
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
