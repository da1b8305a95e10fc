//go:build ibverbs

package ibv

import (
	"context"
	"fmt"
	"net"

	"polder/verbs"
	"polder/verbs/internal/endpoint"
)

// listener implements verbs.Listener.
type listener struct {
	*endpoint.Requests
	acceptor *endpoint.Acceptor
}

// Listen accepts connections for dev at addr (host:port; port 0 picks one).
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
	if cfg, err = normalized(cfg); err != nil {
		return nil, err
	}
	l := &listener{Requests: endpoint.NewRequests(cfg.Backlog)}
	greet := func(ctx context.Context, nc net.Conn, leave func()) error {
		_, err := establish(ctx, d, nc, cfg, l, leave)
		return err
	}
	if l.acceptor, err = endpoint.Listen(addr, cfg, greet); err != nil {
		return nil, err
	}
	remove, err := d.add(l)
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
func (l *listener) Addr() string { return l.acceptor.Addr().String() }

// Close implements verbs.Listener. Connections that have been made stay.
func (l *listener) Close() error {
	// First, so that nobody connects to a listener that refuses everything.
	err := l.acceptor.Close()
	if !l.Requests.Close() {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot close the listener: %w", err)
	}
	return nil
}
