package endpoint

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"
)

// maxHandshakes is how many peers shake hands at a time.
const maxHandshakes = 64

// An acceptor accepts stream connections and has each greeted in a goroutine of
// its own.
type acceptor struct {
	nl       net.Listener
	cfg      Config
	greet    func(ctx context.Context, nc net.Conn, leave func()) error
	ctx      context.Context // of handshakes; ends with the acceptor
	cancel   context.CancelFunc
	greeting sync.WaitGroup
	places   chan struct{} // a token per connection
	slots    chan struct{} // a token per handshake
}

func newAcceptor(nl net.Listener, cfg Config, greet func(ctx context.Context, nc net.Conn, leave func()) error) *acceptor {
	a := &acceptor{
		nl: nl, cfg: cfg, greet: greet,
		places: make(chan struct{}, cfg.MaxConns),
		slots:  make(chan struct{}, maxHandshakes),
	}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	return a
}

// run accepts until close is called, and returns when the last handshake ends.
func (a *acceptor) run() {
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

func (a *acceptor) receive(nc net.Conn) {
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

// close ends run. Connections that have been made stay.
func (a *acceptor) close() error {
	a.cancel()
	return a.nl.Close()
}
