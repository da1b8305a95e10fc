package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"polder/internal/fdpass"
	"polder/verbs"
)

// maxHandshakes is how many peers a listener shakes hands with at a time.
const maxHandshakes = 64

var errBacklog = errors.New("too many connection requests wait to be accepted")

// listener implements verbs.Listener.
type listener struct {
	dev *device
	nl  *net.UnixListener
	cfg Config

	requests chan *connRequest
	ctx      context.Context // of handshakes; ends with the listener
	cancel   context.CancelFunc
	greeting sync.WaitGroup // handshakes
	places   chan struct{}  // a token per connection
	slots    chan struct{}  // a token per handshake

	mu     sync.Mutex
	closed bool // guarded by mu: nothing is offered any more
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
	l := &listener{
		dev: d, nl: nl, cfg: cfg,
		requests: make(chan *connRequest, cfg.Backlog),
		places:   make(chan struct{}, cfg.MaxConns),
		slots:    make(chan struct{}, maxHandshakes),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	remove, err := d.add(l)
	if err != nil {
		l.cancel()
		nl.Close()
		return nil, err
	}
	go func() {
		defer remove()
		l.serve()
		l.greeting.Wait()
	}()
	return l, nil
}

// serve accepts connections to the socket until the listener is closed.
func (l *listener) serve() {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		nc, err := l.nl.AcceptUnix()
		if err != nil {
			if l.ctx.Err() != nil {
				return
			}
			// Out of file descriptors, perhaps: try again in a while.
			l.cfg.Log.Warn("cannot accept", "err", err)
			pause.Reset(50 * time.Millisecond)
			select {
			case <-pause.C:
				continue
			case <-l.ctx.Done():
				return
			}
		}
		select {
		case l.places <- struct{}{}:
		default:
			l.cfg.Log.Warn("connection refused: there are as many as may be", "max", l.cfg.MaxConns)
			nc.Close()
			continue
		}
		select {
		case l.slots <- struct{}{}:
		case <-l.ctx.Done():
			nc.Close()
			return
		}
		l.greeting.Go(func() { l.greet(nc) })
	}
}

// greet makes a connection of a socket, or drops it if it fails the handshake.
func (l *listener) greet(nc *net.UnixConn) {
	defer func() { <-l.slots }()
	ctx, cancel := context.WithTimeout(l.ctx, l.cfg.HandshakeTimeout)
	defer cancel()
	c, err := l.connect(ctx, nc)
	if err != nil {
		l.cfg.Log.Warn("connection refused", "err", err)
		nc.Close()
		<-l.places
		return
	}
	c.start()
}

func (l *listener) connect(ctx context.Context, nc *net.UnixConn) (*conn, error) {
	sock, err := fdpass.New(nc)
	if err != nil {
		return nil, err
	}
	return establish(ctx, l.dev, sock, l.cfg, l)
}

// offer queues a connection request for Accept.
func (l *listener) offer(r *connRequest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errors.New("the listener is closed")
	}
	select {
	case l.requests <- r:
		return nil
	default:
		return errBacklog
	}
}

// Accept implements verbs.Listener.
func (l *listener) Accept(ctx context.Context) (verbs.ConnRequest, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("cannot accept: %w", err)
		}
		select {
		case <-l.ctx.Done():
			return nil, fmt.Errorf("cannot accept: %w", verbs.ErrClosed)
		default:
		}
		select {
		case <-ctx.Done():
		case <-l.ctx.Done():
		case r := <-l.requests:
			select {
			case <-r.conn.down: // nobody waits for the answer
			default:
				return r, nil
			}
		}
	}
}

// Addr implements verbs.Listener.
func (l *listener) Addr() string { return Scheme + l.nl.Addr().String() }

// Close implements verbs.Listener. Connections that have been made stay.
func (l *listener) Close() error {
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	l.mu.Unlock()
	if !first {
		return nil
	}
	l.cancel()
	err := l.nl.Close()
	for {
		select {
		case r := <-l.requests:
			_ = r.Reject("the listener is closed")
			continue
		default:
		}
		break
	}
	if err != nil {
		return fmt.Errorf("cannot close the listener: %w", err)
	}
	return nil
}
