package shm

import (
	"context"
	"fmt"
	"net"
	"strings"

	"polder/internal/fdpass"
	"polder/internal/scheme"
	"polder/verbs"
	"polder/verbs/internal/stream"
	"polder/verbs/softnic"
)

// NewDevice opens a software RNIC whose packets travel over Unix sockets.
func NewDevice(cfg softnic.Config) (verbs.Device, error) {
	d, err := stream.NewDevice("shm", cfg)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// path is the socket's path of an address: a path, with or without scheme.Unix.
func path(addr string) string { return strings.TrimPrefix(addr, scheme.Unix) }

// Dial connects dev to the listener at addr, a path with or without scheme.Unix.
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
	if cfg, err = cfg.normalized(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.HandshakeTimeout)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	sock, err := fdpass.DialStream(ctx, path(addr))
	if err != nil {
		return nil, err
	}
	c := newConn(false, scheme.Unix+path(addr))
	if err := c.establish(ctx, d, sock, cfg); err != nil {
		sock.Close()
		return nil, err
	}
	return c, nil
}

// establish makes the connection of a socket that was dialled. The caller closes sock
// if it fails.
func (c *conn) establish(ctx context.Context, d *stream.Device, sock *net.UnixConn, cfg Config) error {
	if _, err := cfg.admit(sock); err != nil {
		return err
	}
	nc, err := stream.NewFiles(sock)
	if err != nil {
		return err
	}
	ended := func() (leave func(), err error) { return func() { dropMemory(c.memory) }, nil }
	return c.Establish(ctx, c, d, nc, cfg.stream(), nil, ended)
}
