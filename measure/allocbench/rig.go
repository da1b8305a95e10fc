package allocbench

import (
	"context"
	"errors"
	"os"
	"time"

	"polder/memnode"
	"polder/pool"
	"polder/verbs"
	"polder/verbs/softnic"
)

// rig is a memory node and the pools of its clients, each with a device of its
// own. Whoever starts it must close it.
type rig struct {
	node  *memnode.Node // nil if there is only a device, as for ArrayScan
	addr  string        // at which the node or device listens
	pools []*pool.Pool
	taken func() int64 // bytes that the clients have been lent

	undo []func() error // close calls the last one first
}

// patience bounds one operation of a client.
const patience = 10 * time.Second

// start starts a node as cfg describes it, managed by m, and a pool for each client.
func (f *fabric) start(ctx context.Context, m pool.Manager, cfg memnode.Config, clients int) (r *rig, err error) {
	r = &rig{}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	dir, err := os.MkdirTemp("", "polder-alloc")
	if err != nil {
		return r, err
	}
	r.defers(func() error { return os.RemoveAll(dir) })
	dev, err := f.newDevice(softnic.Config{Name: "node"})
	if err != nil {
		return r, err
	}
	r.defers(dev.Close)
	cfg.Manager = m.Name()
	if r.node, err = memnode.New(dev, cfg); err != nil {
		return r, err
	}
	r.taken = func() int64 { return r.node.Stats().Lent * int64(cfg.ChunkSize) }
	lis, err := f.listen(dev, dir)
	if err != nil {
		return r, errors.Join(err, r.node.Close())
	}
	r.addr = lis.Addr()
	served := make(chan error, 1)
	go func() { served <- r.node.Serve(lis) }()
	r.defers(func() error { return errors.Join(r.node.Close(), <-served) })

	for range clients {
		client, err := f.newDevice(softnic.Config{Name: "client"})
		if err != nil {
			return r, err
		}
		r.defers(client.Close)
		p, err := pool.Open(ctx, pool.Config{
			Device: client, Manager: m, Buffer: 1 << 16, Timeout: patience,
			Nodes: []pool.NodeConfig{{Name: "node", Dial: func(ctx context.Context) (verbs.Conn, error) {
				return f.dial(ctx, client, lis.Addr())
			}}},
		})
		if err != nil {
			return r, err
		}
		r.defers(p.Close)
		r.pools = append(r.pools, p)
	}
	return r, nil
}

// busy returns how long the node's control goroutine has been at work.
func (r *rig) busy() time.Duration {
	if r.node == nil {
		return 0
	}
	return r.node.Stats().Busy
}

func (r *rig) defers(f func() error) { r.undo = append(r.undo, f) }

// close ends the clients and then the node.
func (r *rig) close() error {
	var errs []error
	for i := len(r.undo) - 1; i >= 0; i-- {
		errs = append(errs, r.undo[i]())
	}
	r.undo = nil
	return errors.Join(errs...)
}
