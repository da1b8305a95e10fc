// Package endpoint makes the stream connections of drivers. It decides who may listen and dial without TLS, how long
// a handshake may take, and how many peers there may be. Package cm is what software drivers do with the connections.
//
// Concurrency: a Config is a value. Everything else may be used by any number of
// goroutines.
package endpoint

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"
)

// Dial opens a connection to addr (host:port); if c has TLS, its handshake is
// still to come.
func (c *Config) Dial(ctx context.Context, addr string) (net.Conn, error) {
	dialer := net.Dialer{Control: c.checkDial, KeepAliveConfig: c.keepAlive()}
	nc, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	nc = socket(nc)
	if c.TLS != nil {
		nc = tls.Client(nc, c.tlsClient(addr))
	}
	return nc, nil
}

// Shake does the TLS handshake, if nc has one, and then hello, for as long as
// ctx allows.
func Shake(ctx context.Context, nc net.Conn, hello func() error) (err error) {
	stop := context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && ctx.Err() != nil {
			given := fmt.Errorf("handshake given up: %w", ctx.Err())
			if err != nil {
				given = fmt.Errorf("%w (%v)", given, err)
			}
			err = given
		}
	}()
	if t, ok := nc.(*tls.Conn); ok {
		if err := t.HandshakeContext(ctx); err != nil {
			return fmt.Errorf("TLS handshake: %w", err)
		}
	}
	return hello()
}

// SilentIntervals is how many keepalive intervals of silence end a connection.
const SilentIntervals = 3

// keepAlive is TCP's own keepalive, for peers whose host is gone.
func (c *Config) keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: c.KeepAlive, Interval: c.KeepAlive, Count: SilentIntervals}
}
