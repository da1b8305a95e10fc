package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"polder/internal/scheme"
	"polder/pool/broker"
	"polder/verbs"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

var errBrokers = errors.New("cannot open a pool: a broker knows its nodes, and there is one on a machine: want its address only")

// isBroker reports whether one of addrs is a broker's.
func isBroker(addrs []string) bool {
	return slices.ContainsFunc(addrs, func(a string) bool { return strings.HasPrefix(a, scheme.Broker) })
}

// DialBroker borrows from the memory nodes of the broker at addr: "broker:" and the path of a socket on this machine.
// Only the broker allocates at those nodes (package broker). Data goes straight to the nodes, over TCP, with the
// configuration conns. Device, Nodes and Manager of cfg must not be set.
func DialBroker(ctx context.Context, conns tcp.Config, cfg Config, addr string) (*Pool, error) {
	if cfg.Device != nil || cfg.Nodes != nil || cfg.Manager != nil {
		return nil, errors.New("cannot open a pool: Device, Nodes and Manager are not for DialBroker")
	}
	dev, err := tcp.NewDevice(softnic.Config{})
	if err != nil {
		return nil, fmt.Errorf("cannot open a pool: %w", err)
	}
	d := broker.NewDialer(addr)
	nodes, err := d.Nodes(ctx)
	if err != nil {
		dev.Close()
		return nil, fmt.Errorf("cannot open a pool: %w", err)
	}
	cfg.Device, cfg.owned, cfg.broker, cfg.Manager = dev, []verbs.Device{dev}, d, broker.Manager{}
	for _, node := range nodes {
		cfg.Nodes = append(cfg.Nodes, NodeConfig{
			Name: node,
			Dial: func(ctx context.Context) (verbs.Conn, error) {
				return d.Dial(ctx, node, func(ctx context.Context) (verbs.Conn, error) { return tcp.Dial(ctx, dev, node, conns) })
			},
		})
	}
	p, err := Open(ctx, cfg)
	if err != nil {
		d.Close()
		dev.Close()
		return nil, err
	}
	return p, nil
}
