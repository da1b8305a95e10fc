package tcp

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"polder/verbs"
	"polder/verbs/internal/softdev"
	"polder/verbs/softnic"
)

// device is a software RNIC with its listeners and connections.
type device struct {
	*softdev.Device

	mu      sync.Mutex
	closed  bool                   // guarded by mu
	ends    map[io.Closer]struct{} // guarded by mu: listeners and connections
	running sync.WaitGroup         // their goroutines; Add under mu, while not closed
}

// NewDevice opens a software RNIC whose packets travel over TCP.
func NewDevice(cfg softnic.Config) (verbs.Device, error) {
	d, err := softdev.New(cfg, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot open a tcp device: %w", err)
	}
	if err := d.ParkInPoller(); err != nil {
		return nil, fmt.Errorf("cannot open a tcp device: %w", err)
	}
	return &device{Device: d, ends: make(map[io.Closer]struct{})}, nil
}

// Close implements verbs.Device. It waits for the connections' goroutines,
// and so must not be called from a completion handler.
func (d *device) Close() error {
	d.mu.Lock()
	d.closed = true
	ends := make([]io.Closer, 0, len(d.ends))
	for e := range d.ends {
		ends = append(ends, e)
	}
	d.mu.Unlock()
	for _, e := range ends {
		e.Close()
	}
	d.running.Wait()
	return d.Device.Close()
}

// add counts a listener or connection in, so that Close closes it. The
// returned function counts it out, and is to be called when its goroutines
// have ended.
func (d *device) add(e io.Closer) (remove func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("the device is closed: %w", verbs.ErrClosed)
	}
	d.ends[e] = struct{}{}
	d.running.Add(1)
	return func() {
		d.mu.Lock()
		delete(d.ends, e)
		d.mu.Unlock()
		d.running.Done()
	}, nil
}

// ours returns dev as this driver's.
func ours(dev verbs.Device) (*device, error) {
	d, ok := dev.(*device)
	if !ok {
		return nil, fmt.Errorf("%T is not a device of this driver: %w", dev, verbs.ErrInvalid)
	}
	return d, nil
}

// Dial connects dev to the listener at addr (host:port).
func Dial(ctx context.Context, dev verbs.Device, addr string, cfg Config) (verbs.Conn, error) {
	c, err := dial(ctx, dev, addr, cfg)
	if err != nil {
		return nil, fmt.Errorf("cannot dial %s: %w", addr, err)
	}
	return c, nil
}

func dial(ctx context.Context, dev verbs.Device, addr string, cfg Config) (*conn, error) {
	d, err := ours(dev)
	if err != nil {
		return nil, err
	}
	if cfg, err = cfg.normalized(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.HandshakeTimeout)
	defer cancel()
	dialer := net.Dialer{Control: cfg.checkDial, KeepAliveConfig: cfg.keepAlive()}
	nc, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if cfg.TLS != nil {
		nc = tls.Client(nc, cfg.tlsClient(addr))
	}
	c, err := establish(ctx, d, nc, cfg, nil)
	if err != nil {
		nc.Close()
		return nil, err
	}
	return c, nil
}

// establish does the handshake on nc and starts a connection. The caller
// closes nc if it fails.
func establish(ctx context.Context, d *device, nc net.Conn, cfg Config, l *listener) (*conn, error) {
	if err := handshake(ctx, nc); err != nil {
		return nil, err
	}
	c, err := newConn(d, nc, cfg, l)
	if err != nil {
		return nil, err
	}
	remove, err := d.add(c)
	if err != nil {
		d.RemoveLink(c.link)
		return nil, err
	}
	c.start(func() {
		if l != nil {
			<-l.places
		}
		remove()
	})
	return c, nil
}

// handshake does what comes before frames, for as long as ctx allows.
func handshake(ctx context.Context, nc net.Conn) (err error) {
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
	_, err = exchangeHello(nc, ourHello)
	return err
}

// keepAlive is TCP's own keepalive, for peers whose host is gone.
func (c *Config) keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: c.KeepAlive, Interval: c.KeepAlive, Count: silentIntervals}
}

// onlyOnce lets one caller through.
type onlyOnce struct{ done atomic.Bool }

func (o *onlyOnce) first() bool { return o.done.CompareAndSwap(false, true) }
