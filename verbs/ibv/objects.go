//go:build ibverbs

package ibv

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"polder/verbs"
)

// pd implements verbs.PD.
type pd struct {
	d  *device
	hw hwPD

	mu      sync.Mutex
	closed  bool // guarded by mu
	members int  // guarded by mu: regions, windows and queue pairs
}

// AllocPD implements verbs.Device.
func (d *device) AllocPD() (verbs.PD, error) {
	if err := d.stay(); err != nil {
		return nil, fmt.Errorf("cannot allocate a protection domain: %w", err)
	}
	defer d.life.RUnlock()
	hw, err := hwAllocPD(d.ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot allocate a protection domain: %w", err)
	}
	p := &pd{d: d, hw: hw}
	d.mu.Lock()
	d.pds[p] = struct{}{}
	d.mu.Unlock()
	return p, nil
}

// enter counts a member in, which keeps the domain; leave counts it out. The
// device stays open until d.life.RUnlock is called.
func (p *pd) enter() error {
	if err := p.d.stay(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		p.d.life.RUnlock()
		return verbs.ErrClosed
	}
	p.members++
	return nil
}

func (p *pd) leave() {
	p.mu.Lock()
	p.members--
	p.mu.Unlock()
}

// Close implements verbs.PD.
func (p *pd) Close() error { return p.d.closing(p.close) }

func (p *pd) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if p.members > 0 {
		return fmt.Errorf("cannot close a protection domain with %d objects in it: %w", p.members, verbs.ErrBusy)
	}
	p.closed = true
	p.d.mu.Lock()
	delete(p.d.pds, p)
	p.d.mu.Unlock()
	if err := hwDeallocPD(p.hw); err != nil {
		return fmt.Errorf("cannot close a protection domain: %w", err)
	}
	return nil
}

// mr implements verbs.MR.
type mr struct {
	pd     *pd
	hw     hwMR
	buf    []byte // keeps the memory
	addr   uint64
	access verbs.Access
	lkey   verbs.LKey
	rkey   verbs.RKey
	gone   atomic.Bool // its keys are no more

	mu     sync.Mutex
	closed bool // guarded by mu
	bound  int  // guarded by mu: windows
}

// RegMR implements verbs.PD.
func (p *pd) RegMR(buf []byte, access verbs.Access) (verbs.MR, error) {
	m, err := p.regMR(buf, access)
	if err != nil {
		return nil, fmt.Errorf("cannot register %d bytes: %w", len(buf), err)
	}
	return m, nil
}

func (p *pd) regMR(buf []byte, access verbs.Access) (*mr, error) {
	switch {
	case len(buf) == 0:
		return nil, fmt.Errorf("there is no memory: %w", verbs.ErrInvalid)
	case !access.Valid():
		return nil, fmt.Errorf("access %v needs local-write, or is not defined: %w", access, verbs.ErrInvalid)
	}
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.d.life.RUnlock()
	hw, err := hwRegMR(p.hw, buf, hwAccess(access))
	if err != nil {
		p.leave()
		if errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.EAGAIN) {
			err = fmt.Errorf("%w: %w (registered memory is locked: see ulimit -l, and polder doctor)", verbs.ErrNoResources, err)
		}
		return nil, err
	}
	lkey, rkey := hwKeys(hw)
	m := &mr{pd: p, hw: hw, buf: buf, addr: bufAddr(buf), access: access, lkey: verbs.LKey(lkey), rkey: verbs.RKey(rkey)}
	p.d.mu.Lock()
	p.d.mrs[m.lkey] = m
	p.d.mu.Unlock()
	return m, nil
}

func (m *mr) Addr() uint64     { return m.addr }
func (m *mr) Bytes() []byte    { return m.buf }
func (m *mr) LKey() verbs.LKey { return m.lkey }
func (m *mr) RKey() verbs.RKey { return m.rkey }

// covers reports whether n bytes at addr lie in the region.
func (m *mr) covers(addr, n uint64) bool {
	size := uint64(len(m.buf))
	return addr >= m.addr && addr-m.addr <= size && n <= size-(addr-m.addr)
}

// Deregister implements verbs.MR.
func (m *mr) Deregister() error { return m.pd.d.closing(m.deregister) }

func (m *mr) deregister() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	if m.bound > 0 {
		return fmt.Errorf("cannot deregister a region that %d windows are bound to: %w", m.bound, verbs.ErrBusy)
	}
	// Before the key can be given to another region.
	m.gone.Store(true)
	m.pd.d.mu.Lock()
	delete(m.pd.d.mrs, m.lkey)
	m.pd.d.mu.Unlock()
	if err := hwDeregMR(m.hw); err != nil {
		m.pd.d.mu.Lock()
		m.pd.d.mrs[m.lkey] = m
		m.pd.d.mu.Unlock()
		m.gone.Store(false)
		return fmt.Errorf("cannot deregister a region: %w", err)
	}
	m.closed = true
	m.pd.leave()
	return nil
}

