package softdev

import (
	"fmt"
	"slices"
	"sync"

	"polder/verbs"
	"polder/verbs/softnic"
)

// Device is a verbs.Device over a software RNIC.
type Device struct {
	g    *Group
	nic  *softnic.NIC // guarded by g.mu
	attr verbs.DeviceAttr

	inEngine bool // guarded by g.mu: inside Step or Deliver

	busy    bool           // guarded by g.mu: in g.busy
	closed  bool           // guarded by g.mu
	cqs     []*cq          // guarded by g.mu: by the low 16 bits of their number
	qps     map[uint32]*qp // guarded by g.mu
	links   []*linkEnd     // guarded by g.mu: by the low 16 bits of their Link; 0 is unused
	linkGen uint16         // guarded by g.mu: of the last Link

	onClose  map[uint64]func() // guarded by g.mu
	nextHook uint64            // guarded by g.mu

	parker    *parker // immutable; nil if the driver has not asked for one
	closeOnce sync.Once
	done      chan struct{} // closed by Close
}

var _ verbs.Device = (*Device)(nil)

// New returns a device in a group, or in one of its own if g is nil.
func New(cfg softnic.Config, g *Group) (*Device, error) {
	if g == nil {
		g = NewGroup()
	}
	d := &Device{
		g:       g,
		qps:     make(map[uint32]*qp),
		links:   make([]*linkEnd, 1),
		onClose: make(map[uint64]func()),
		done:    make(chan struct{}),
	}
	nic, err := softnic.New(cfg, output{d})
	if err != nil {
		return nil, err
	}
	d.nic, d.attr = nic, nic.Attr()
	return d, nil
}

// Attr returns what the device can do.
func (d *Device) Attr() verbs.DeviceAttr { return d.attr }

// Counters returns the engine's totals.
func (d *Device) Counters() softnic.Counters {
	d.g.mu.Lock()
	defer d.g.mu.Unlock()
	return d.nic.Counters()
}

// Done is closed when the device is.
func (d *Device) Done() <-chan struct{} { return d.done }

// OnClose has f called once when the device is closed, before its queue pairs
// are destroyed, with no lock held; at once if it is closed already. cancel
// takes that back.
func (d *Device) OnClose(f func()) (cancel func()) {
	d.g.mu.Lock()
	closed := d.closed
	id := d.nextHook
	if !closed {
		d.nextHook++
		d.onClose[id] = f
	}
	d.g.mu.Unlock()
	if closed {
		f()
	}
	return func() {
		d.g.mu.Lock()
		delete(d.onClose, id)
		d.g.mu.Unlock()
	}
}

// Of reports whether d is in the group g.
func (d *Device) Of(g *Group) bool { return d.g == g }

// Close destroys everything the device holds; registered memory is not
// accessed any more when it returns. It must not be called from a completion
// or event handler.
func (d *Device) Close() error {
	d.closeOnce.Do(d.close)
	return nil
}

func (d *Device) close() {
	g := d.g
	g.mu.Lock()
	d.closed = true
	hooks := d.onClose
	d.onClose = make(map[uint64]func())
	g.mu.Unlock()
	close(d.done)
	if d.parker != nil {
		d.parker.close()
	}
	for _, f := range hooks {
		f()
	}

	g.mu.Lock()
	for i, l := range d.links {
		if l != nil {
			d.links[i] = nil
			d.nic.LinkDown(l.id)
		}
	}
	for num := range d.qps {
		_ = d.nic.DestroyQP(num) // it exists, which is all that can be wrong
	}
	clear(d.qps)
	if i := slices.Index(g.busy, d); i >= 0 {
		g.busy = slices.Delete(g.busy, i, i+1)
	}
	d.busy = true // stays so: nothing makes it run again
	var wait chan struct{}
	if len(g.busy) == 0 {
		wait = g.runner
	}
	g.unlock()
	if wait != nil {
		<-wait
	}
}

