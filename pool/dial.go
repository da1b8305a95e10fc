package pool

import (
	"context"
	"errors"
	"fmt"
	"net"

	"polder/internal/scheme"
	"polder/verbs"
	"polder/verbs/ibv"
	"polder/verbs/shm"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// Dial borrows from the memory nodes that listen at addrs, each "host:port",
// over TCP, with the default configuration; or each "unix:/path", on this
// machine, with DialUnix; or each "rdma://host:port", over this host's only RDMA
// device, with DialRDMA; or from those of one "broker:/path", with DialBroker.
func Dial(ctx context.Context, addrs ...string) (*Pool, error) {
	by, same := scheme.Common(addrs)
	switch {
	case isBroker(addrs) && len(addrs) > 1:
		return nil, errBrokers
	case !same:
		return nil, errMixed
	}
	switch by {
	case scheme.Broker:
		return DialBroker(ctx, tcp.Config{}, Config{}, addrs[0])
	case scheme.RDMA:
		return DialRDMA(ctx, "", ibv.Config{}, Config{}, addrs...)
	case scheme.Unix:
		return DialUnix(ctx, shm.Config{}, Config{}, addrs...)
	}
	return DialTCP(ctx, tcp.Config{}, Config{}, addrs...)
}

// DialTCP is Dial with configurations for the connections (such as TLS, which
// addresses other than loopback require) and for the pool, of which Device and
// Nodes must not be set.
func DialTCP(ctx context.Context, conns tcp.Config, cfg Config, addrs ...string) (*Pool, error) {
	if cfg.Device != nil || cfg.Nodes != nil {
		return nil, errors.New("cannot open a pool: Device and Nodes are not for DialTCP")
	}
	for _, addr := range addrs {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return nil, fmt.Errorf("cannot open a pool: node %q: want host:port: %w", addr, err)
		}
	}
	dev, err := tcp.NewDevice(softnic.Config{})
	if err != nil {
		return nil, fmt.Errorf("cannot open a pool: %w", err)
	}
	cfg.Device, cfg.ownsDevice = dev, true
	for _, addr := range addrs {
		cfg.Nodes = append(cfg.Nodes, NodeConfig{
			Name: addr,
			Dial: func(ctx context.Context) (verbs.Conn, error) { return tcp.Dial(ctx, dev, addr, conns) },
		})
	}
	p, err := Open(ctx, cfg)
	if err != nil {
		dev.Close()
		return nil, err
	}
	return p, nil
}
