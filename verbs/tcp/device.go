package tcp

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"polder/verbs"
	"polder/verbs/internal/endpoint"
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
	if cfg, err = cfg.Normalized(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.HandshakeTimeout)
	defer cancel()
	nc, err := cfg.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	c, err := establish(ctx, d, nc, cfg, nil, func() {})
	if err != nil {
		nc.Close()
		return nil, err
	}
	return c, nil
}

// establish does the handshake on nc and starts a connection, which calls leave
// when it ends. The caller closes nc if it fails.
func establish(ctx context.Context, d *device, nc net.Conn, cfg Config, l *listener, leave func()) (*conn, error) {
	if err := endpoint.Shake(ctx, nc, func() error { _, err := exchangeHello(nc, ourHello); return err }); err != nil {
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
		leave()
		remove()
	})
	return c, nil
}

// onlyOnce lets one caller through.
type onlyOnce struct{ done atomic.Bool }

func (o *onlyOnce) first() bool { return o.done.CompareAndSwap(false, true) }
