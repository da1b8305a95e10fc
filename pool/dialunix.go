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

var errMixed = errors.New("cannot open a pool: its nodes are reached in several ways, want all at Unix sockets, all by RDMA, or all over TCP")

// DialUnix borrows from memory nodes on this machine that listen at addrs, each
// "unix:/path", and lend by memfd (memnode.MemFD). What is borrowed is mapped
// into this process, where operations are memory copies. Of cfg, Device, Nodes
// and Manager must not be set.
func DialUnix(ctx context.Context, conns shm.Config, cfg Config, addrs ...string) (*Pool, error) {
	if cfg.Device != nil || cfg.Nodes != nil || cfg.Manager != nil {
		return nil, errors.New("cannot open a pool: Device, Nodes and Manager are not for DialUnix")
	}
	if by, same := scheme.Common(addrs); !same || by != scheme.Unix {
		return nil, errMixed
	}
	dev, err := shm.NewDevice(softnic.Config{})
	if err != nil {
		return nil, fmt.Errorf("cannot open a pool: %w", err)
	}
	cfg.Device, cfg.ownsDevice, cfg.Manager = dev, true, memfd.Manager{}
	for _, addr := range addrs {
		cfg.Nodes = append(cfg.Nodes, NodeConfig{
			Name: addr,
			Dial: func(ctx context.Context) (verbs.Conn, error) { return shm.Dial(ctx, dev, addr, conns) },
		})
	}
	p, err := Open(ctx, cfg)
	if err != nil {
		dev.Close()
		return nil, err
	}
	return p, nil
}
