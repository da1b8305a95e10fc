package shm

import (
	"context"
	"fmt"
	"net"

	"polder/internal/fdpass"
	"polder/verbs"
	"polder/verbs/internal/endpoint"
)

// listener implements verbs.Listener.
type listener struct {
	*endpoint.Requests
	acceptor *endpoint.Acceptor
}

// Listen accepts connections for dev at addr, the path of a socket, with or
// without Scheme, in place of a socket there that nobody serves.
func Listen(dev verbs.Device, addr string, cfg Config) (verbs.Listener, error) {
	l, err := listen(dev, addr, cfg)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", addr, err)
	}
	return l, nil
}

func listen(dev verbs.Device, addr string, cfg Config) (*listener, error) {
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
	l := &listener{Requests: endpoint.NewRequests(cfg.Backlog)}
	l.acceptor = endpoint.NewAcceptor(nl,
		endpoint.Config{MaxConns: cfg.MaxConns, HandshakeTimeout: cfg.HandshakeTimeout, Log: cfg.Log},
		func(ctx context.Context, nc net.Conn, leave func()) error {
			sock, err := fdpass.New(nc.(*net.UnixConn))
			if err != nil {
				return err
			}
			c, err := establish(ctx, d, sock, cfg, l.Requests, leave)
			if err != nil {
				return err
			}
			c.start()
			return nil
		})
	remove, err := d.ends.Add(l)
	if err != nil {
		l.acceptor.Close()
		return nil, err
	}
	go func() {
		defer remove()
		l.acceptor.Run()
	}()
	return l, nil
}

// Addr implements verbs.Listener.
func (l *listener) Addr() string { return Scheme + l.acceptor.Addr().String() }

// Close implements verbs.Listener. Connections that have been made stay.
func (l *listener) Close() error { return endpoint.CloseListener(l.acceptor, l.Requests) }