// lock takes the lock, or returns ErrClosed without it.
func (d *Device) lock() error {
	d.g.mu.Lock()
	if d.closed {
		d.g.mu.Unlock()
		return verbs.ErrClosed
	}
	return nil
}

// unlock lets the NICs run, releases the lock and calls handlers.
func (d *Device) unlock() {
	d.g.wake(d)
	d.g.unlock()
}

// AllocPD allocates a protection domain.
func (d *Device) AllocPD() (verbs.PD, error) {
	if err := d.lock(); err != nil {
		return nil, fmt.Errorf("cannot allocate a protection domain: %w", err)
	}
	defer d.g.mu.Unlock()
	num, err := d.nic.AllocPD()
	if err != nil {
		return nil, err
	}
	return &pd{d: d, num: num}, nil
}

// CreateCQ creates a completion queue.
func (d *Device) CreateCQ(init verbs.CQInit) (verbs.CQ, error) {
	if err := d.lock(); err != nil {
		return nil, fmt.Errorf("cannot create a CQ: %w", err)
	}
	defer d.g.mu.Unlock()
	num, err := d.nic.CreateCQ(init.Depth, init.IgnoreOverrun)
	if err != nil {
		return nil, err
	}
	c := &cq{d: d, num: num, init: init, wake: make(chan struct{}, 1), done: make(chan struct{})}
	slot := int(num & 0xffff)
	for len(d.cqs) <= slot {
		d.cqs = append(d.cqs, nil)
	}
	d.cqs[slot] = c
	return c, nil
}

// ConnectLoopback joins two queue pairs of this device, or one to itself.
func (d *Device) ConnectLoopback(a, b verbs.QP) error {
	qa, err := d.own(a)
	if err != nil {
		return fmt.Errorf("cannot connect in loopback: %w", err)
	}
	qb, err := d.own(b)
	if err != nil {
		return fmt.Errorf("cannot connect in loopback: %w", err)
	}
	if err := d.lock(); err != nil {
		return fmt.Errorf("cannot connect in loopback: %w", err)
	}
	defer d.unlock()
	for _, q := range []*qp{qa, qb} {
		if err := q.connectable(); err != nil {
			return err
		}
	}
	if err := d.nic.ConnectQP(qa.num, softnic.Loopback, qb.num); err != nil || qa == qb {
		return err
	}
	return d.nic.ConnectQP(qb.num, softnic.Loopback, qa.num)
}

// output is what the NIC sees of its device. g.mu is held in all of it.
type output struct{ d *Device }

func (o output) Send(id softnic.Link, p *softnic.Packet) {
	l := o.d.link(id)
	if l == nil {
		return // it was removed
	}
	l.driver.Send(p)
	if l.flusher != nil && !l.inBatch {
		l.inBatch = true
		b := o.d.g.pending()
		b.flushes = append(b.flushes, l)
	}
}

func (o output) Ready(id softnic.Link) bool {
	l := o.d.link(id)
	return l == nil || l.driver.Ready()
}

func (o output) Completion(cqn uint32) {
	c := o.d.cqs[cqn&0xffff]
	if !c.filled.Load() {
		c.filled.Store(true)
	}
	if p := c.parked(); p != nil {
		if b := o.d.g.pending(); len(b.unparks) == 0 || b.unparks[len(b.unparks)-1] != p {
			b.unparks = append(b.unparks, p)
		}
	} else if c.waiters > 0 {
		c.signal()
	}
	if c.init.Handler != nil && !c.inBatch {
		c.inBatch = true
		b := o.d.g.pending()
		b.handlers = append(b.handlers, c)
	}
}

func (o output) Event(e verbs.AsyncEvent) {
	if q := o.d.qps[e.QPN]; q != nil && q.onEvent != nil {
		b := o.d.g.pending()
		b.events = append(b.events, event{f: q.onEvent, e: e})
	}
}
