package tcp

import (
	"context"
	"fmt"
	"net"

	"polder/verbs/internal/stream"
)

// DialGuest connects to the listener at addr (host:port) for something other than queue pairs: Config.Guest takes the
// connection there. It uses the same certificates and the same port.
func DialGuest(ctx context.Context, addr string, cfg Config) (net.Conn, error) {
	nc, err := dialGuest(ctx, addr, cfg)
	if err != nil {
		return nil, fmt.Errorf("cannot dial %s: %w", addr, err)
	}
	return nc, nil
}

func dialGuest(ctx context.Context, addr string, cfg Config) (net.Conn, error) {
	cfg, err := cfg.Normalized()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.HandshakeTimeout)
	defer cancel()
	nc, err := cfg.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	if err := stream.BeGuest(ctx, nc); err != nil {
		nc.Close()
		return nil, err
	}
	return nc, nil
}
