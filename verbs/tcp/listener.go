package tcp

import (
	"context"
	"fmt"
	"net"

	"polder/verbs"
	"polder/verbs/internal/endpoint"
	"polder/verbs/internal/stream"
)

// Listen accepts connections for dev at addr (host:port; port 0 picks one).
func Listen(dev verbs.Device, addr string, cfg Config) (verbs.Listener, error) {
	l, err := listen(dev, addr, cfg)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", addr, err)
	}
	return l, nil
}

func listen(dev verbs.Device, addr string, cfg Config) (*endpoint.Listener, error) {
	d, err := stream.Of(dev)
	if err != nil {
		return nil, err
	}
	if cfg, err = cfg.Normalized(); err != nil {
		return nil, err
	}
	return endpoint.Listen(addr, cfg, &d.Ends, func(nc net.Conn, q *endpoint.Requests, admit endpoint.Admit) error {
		c := &conn{}
		return c.Establish(context.Background(), c, d, nc, cfg, q, admit) // the listener bounds it
	})
}
