package sim

import (
	"context"
	"fmt"
	"time"

	"polder/verbs"
	"polder/verbs/inproc"
	"polder/verbs/internal/softdev"
	"polder/verbs/softnic"
)

// Device is a simulated RNIC: a verbs.Device.
type Device struct {
	*softdev.Device
	w *World

	queues []*queue // guarded by w.mu: by the low 16 bits of their number

	// Whoever runs events owns these.
	contexts contexts
	units    int // processing units that are free
	line     []*queue
	lineHead int
	reads    time.Duration // when PCIe has brought what has been asked for
	writes   time.Duration // when it has taken what there is to be written
	words    map[uint64]time.Duration
	ahead    []byte // scratch
	watchers []watcher
	usage    Usage

	// Guarded by the group's lock.
	out, in  time.Duration // when the line is free in each direction
	received uint64
}

var _ verbs.Device = (*Device)(nil)

// Usage is what a device's resources were used for.
type Usage struct {
	Units    time.Duration // busy time of all processing units
	Received uint64        // bytes on the line to the device
}

// Usage returns the totals since the device was made. It is for processes, and
// for when the world stands still.
func (d *Device) Usage() Usage {
	u := d.usage
	u.Received = d.received
	return u
}

// NewDevice makes a device. cfg's MTU is the world's.
func (w *World) NewDevice(cfg softnic.Config) (*Device, error) {
	cfg.MTU = w.costs.MTU
	sd, err := softdev.New(cfg, w.group)
	if err != nil {
		return nil, err
	}
	d := &Device{
		Device:   sd,
		w:        w,
		contexts: contexts{room: w.costs.Contexts},
		units:    w.costs.Units,
		words:    make(map[uint64]time.Duration),
		ahead:    make([]byte, w.costs.Window*verbs.WQESize),
	}
	sd.Pace(d.turn)
	w.lock()
	if w.devices == nil {
		w.devices = make(map[*softdev.Device]*Device)
	}
	w.devices[sd] = d
	w.unlock()
	return d, nil
}

// Listen announces d under a name. Accepting, dialling and connecting take no
// time, and block in wall-clock time: processes use Join.
func (w *World) Listen(d *Device, name string) (verbs.Listener, error) {
	return w.fabric.Listen(d.Device, name)
}

// Dial connects d to the device that listens at name.
func (w *World) Dial(ctx context.Context, d *Device, name string) (verbs.Conn, error) {
	return w.fabric.Dial(ctx, d.Device, name)
}

// Join connects a queue pair of a to one of b, over the link between the two.
func (w *World) Join(a *Device, qa verbs.QP, b *Device, qb verbs.QP) error {
	l, ok := w.bridges[[2]*Device{a, b}]
	if !ok {
		l = end{&inproc.End{Device: a.Device}, &inproc.End{Device: b.Device}}
		var err error
		if l.local.Link, err = a.AddLink(w.carry(l.local, l.remote)); err != nil {
			return fmt.Errorf("cannot join two devices: %w", err)
		}
		if l.remote.Link, err = b.AddLink(w.carry(l.remote, l.local)); err != nil {
			return fmt.Errorf("cannot join two devices: %w", err)
		}
		w.bridges[[2]*Device{a, b}] = l
		w.bridges[[2]*Device{b, a}] = end{l.remote, l.local}
	}
	return a.ConnectPair(qa, l.local.Link, b.Device, qb, l.remote.Link)
}

// AllocPD implements verbs.Device.
func (d *Device) AllocPD() (verbs.PD, error) {
	p, err := d.Device.AllocPD()
	if err != nil {
		return nil, err
	}
	return &pd{PD: p}, nil
}

// CreateCQ implements verbs.Device.
func (d *Device) CreateCQ(init verbs.CQInit) (verbs.CQ, error) {
	c := &cq{w: d.w}
	if handler := init.Handler; handler != nil || !init.IgnoreOverrun {
		init.Handler = func(verbs.CQ) {
			if p := c.waiter; p != nil {
				c.waiter = nil
				p.resume(d.w.costs.PCIeWrite)
			}
			if handler != nil {
				handler(c)
			}
		}
	}
	var err error
	if c.CQ, err = d.Device.CreateCQ(init); err != nil {
		return nil, err
	}
	return c, nil
}

// pd is a verbs.PD.
type pd struct{ verbs.PD }

// CreateQP implements verbs.PD.
func (p *pd) CreateQP(init verbs.QPInit) (verbs.QP, error) {
	if c, ok := init.SendCQ.(*cq); ok {
		init.SendCQ = c.CQ
	}
	if c, ok := init.RecvCQ.(*cq); ok {
		init.RecvCQ = c.CQ
	}
	return p.PD.CreateQP(init)
}

// cq is a verbs.CQ that a process can wait for.
type cq struct {
	verbs.CQ
	w      *World
	waiter *Proc // a process in Wait
}

// Wait implements verbs.CQ. A process waits in virtual time, and only one at a time for a queue. It ignores the
// deadline of ctx, which is of wall-clock time, and only checks whether ctx has ended.
func (c *cq) Wait(ctx context.Context) error {
	p := c.w.current
	if p == nil {
		return c.CQ.Wait(ctx)
	}
	for softdev.Len(c.CQ) == 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		if c.waiter != nil {
			return fmt.Errorf("cannot wait for a CQ: another process does: %w", verbs.ErrBusy)
		}
		c.waiter = p
		err := p.park()
		if c.waiter == p {
			c.waiter = nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Close implements verbs.Device.
func (d *Device) Close() error {
	d.w.lock()
	delete(d.w.devices, d.Device)
	d.w.unlock()
	return d.Device.Close()
}
