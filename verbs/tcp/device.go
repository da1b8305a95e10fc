package tcp

import (
	"context"
	"fmt"
	"net"

	"polder/verbs"
	"polder/verbs/internal/endpoint"
	"polder/verbs/internal/softdev"
	"polder/verbs/softnic"
)

// device is a software RNIC with its listeners and connections.
type device struct {
	*softdev.Device
	ends endpoint.Ends
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
	return &device{Device: d}, nil
}

// Close implements verbs.Device. It waits for the connections' goroutines,
// and so must not be called from a completion handler.
func (d *device) Close() error {
	d.ends.Close()
	return d.Device.Close()
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
	c, err := establish(ctx, d, nc, cfg, nil, endpoint.Anybody)
	if err != nil {
		nc.Close()
		return nil, err
	}
	return c, nil
}

// establish does the handshake on nc and, if it is admitted, starts a connection.
// The caller closes nc if it fails.
func establish(ctx context.Context, d *device, nc net.Conn, cfg Config, requests *endpoint.Requests, admit endpoint.Admit) (*conn, error) {
	if err := endpoint.Shake(ctx, nc, func() error { _, err := exchangeHello(nc, ourHello); return err }); err != nil {
		return nil, err
	}
	leave, err := admit()
	if err != nil {
		return nil, err
	}
	c, err := newConn(d, nc, cfg, requests)
	if err != nil {
		leave()
		return nil, err
	}
	remove, err := d.ends.Add(c)
	if err != nil {
		d.RemoveLink(c.ID())
		leave()
		return nil, err
	}
	c.start(func() {
		leave()
		remove()
	})
	return c, nil
}
