package pool

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"polder/internal/scheme"
	"polder/verbs"
	"polder/verbs/ibv"
)

// DialRDMA borrows from memory nodes on an RDMA fabric, each "rdma://host:port"
// or just "host:port", through this host's RDMA device of that name; an empty
// name is that of its only device. Of cfg, Device and Nodes must not be set. It
// needs a program that is built with the tag ibverbs (package verbs/ibv).
func DialRDMA(ctx context.Context, device string, conns ibv.Config, cfg Config, addrs ...string) (*Pool, error) {
	if cfg.Device != nil || cfg.Nodes != nil {
		return nil, errors.New("cannot open a pool: Device and Nodes are not for DialRDMA")
	}
	hosts := make([]string, len(addrs))
	for i, addr := range addrs {
		hosts[i] = strings.TrimPrefix(addr, scheme.RDMA)
		if _, _, err := net.SplitHostPort(hosts[i]); err != nil {
			return nil, fmt.Errorf("cannot open a pool: node %q: want %shost:port: %w", addr, scheme.RDMA, err)
		}
	}
	dev, err := ibv.Open(device)
	if err != nil {
		return nil, fmt.Errorf("cannot open a pool: %w", err)
	}
	cfg.Device, cfg.ownsDevice = dev, true
	for i, host := range hosts {
		cfg.Nodes = append(cfg.Nodes, NodeConfig{
			Name: addrs[i],
			Dial: func(ctx context.Context) (verbs.Conn, error) { return ibv.Dial(ctx, dev, host, conns) },
		})
	}
	p, err := Open(ctx, cfg)
	if err != nil {
		dev.Close()
		return nil, err
	}
	return p, nil
}
