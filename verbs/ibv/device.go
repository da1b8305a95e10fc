//go:build ibverbs

package ibv

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"polder/verbs"
	"polder/verbs/internal/endpoint"
)

// port is the port that is used. Devices with several ports show them as
// several devices, except for the oldest.
const port = 1

// device is an opened RDMA device.
type device struct {
	name   string
	ctx    hwContext
	caps   hwAttr
	quirks Quirks
	attr   verbs.DeviceAttr
	events *watcher // asynchronous events
	tell   *teller

	ends endpoint.Ends // listeners and connections

	// life is held by everything that needs the device to stay open
	// meanwhile.
	life    sync.RWMutex
	mu      sync.RWMutex
	closed  bool               // guarded by life and mu: changes with both held
	pds     map[*pd]struct{}   // guarded by mu
	cqs     map[*cq]struct{}   // guarded by mu
	qps     map[uint32]*qp     // guarded by mu: by number
	mrs     map[verbs.LKey]*mr // guarded by mu
	mws     map[uint32]*mw     // guarded by mu: by index
	serials atomic.Uint32      // of queue pairs
	nextCQ  atomic.Uint32

	watchers sync.WaitGroup // completion queues' goroutines

	closeOnce sync.Once
	closeErr  error
}

// Open opens the RDMA device of that name, such as mlx5_0. An empty name is that
// of the host's only device.
func Open(name string) (verbs.Device, error) {
	d, err := open(name)
	if err != nil {
		return nil, fmt.Errorf("cannot open RDMA device %q: %w", name, err)
	}
	return d, nil
}

func open(name string) (*device, error) {
	ctx, found, err := hwOpen(name)
	switch {
	case err != nil:
		return nil, err
	case ctx == nil && name == "" && len(found) == 1:
		return open(found[0])
	case ctx == nil && name == "" && len(found) > 1:
		return nil, fmt.Errorf("%w: it has no name, and there are several: %s", verbs.ErrInvalid, strings.Join(found, ", "))
	case ctx == nil && len(found) == 0:
		return nil, fmt.Errorf("%w: this host has no RDMA device (polder doctor says more)", verbs.ErrInvalid)
	case ctx == nil:
		return nil, fmt.Errorf("%w: there is no such device, only %s", verbs.ErrInvalid, strings.Join(found, ", "))
	}
	d := &device{
		name: name, ctx: ctx,
		pds: make(map[*pd]struct{}),
		cqs: make(map[*cq]struct{}),
		qps: make(map[uint32]*qp),
		mrs: make(map[verbs.LKey]*mr),
		mws: make(map[uint32]*mw),
	}
	if d.caps, err = hwQueryDevice(ctx); err == nil {
		d.quirks, _ = quirksOf(d.caps.vendor, d.caps.part)
		d.attr = attrOf(name, d.caps, d.quirks)
		d.events, err = watch(hwAsyncFD(ctx), d.asyncEvent)
	}
	if err != nil {
		hwClose(ctx)
		return nil, err
	}
	d.tell = newTeller()
	d.events.start()
	return d, nil
}

// attrOf is what a device of those capabilities can do for package verbs.
func attrOf(name string, caps hwAttr, q Quirks) verbs.DeviceAttr {
	return verbs.DeviceAttr{
		Name:        name,
		MaxQPDepth:  min(caps.maxQPWR-2*relayRoom, maxDepth),
		MaxSGE:      min(caps.maxSGE, maxSGE),
		MaxMsgSize:  1 << 30, // 2 GiB by the standard; some devices stop at half of it
		MaxRdAtom:   min(caps.maxRdAtom, caps.maxInitRdAtom, maxRdAtom),
		MaxQP:       caps.maxQP,
		MaxCQ:       caps.maxCQ,
		MaxMW:       caps.maxMW,
		BoundsMW:    !q.WindowBounds,
		HostAtomics: caps.atomics == atomicsGlobal && !q.LocalAtomics,
		Pinned:      true,
	}
}

const (
	maxDepth  = 1 << 14
	maxRdAtom = 128
)

// Attr implements verbs.Device.
func (d *device) Attr() verbs.DeviceAttr { return d.attr }

// Close implements verbs.Device. It waits for the connections' goroutines, and
// so must not be called from a completion handler.
func (d *device) Close() error {
	d.closeOnce.Do(func() { d.closeErr = d.close() })
	return d.closeErr
}

