package softdev

import (
	"fmt"

	"polder/verbs"
	"polder/verbs/softnic"
)

// pd is a verbs.PD.
type pd struct {
	d      *Device
	num    uint32
	closed bool // guarded by d.g.mu
}

// lock takes the lock if the domain is open.
func (p *pd) lock() error {
	if err := p.d.lock(); err != nil {
		return err
	}
	if p.closed {
		p.d.g.mu.Unlock()
		return verbs.ErrClosed
	}
	return nil
}

func (p *pd) RegMR(buf []byte, access verbs.Access) (verbs.MR, error) {
	if err := p.lock(); err != nil {
		return nil, fmt.Errorf("cannot register %d bytes: %w", len(buf), err)
	}
	defer p.d.g.mu.Unlock()
	m, err := p.d.nic.RegMR(p.num, buf, access)
	if err != nil {
		return nil, err
	}
	return &mr{pd: p, buf: buf, info: m}, nil
}

func (p *pd) AllocMW(t verbs.MWType) (verbs.MW, error) {
	if err := p.lock(); err != nil {
		return nil, fmt.Errorf("cannot allocate a window: %w", err)
	}
	defer p.d.g.mu.Unlock()
	key, err := p.d.nic.AllocMW(p.num, t)
	if err != nil {
		return nil, err
	}
	return &mw{pd: p, typ: t, key: key}, nil
}

func (p *pd) CreateQP(init verbs.QPInit) (verbs.QP, error) {
	d := p.d
	send, ok1 := init.SendCQ.(*cq)
	recv, ok2 := init.RecvCQ.(*cq)
	if !ok1 || !ok2 || send.d != d || recv.d != d {
		return nil, fmt.Errorf("cannot create a QP: both CQs must be of this device: %w", verbs.ErrInvalid)
	}
	cfg := softnic.QPConfig{
		PD: p.num, SendCQ: send.num, RecvCQ: recv.num,
		SendDepth: init.SendDepth, RecvDepth: init.RecvDepth,
		ManagedSend: init.Managed, ManagedRecv: init.ManagedRecv, LazyAcks: init.LazyAcks,
	}
	for _, r := range []struct {
		ring verbs.MR
		key  *verbs.RKey
	}{{init.SendRing, &cfg.SendRing}, {init.RecvRing, &cfg.RecvRing}} {
		if r.ring == nil {
			continue
		}
		m, ok := r.ring.(*mr)
		if !ok || m.pd != p {
			return nil, fmt.Errorf("cannot create a QP: its ring is not of this protection domain: %w", verbs.ErrInvalid)
		}
		*r.key = m.info.Key
	}
	if err := p.lock(); err != nil {
		return nil, fmt.Errorf("cannot create a QP: %w", err)
	}
	defer d.g.mu.Unlock()
	if send.closed || recv.closed {
		return nil, fmt.Errorf("cannot create a QP: its CQ: %w", verbs.ErrClosed)
	}
	num, err := d.nic.CreateQP(cfg)
	if err != nil {
		return nil, err
	}
	q := &qp{d: d, num: num, onEvent: init.OnEvent}
	d.qps[num] = q
	return q, nil
}

func (p *pd) Close() error {
	if p.lock() != nil {
		return nil
	}
	defer p.d.g.mu.Unlock()
	if err := p.d.nic.DeallocPD(p.num); err != nil {
		return err
	}
	p.closed = true
	return nil
}

// mr is a verbs.MR.
type mr struct {
	pd     *pd
	buf    []byte
	info   softnic.MR
	closed bool // guarded by pd.d.g.mu
}

func (m *mr) Addr() uint64     { return m.info.Addr }
func (m *mr) Bytes() []byte    { return m.buf }
func (m *mr) LKey() verbs.LKey { return verbs.LKey(m.info.Key) }
func (m *mr) RKey() verbs.RKey { return m.info.Key }

