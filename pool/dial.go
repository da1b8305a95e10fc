package pool

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"polder/internal/scheme"
	"polder/verbs"
	"polder/verbs/ibv"
	"polder/verbs/shm"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// Dial borrows, with the default configuration, from the memory nodes that listen at addrs. An address is "host:port"
// for TCP; "unix:/path" for a node on this machine, as with DialUnix; or "rdma://host:port" for RDMA over this host's
// only RDMA device, as with DialRDMA. Addresses of different kinds may be mixed. The only address may also be
// "broker:/path": then Dial borrows from the nodes of that broker, as with DialBroker.
func Dial(ctx context.Context, addrs ...string) (*Pool, error) {
	if isBroker(addrs) {
		if len(addrs) > 1 {
			return nil, errBrokers
		}
		return DialBroker(ctx, tcp.Config{}, Config{}, addrs[0])
	}
	at := map[string][]string{}
	for _, addr := range addrs {
		by := scheme.Of(addr)
		at[by] = append(at[by], addr)
	}
	return dial(ctx, Config{}, func() (ways []way, err error) {
		for by, addrs := range at {
			var w way
			switch by {
			case scheme.RDMA:
				w, err = wayRDMA("", ibv.Config{}, addrs)
			case scheme.Unix:
				w, err = wayUnix(shm.Config{}, addrs)
			default:
				w, err = wayTCP(tcp.Config{}, addrs)
			}
			if ways = append(ways, w); err != nil {
				return ways, err
			}
		}
		return ways, nil
	}, addrs...)
}

// A way is a device that was opened for a pool, and the nodes that are reached over it.
type way struct {
	dev   verbs.Device // nil if it could not be opened
	nodes []NodeConfig
}

// dial opens a pool with nodes in the order of their addresses. The pool closes the devices that open returns.
func dial(ctx context.Context, cfg Config, open func() ([]way, error), addrs ...string) (*Pool, error) {
	ways, err := open()
	for _, w := range ways {
		if w.dev != nil {
			cfg.owned = append(cfg.owned, w.dev)
		}
		cfg.Nodes = append(cfg.Nodes, w.nodes...)
	}
	if len(ways) == 1 && len(cfg.Nodes) > 0 { // nodes that are added later use this device, too
		cfg.Device, cfg.Manager = ways[0].dev, cfg.Nodes[0].Manager
	}
	slices.SortStableFunc(cfg.Nodes, func(a, b NodeConfig) int { return slices.Index(addrs, a.Name) - slices.Index(addrs, b.Name) })
	var p *Pool
	if err == nil {
		p, err = Open(ctx, cfg)
	} else {
		err = fmt.Errorf("cannot open a pool: %w", err)
	}
	if err != nil {
		for _, dev := range cfg.owned {
			dev.Close()
		}
		return nil, err
	}
	return p, nil
}

// one returns what dial calls to open a single way.
func one(w way, err error) func() ([]way, error) {
	return func() ([]way, error) { return []way{w}, err }
}

// DialTCP is Dial with a configuration for the connections (such as TLS, which addresses other than loopback require)
// and one for the pool. cfg.Device and cfg.Nodes must not be set.
func DialTCP(ctx context.Context, conns tcp.Config, cfg Config, addrs ...string) (*Pool, error) {
	if cfg.Device != nil || cfg.Nodes != nil {
		return nil, errors.New("cannot open a pool: Device and Nodes are not for DialTCP")
	}
	w, err := wayTCP(conns, addrs)
	for i := range w.nodes {
		w.nodes[i].Manager = cfg.Manager
	}
	return dial(ctx, cfg, one(w, err), addrs...)
}

func wayTCP(conns tcp.Config, addrs []string) (w way, err error) {
	for _, addr := range addrs {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return w, fmt.Errorf("node %q: want host:port: %w", addr, err)
		}
	}
	if w.dev, err = tcp.NewDevice(softnic.Config{}); err != nil {
		return way{}, err
	}
	for _, addr := range addrs {
		w.nodes = append(w.nodes, NodeConfig{
			Name: addr, Device: w.dev,
			Dial: func(ctx context.Context) (verbs.Conn, error) { return tcp.Dial(ctx, w.dev, addr, conns) },
		})
	}
	return w, nil
}
