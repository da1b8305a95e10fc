package inproc

import (
	"context"
	"fmt"
	"sync"

	"polder/verbs"
	"polder/verbs/internal/softdev"
	"polder/verbs/softnic"
)

// Fabric joins devices in one process. Use NewFabric.
type Fabric struct {
	group   *softdev.Group
	carrier Carrier // nil: direct calls

	mu        sync.Mutex
	listeners map[string]*listener // guarded by mu
}

// NewFabric returns a fabric without devices.
func NewFabric() *Fabric {
	return &Fabric{group: softdev.NewGroup(), listeners: make(map[string]*listener)}
}

// An End is one end of a connection.
type End struct {
	Device *softdev.Device
	Link   softnic.Link
}

// A Carrier makes what carries packets from one end of a connection to the
// other. The ends are complete only when the connection is.
type Carrier func(from, to *End) softdev.LinkDriver

// NewFabricOver returns a fabric for devices of a group whose packets others
// carry: a driver's that connects within one process in its own way.
func NewFabricOver(g *softdev.Group, carrier Carrier) *Fabric {
	return &Fabric{group: g, carrier: carrier, listeners: make(map[string]*listener)}
}

// NewDevice opens a device on the fabric.
func (f *Fabric) NewDevice(cfg softnic.Config) (verbs.Device, error) {
	return softdev.New(cfg, f.group)
}

// device returns dev as one of the fabric's.
func (f *Fabric) device(dev verbs.Device) (*softdev.Device, error) {
	if d, ok := dev.(*softdev.Device); ok && d.Of(f.group) {
		return d, nil
	}
	return nil, fmt.Errorf("the device is not of this fabric: %w", verbs.ErrInvalid)
}

// Listen announces dev under a name, until the listener or dev is closed.
func (f *Fabric) Listen(dev verbs.Device, name string) (verbs.Listener, error) {
	d, err := f.device(dev)
	if err != nil {
		return nil, fmt.Errorf("cannot listen at %q: %w", name, err)
	}
	l := &listener{fabric: f, dev: d, name: name, requests: make(chan *request, backlog), done: make(chan struct{})}
	f.mu.Lock()
	if f.listeners[name] != nil {
		f.mu.Unlock()
		return nil, fmt.Errorf("cannot listen at %q: the name is taken: %w", name, verbs.ErrBusy)
	}
	f.listeners[name] = l
	f.mu.Unlock()
	// A device that is closed already calls back at once.
	cancel := d.OnClose(func() { l.Close() })
	l.mu.Lock()
	l.cancel = cancel
	l.mu.Unlock()
	return l, nil
}

// Dial connects dev to the device that listens at name, which may be itself.
func (f *Fabric) Dial(ctx context.Context, dev verbs.Device, name string) (verbs.Conn, error) {
	c, err := f.dial(ctx, dev, name)
	if err != nil {
		return nil, fmt.Errorf("cannot dial %q: %w", name, err)
	}
	return c, nil
}

func (f *Fabric) dial(ctx context.Context, dev verbs.Device, name string) (*conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d, err := f.device(dev)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	l := f.listeners[name]
	f.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("nobody listens there: %w", verbs.ErrClosed)
	}
	return f.join(d, l)
}

// backlog is how many connection requests a listener holds that nobody has
// accepted yet; Connect waits when there are more.
const backlog = 128

// listener is a verbs.Listener.
type listener struct {
	fabric   *Fabric
	dev      *softdev.Device
	name     string
	requests chan *request
	done     chan struct{} // closed by Close

	mu     sync.Mutex
	closed bool   // guarded by mu
	cancel func() // guarded by mu: takes back the device's hook
}

// Addr is the name that peers dial.
func (l *listener) Addr() string { return l.name }

// Accept returns the next request.
func (l *listener) Accept(ctx context.Context) (verbs.ConnRequest, error) {
	for {
		select {
		case <-l.done:
			return nil, fmt.Errorf("cannot accept at %q: %w", l.name, verbs.ErrClosed)
		case <-ctx.Done():
			return nil, fmt.Errorf("cannot accept at %q: %w", l.name, ctx.Err())
		case r := <-l.requests:
			if !r.isOver() {
				return r, nil
			}
		}
	}
}

// Close ends Accept and rejects what has not been accepted; connections live
// on.
func (l *listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cancel != nil {
		l.cancel()
		l.cancel = nil
	}
	if l.closed {
		return nil
	}
	l.closed = true
	l.fabric.mu.Lock()
	delete(l.fabric.listeners, l.name)
	l.fabric.mu.Unlock()
	close(l.done)
	return nil
}
