package shm

import (
	"context"
	"fmt"
	"net"

	"polder/internal/fdpass"
	"polder/internal/scheme"
	"polder/verbs"
	"polder/verbs/internal/endpoint"
)

// Listen accepts connections for dev at addr, the path of a socket, with or
// without scheme.Unix, in place of a socket there that nobody serves.
func Listen(dev verbs.Device, addr string, cfg Config) (verbs.Listener, error) {
	l, err := listen(dev, addr, cfg)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", addr, err)
	}
	return l, nil
}

func listen(dev verbs.Device, addr string, cfg Config) (*endpoint.Listener, error) {
	d, err := ours(dev)
	if err != nil {
		return nil, err
	}
	if cfg, err = cfg.normalized(); err != nil {
		return nil, err
	}
	nl, err := fdpass.Listen(path(addr), cfg.Mode)
	if err != nil {
		return nil, err
	}
	accept := endpoint.Config{MaxConns: cfg.MaxConns, Backlog: cfg.Backlog, HandshakeTimeout: cfg.HandshakeTimeout, Log: cfg.Log}
	return endpoint.Serve(nl, scheme.Unix, accept, &d.ends, func(nc net.Conn, q *endpoint.Requests, admit endpoint.Admit) error {
		sock, err := fdpass.New(nc.(*net.UnixConn))
		if err != nil {
			return err
		}
		c, err := establish(context.Background(), d, sock, cfg, q, admit) // the listener bounds it
		if err != nil {
			return err
		}
		c.start()
		return nil
	})
}
