package shm

import (
	"context"
	"fmt"
	"strings"
	"time"

	"polder/internal/fdpass"
	"polder/internal/scheme"
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

// NewDevice opens a software RNIC whose packets travel through shared memory.
func NewDevice(cfg softnic.Config) (verbs.Device, error) {
	d, err := softdev.New(cfg, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot open a shm device: %w", err)
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

// path is the socket's path of an address: a path, with or without scheme.Unix.
func path(addr string) string { return strings.TrimPrefix(addr, scheme.Unix) }

// Dial connects dev to the listener at addr, a path with or without scheme.Unix.
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
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	sock, err := fdpass.Dial(path(addr))
	if err != nil {
		return nil, err
	}
	c, err := establish(ctx, d, sock, cfg, nil, endpoint.Anybody)
	if err != nil {
		sock.Close()
		return nil, err
	}
	c.remote = scheme.Unix + path(addr)
	c.start()
	return c, nil
}

// establish does the handshake on sock and, if it is admitted, makes a connection,
// to be started. The caller closes sock if it fails.
func establish(ctx context.Context, d *device, sock *fdpass.Conn, cfg Config, requests *endpoint.Requests, admit endpoint.Admit) (*conn, error) {
	peer, err := cfg.admit(sock)
	if err != nil {
		return nil, err
	}
	r, err := handshake(ctx, sock, requests != nil)
	if err != nil {
		return nil, err
	}
	leave, err := admit()
	if err != nil {
		r.mem.Close()
		return nil, err
	}
	c := newConn(d, sock, r, requests != nil)
	c.local, c.remote = "this process", peer
	if err = c.Open(d.Device, c, requests); err != nil {
		leave()
		c.out.unmap()
		return nil, err
	}
	remove, err := d.ends.Add(c)
	if err != nil {
		d.RemoveLink(c.ID())
		leave()
		c.out.unmap()
		return nil, err
	}
	c.stopped = func() {
		leave()
		remove()
	}
	return c, nil
}

// handshake exchanges hellos, for as long as ctx allows.
func handshake(ctx context.Context, sock *fdpass.Conn, server bool) (r *region, err error) {
	stop := context.AfterFunc(ctx, func() { sock.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && ctx.Err() != nil {
			err = fmt.Errorf("handshake given up: %w (%v)", ctx.Err(), err)
			if r != nil {
				r.mem.Close()
			}
		}
	}()
	if server {
		return greetClient(sock)
	}
	return greetServer(sock)
}
