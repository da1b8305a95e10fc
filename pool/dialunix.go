package pool

import (
	"context"
	"errors"
	"fmt"

	"polder/internal/scheme"
	"polder/pool/memfd"
	"polder/verbs"
	"polder/verbs/shm"
	"polder/verbs/softnic"
)

// DialUnix borrows from memory nodes on this machine that listen at addrs, each
// "unix:/path", and lend by memfd (memnode.MemFD). What is borrowed is mapped
// into this process, where operations are memory copies. Of cfg, Device, Nodes
// and Manager must not be set.
func DialUnix(ctx context.Context, conns shm.Config, cfg Config, addrs ...string) (*Pool, error) {
	if cfg.Device != nil || cfg.Nodes != nil || cfg.Manager != nil {
		return nil, errors.New("cannot open a pool: Device, Nodes and Manager are not for DialUnix")
	}
	return dial(ctx, cfg, one(wayUnix(conns, addrs)), addrs...)
}

func wayUnix(conns shm.Config, addrs []string) (w way, err error) {
	for _, addr := range addrs {
		if scheme.Of(addr) != scheme.Unix {
			return w, fmt.Errorf("node %q: want %s/path", addr, scheme.Unix)
		}
	}
	if w.dev, err = shm.NewDevice(softnic.Config{}); err != nil {
		return way{}, err
	}
	for _, addr := range addrs {
		w.nodes = append(w.nodes, NodeConfig{
			Name: addr, Device: w.dev, Manager: memfd.Manager{},
			Dial: func(ctx context.Context) (verbs.Conn, error) { return shm.Dial(ctx, w.dev, addr, conns) },
		})
	}
	return w, nil
}