func (m *mr) Deregister() error {
	d := m.pd.d
	if d.lock() != nil {
		return nil
	}
	defer d.g.mu.Unlock()
	if m.closed {
		return nil
	}
	if err := d.nic.DeregMR(m.info.Key); err != nil {
		return err
	}
	m.closed = true
	return nil
}

// mw is a verbs.MW.
type mw struct {
	pd     *pd
	typ    verbs.MWType
	key    verbs.RKey // its index is the window's, its low 8 bits are of no account
	closed bool       // guarded by pd.d.g.mu
}

func (m *mw) Type() verbs.MWType { return m.typ }

func (m *mw) RKey() verbs.RKey {
	d := m.pd.d
	if d.lock() != nil {
		return m.key
	}
	defer d.g.mu.Unlock()
	if m.closed {
		return m.key
	}
	key, err := d.nic.MWKey(m.key)
	if err != nil {
		panic("BUG: an open window is not in the table: " + err.Error())
	}
	return key
}

func (m *mw) Dealloc() error {
	d := m.pd.d
	if d.lock() != nil {
		return nil
	}
	defer d.g.mu.Unlock()
	if m.closed {
		return nil
	}
	if err := d.nic.DeallocMW(m.key); err != nil {
		return err
	}
	m.closed = true
	return nil
}

// qp is a verbs.QP.
type qp struct {
	d       *Device
	num     uint32
	onEvent func(verbs.AsyncEvent)
	closed  bool // guarded by d.g.mu
}

// lock takes the lock if the queue pair is open.
func (q *qp) lock() error {
	if err := q.d.lock(); err != nil {
		return err
	}
	if q.closed {
		q.d.g.mu.Unlock()
		return verbs.ErrClosed
	}
	return nil
}

// connectable says why the queue pair cannot be connected. The lock must be
// held.
func (q *qp) connectable() error {
	if q.closed {
		return fmt.Errorf("cannot connect QP %d: %w", q.num, verbs.ErrClosed)
	}
	state, err := q.d.nic.QPState(q.num)
	if err == nil && state != verbs.StateReset && state != verbs.StateInit {
		err = fmt.Errorf("cannot connect QP %d in state %v: %w", q.num, state, verbs.ErrBadState)
	}
	return err
}

func (q *qp) Num() uint32 { return q.num }

func (q *qp) State() verbs.State {
	if q.lock() != nil {
		return verbs.StateError
	}
	defer q.d.g.mu.Unlock()
	state, err := q.d.nic.QPState(q.num)
	if err != nil {
		panic("BUG: an open QP is not in the table: " + err.Error())
	}
	return state
}

func (q *qp) PostSend(wrs ...verbs.SendWR) error {
	if err := q.lock(); err != nil {
		return err
	}
	err := q.d.nic.PostSend(q.num, wrs)
	q.d.unlock()
	return err
}

func (q *qp) PostRecv(wrs ...verbs.RecvWR) error {
	if err := q.lock(); err != nil {
		return err
	}
	err := q.d.nic.PostRecv(q.num, wrs)
	q.d.unlock()
	return err
}

func (q *qp) EnableSend(index uint64) error {
	if err := q.lock(); err != nil {
		return err
	}
	err := q.d.nic.EnableSend(q.num, index)
	q.d.unlock()
	return err
}

func (q *qp) EnableRecv(index uint64) error {
	if err := q.lock(); err != nil {
		return err
	}
	err := q.d.nic.EnableRecv(q.num, index)
	q.d.unlock()
	return err
}

func (q *qp) Fail() error {
	if err := q.lock(); err != nil {
		return err
	}
	err := q.d.nic.FailQP(q.num)
	q.d.unlock()
	return err
}

func (q *qp) Close() error {
	if q.lock() != nil {
		return nil
	}
	defer q.d.unlock()
	q.closed = true
	delete(q.d.qps, q.num)
	return q.d.nic.DestroyQP(q.num)
}
