// Package endpoint makes the stream connections of drivers that connect over
// TCP: who may listen and dial without TLS, how long a handshake may take, and
// how many peers there may be.
//
// Concurrency: a Config is a value. Everything else may be used by any number of
// goroutines.
package endpoint

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
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
			err = fmt.Errorf("handshake given up: %w (%v)", ctx.Err(), err)
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

// maxHandshakes is how many peers shake hands at a time.
const maxHandshakes = 64

// An Acceptor accepts stream connections and has each greeted in a goroutine of
// its own.
type Acceptor struct {
	nl       net.Listener
	cfg      Config
	greet    func(ctx context.Context, nc net.Conn, leave func()) error
	ctx      context.Context // of handshakes; ends with the acceptor
	cancel   context.CancelFunc
	greeting sync.WaitGroup
	places   chan struct{} // a token per connection
	slots    chan struct{} // a token per handshake
}

// Listen opens addr (host:port; port 0 picks one). Run then accepts. Greet does
// the handshake and makes a connection of nc, and has leave called when that
// ends; if it fails nc is closed and the peer is logged.
func Listen(addr string, cfg Config, greet func(ctx context.Context, nc net.Conn, leave func()) error) (*Acceptor, error) {
	lc := net.ListenConfig{Control: cfg.checkListen, KeepAliveConfig: cfg.keepAlive()}
	nl, err := lc.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, err
	}
	a := &Acceptor{
		nl: nl, cfg: cfg, greet: greet,
		places: make(chan struct{}, cfg.MaxConns),
		slots:  make(chan struct{}, maxHandshakes),
	}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	return a, nil
}

// Run accepts until Close is called, and returns when the last handshake ends.
func (a *Acceptor) Run() {
	defer a.greeting.Wait()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		nc, err := a.nl.Accept()
		if err != nil {
			if a.ctx.Err() != nil {
				return
			}
			// Out of file descriptors, perhaps: try again in a while.
			a.cfg.Log.Warn("cannot accept", "err", err)
			pause.Reset(50 * time.Millisecond)
			select {
			case <-pause.C:
				continue
			case <-a.ctx.Done():
				return
			}
		}
		select {
		case a.places <- struct{}{}:
		default:
			a.cfg.Log.Warn("connection refused: there are as many as may be", "peer", nc.RemoteAddr(), "max", a.cfg.MaxConns)
			nc.Close()
			continue
		}
		select {
		case a.slots <- struct{}{}:
		case <-a.ctx.Done():
			nc.Close()
			return
		}
		a.greeting.Go(func() { a.receive(nc) })
	}
}

func (a *Acceptor) receive(nc net.Conn) {
	defer func() { <-a.slots }()
	ctx, cancel := context.WithTimeout(a.ctx, a.cfg.HandshakeTimeout)
	defer cancel()
	if a.cfg.TLS != nil {
		nc = tls.Server(nc, a.cfg.TLS)
	}
	if err := a.greet(ctx, nc, func() { <-a.places }); err != nil {
		a.cfg.Log.Warn("connection refused", "peer", nc.RemoteAddr(), "err", err)
		nc.Close()
		<-a.places
	}
}

// Addr is the address that peers dial.
func (a *Acceptor) Addr() net.Addr { return a.nl.Addr() }

// Done is closed when the acceptor is.
func (a *Acceptor) Done() <-chan struct{} { return a.ctx.Done() }

// Close ends Run. Connections that have been made stay.
func (a *Acceptor) Close() error {
	a.cancel()
	return a.nl.Close()
}
