package tcp

import (
	"context"
	"fmt"

	"polder/verbs"
	"polder/verbs/internal/endpoint"
	"polder/verbs/internal/stream"
	"polder/verbs/softnic"
)

// conn is a connection.
type conn struct{ stream.Conn }

// NewDevice opens a software RNIC whose packets travel over TCP.
func NewDevice(cfg softnic.Config) (verbs.Device, error) {
	d, err := stream.NewDevice("tcp", cfg)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Dial connects dev to the listener at addr (host:port).
func Dial(ctx context.Context, dev verbs.Device, addr string, cfg Config) (verbs.Conn, error) {
	c, err := dial(ctx, dev, addr, cfg)
	if err != nil {
		return nil, fmt.Errorf("cannot dial %s: %w", addr, err)
	}
	return c, nil
}

func dial(ctx context.Context, dev verbs.Device, addr string, cfg Config) (*conn, error) {
	d, err := stream.Of(dev)
	if err != nil {
		return nil, err
	}
	if cfg, err = cfg.Normalized(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.HandshakeTimeout)
	defer cancel()
	nc, err := cfg.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	c := &conn{}
	if err := c.Establish(ctx, c, d, nc, cfg, nil, endpoint.Anybody); err != nil {
		nc.Close()
		return nil, err
	}
	return c, nil
}
