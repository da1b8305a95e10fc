package shm

import (
	"context"
	"fmt"
	"net"
	"os"

	"polder/internal/brief"
	"polder/internal/fdpass"
	"polder/internal/scheme"
	"polder/verbs"
	"polder/verbs/internal/endpoint"
	"polder/verbs/internal/stream"
)

// Listen accepts connections for dev at addr, the path of a socket, with or without scheme.Unix. It replaces a socket
// there that nobody serves any more.
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
	if cfg, err = cfg.normalized(); err != nil {
		return nil, err
	}
	nl, err := fdpass.ListenStream(path(addr), cfg.Mode)
	if err != nil {
		return nil, err
	}
	accept := endpoint.Config{MaxConns: cfg.MaxConns, Backlog: cfg.Backlog, HandshakeTimeout: cfg.HandshakeTimeout, Log: cfg.Log}
	return endpoint.Serve(nl, scheme.Unix, accept, &d.Ends, func(nc net.Conn, q *endpoint.Requests, admit endpoint.Admit) error {
		sock := nc.(*net.UnixConn)
		peer, err := cfg.admit(sock)
		if err != nil {
			return err
		}
		if nc, err = brief.New(sock); err != nil {
			return err
		}
		c := newConn(true, peer)
		return c.Establish(context.Background(), c, d, nc, cfg.stream(), q, admit) // the listener bounds it
	})
}

// admit says who the peer is, or refuses it.
func (c *Config) admit(nc *net.UnixConn) (string, error) {
	p, err := fdpass.PeerOf(nc)
	if err != nil {
		return "", err
	}
	if !c.AnyUser && !p.Trusted() {
		return "", fmt.Errorf("the peer runs as user %d, not %d: %w", p.UID, os.Geteuid(), verbs.ErrInvalid)
	}
	return fmt.Sprintf("process %d of user %d", p.PID, p.UID), nil
}