func (d *device) close() error {
	d.life.Lock()
	d.mu.Lock()
	d.closed = true
	d.life.Unlock()
	d.mu.Unlock()
	d.ends.Close()

	var first error
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	// In the order in which they hold each other. Nothing is added any more.
	for _, q := range values(d, d.qps) {
		keep(q.close())
	}
	for _, w := range values(d, d.mws) {
		keep(w.dealloc())
	}
	for _, m := range values(d, d.mrs) {
		keep(m.deregister())
	}
	for _, c := range keys(d, d.cqs) {
		keep(c.close())
	}
	d.watchers.Wait()
	for _, p := range keys(d, d.pds) {
		keep(p.close())
	}
	d.events.close()
	d.tell.close()
	keep(hwClose(d.ctx))
	if first != nil {
		return fmt.Errorf("cannot close RDMA device %s: %w", d.name, first)
	}
	return nil
}

// stay keeps the device open until d.life.RUnlock is called, or fails if it is
// closed.
func (d *device) stay() error {
	d.life.RLock()
	if d.closed {
		d.life.RUnlock()
		return fmt.Errorf("the device is closed: %w", verbs.ErrClosed)
	}
	return nil
}

// closing runs f, which closes an object, and keeps the device open meanwhile. If the device is closed already, its
// Close has taken or takes care of the object.
func (d *device) closing(f func() error) error {
	if d.stay() != nil {
		return nil
	}
	defer d.life.RUnlock()
	return f()
}

func values[K comparable, V any](d *device, m map[K]V) []V {
	d.mu.RLock()
	defer d.mu.RUnlock()
	list := make([]V, 0, len(m))
	for _, v := range m {
		list = append(list, v)
	}
	return list
}

func keys[K comparable, V any](d *device, m map[K]V) []K {
	d.mu.RLock()
	defer d.mu.RUnlock()
	list := make([]K, 0, len(m))
	for k := range m {
		list = append(list, k)
	}
	return list
}

// ours returns dev as this driver's.
func ours(dev verbs.Device) (*device, error) {
	d, ok := dev.(*device)
	if !ok {
		return nil, fmt.Errorf("%T is not a device of this driver: %w", dev, verbs.ErrInvalid)
	}
	return d, nil
}

// asyncEvent takes what has happened to the device, until there is no more.
func (d *device) asyncEvent() error {
	for {
		typ, object, err := hwNextEvent(d.ctx)
		if err != nil {
			return err
		}
		switch typ {
		case hwCQErr:
			for _, c := range keys(d, d.cqs) {
				if c.hw.same(object) {
					c.overrun()
				}
			}
		case hwQPFatal, hwQPReqErr, hwQPAccessErr:
			for _, q := range values(d, d.qps) {
				if q.hw.same(object) {
					q.fail(map[hwEvent]verbs.EventType{hwQPFatal: verbs.EventQPFatal,
						hwQPReqErr: verbs.EventQPReqErr, hwQPAccessErr: verbs.EventQPAccessErr}[typ])
				}
			}
		case hwDeviceFatal:
			for _, q := range values(d, d.qps) {
				q.fail(verbs.EventQPFatal)
			}
		}
	}
}

// mrOf returns the region of that key in p, or nil.
func (d *device) mrOf(key verbs.LKey, p *pd) *mr {
	d.mu.RLock()
	m := d.mrs[key]
	d.mu.RUnlock()
	if m == nil || m.pd != p {
		return nil
	}
	return m
}

// mwOf returns the window that a key names in p, or nil.
func (d *device) mwOf(key verbs.RKey, p *pd) *mw {
	d.mu.RLock()
	w := d.mws[key.Index()]
	d.mu.RUnlock()
	if w == nil || w.pd != p {
		return nil
	}
	return w
}

// ConnectLoopback implements verbs.Device.
func (d *device) ConnectLoopback(a, b verbs.QP) error {
	if err := d.connectLoopback(a, b); err != nil {
		return fmt.Errorf("cannot connect in loopback: %w", err)
	}
	return nil
}

func (d *device) connectLoopback(a, b verbs.QP) error {
	qa, err := d.own(a)
	if err != nil {
		return err
	}
	qb, err := d.own(b)
	if err != nil {
		return err
	}
	here, err := d.address("")
	if err != nil {
		return err
	}
	if err := qa.claim(); err != nil {
		return err
	}
	if qa != qb {
		if err := qb.claim(); err != nil {
			qa.unclaim()
			return err
		}
	}
	pa, pb := newPSN(), newPSN()
	if qa == qb {
		pb = pa
	}
	if err := qa.connect(nil, here, here.address, pa, qb.num, pb, false); err != nil || qa == qb {
		return err
	}
	return qb.connect(nil, here, here.address, pb, qa.num, pa, false)
}

// own returns a queue pair of this device's.
func (d *device) own(q verbs.QP) (*qp, error) {
	mine, ok := q.(*qp)
	if !ok || mine.pd.d != d {
		return nil, fmt.Errorf("the queue pair is not of this device: %w", verbs.ErrInvalid)
	}
	return mine, nil
}