// hold counts windows that are bound to the region.
func (m *mr) hold(n int) {
	m.mu.Lock()
	m.bound += n
	m.mu.Unlock()
}

// mw implements verbs.MW.
//
// The state after all posted requests (next, owner) and the state after those that were executed (key, mr) are kept
// apart. Requests are checked against the posted state, and a failure resets it to the executed one.
type mw struct {
	pd  *pd
	typ verbs.MWType

	mu     sync.Mutex
	hw     hwMW       // guarded by mu
	key    verbs.RKey // guarded by mu: as of the last bind that was executed
	next   verbs.RKey // guarded by mu: as of the last bind that was posted
	mr     *mr        // guarded by mu: that it is bound to, or nil
	owner  *qp        // guarded by mu: type 2B, whose it will be once all posted requests are executed
	closed bool       // guarded by mu
}

// AllocMW implements verbs.PD.
func (p *pd) AllocMW(t verbs.MWType) (verbs.MW, error) {
	w, err := p.allocMW(t)
	if err != nil {
		return nil, fmt.Errorf("cannot allocate a window: %w", err)
	}
	return w, nil
}

func (p *pd) allocMW(t verbs.MWType) (*mw, error) {
	switch {
	case t != verbs.MWType1 && t != verbs.MWType2B:
		return nil, fmt.Errorf("%v is no type of window: %w", t, verbs.ErrInvalid)
	case t == verbs.MWType1 && !p.d.caps.window1, t == verbs.MWType2B && !p.d.caps.window2B:
		return nil, fmt.Errorf("%s has no windows of %v: %w", p.d.name, t, verbs.ErrInvalid)
	}
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.d.life.RUnlock()
	w := &mw{pd: p, typ: t}
	if err := w.alloc(); err != nil {
		p.leave()
		return nil, err
	}
	return w, nil
}

// alloc gives the window its place in the device.
//
// Preconditions: w.mu is held, or w is new.
func (w *mw) alloc() error {
	hw, err := hwAllocMW(w.pd.hw, int(w.typ))
	if err != nil {
		return err
	}
	w.hw, w.key = hw, verbs.RKey(hwMWKey(hw))
	w.next = w.key
	d := w.pd.d
	d.mu.Lock()
	d.mws[w.key.Index()] = w
	d.mu.Unlock()
	return nil
}

func (w *mw) Type() verbs.MWType { return w.typ }

// RKey implements verbs.MW.
func (w *mw) RKey() verbs.RKey {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.key
}

// Dealloc implements verbs.MW.
func (w *mw) Dealloc() error { return w.pd.d.closing(w.dealloc) }

func (w *mw) dealloc() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	if err := w.free(); err != nil {
		return fmt.Errorf("cannot deallocate a window: %w", err)
	}
	w.closed = true
	w.pd.leave()
	return nil
}

// free takes the window out of the device, bound or not.
//
// Preconditions: w.mu is held.
func (w *mw) free() error {
	d := w.pd.d
	d.mu.Lock()
	delete(d.mws, w.key.Index())
	d.mu.Unlock()
	if err := hwDeallocMW(w.hw); err != nil {
		return err
	}
	w.settle(nil)
	w.disown()
	return nil
}

// revoke unbinds a window that no queue pair can unbind any more.
func (w *mw) revoke() error {
	d := w.pd.d
	// It does not wait: who closes the device may be waiting for the caller.
	if !d.life.TryRLock() {
		return w.replace(false)
	}
	defer d.life.RUnlock()
	return w.replace(!d.closed)
}

// replace unbinds a window by giving it another place in the device, or, if the
// device is being closed, none.
//
// Preconditions: if there is to be another, d.life is held.
func (w *mw) replace(another bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	if err := w.free(); err != nil {
		return err
	}
	if !another || w.alloc() != nil { // it is unbound all the same
		w.closed = true
		w.pd.leave()
	}
	return nil
}

// settle notes which region the window is bound to.
//
// Preconditions: w.mu is held.
func (w *mw) settle(m *mr) {
	if w.mr != nil {
		w.mr.hold(-1)
	}
	if w.mr = m; m != nil {
		m.hold(1)
	}
}

// own notes whose the window will be, and disown that it will be nobody's.
//
// Preconditions: w.mu is held.
func (w *mw) own(q *qp) {
	w.disown()
	w.owner = q
	q.windowsMu.Lock()
	q.windows[w] = struct{}{}
	q.windowsMu.Unlock()
}

func (w *mw) disown() {
	if w.owner == nil {
		return
	}
	w.owner.windowsMu.Lock()
	delete(w.owner.windows, w)
	w.owner.windowsMu.Unlock()
	w.owner = nil
}
