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

// DialRDMA borrows from memory nodes on an RDMA fabric, each "rdma://host:port" or just "host:port", through this
// host's RDMA device of that name. An empty name stands for the host's only device. Device and Nodes of cfg must not
// be set. The program must be built with the tag ibverbs (package verbs/ibv).
func DialRDMA(ctx context.Context, device string, conns ibv.Config, cfg Config, addrs ...string) (*Pool, error) {
	if cfg.Device != nil || cfg.Nodes != nil {
		return nil, errors.New("cannot open a pool: Device and Nodes are not for DialRDMA")
	}
	w, err := wayRDMA(device, conns, addrs)
	for i := range w.nodes {
		w.nodes[i].Manager = cfg.Manager
	}
	return dial(ctx, cfg, one(w, err), addrs...)
}

func wayRDMA(device string, conns ibv.Config, addrs []string) (w way, err error) {
	hosts := make([]string, len(addrs))
	for i, addr := range addrs {
		hosts[i] = strings.TrimPrefix(addr, scheme.RDMA)
		if _, _, err := net.SplitHostPort(hosts[i]); err != nil {
			return w, fmt.Errorf("node %q: want %shost:port: %w", addr, scheme.RDMA, err)
		}
	}
	if w.dev, err = ibv.Open(device); err != nil {
		return way{}, err
	}
	for i, host := range hosts {
		w.nodes = append(w.nodes, NodeConfig{
			Name: addrs[i], Device: w.dev,
			Dial: func(ctx context.Context) (verbs.Conn, error) { return ibv.Dial(ctx, w.dev, host, conns) },
		})
	}
	return w, nil
}
