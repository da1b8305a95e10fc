package softnic

import (
	"fmt"

	"polder/verbs"
)

// remoteAccess is what a window can grant.
const remoteAccess = verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic

// AllocMW allocates an unbound window and returns its first key.
func (n *NIC) AllocMW(pd uint32, t verbs.MWType) (verbs.RKey, error) {
	d := n.pds.get(pd)
	switch {
	case d == nil:
		return 0, fmt.Errorf("cannot allocate a window: no protection domain %d: %w", pd, verbs.ErrInvalid)
	case t != verbs.MWType1 && t != verbs.MWType2B:
		return 0, fmt.Errorf("cannot allocate a window: %v: %w", t, verbs.ErrInvalid)
	}
	r := &region{window: t, pd: d}
	if !n.keys.add(r) {
		return 0, fmt.Errorf("cannot allocate a window: %w", verbs.ErrNoResources)
	}
	d.refs++
	return r.key, nil
}

// MWKey returns the present key of the window of key's index.
func (n *NIC) MWKey(key verbs.RKey) (verbs.RKey, error) {
	r := n.keys.byIndex(key)
	if r == nil || r.window == 0 {
		return 0, fmt.Errorf("no window of index %#x: %w", key.Index(), verbs.ErrInvalid)
	}
	return r.key, nil
}

// DeallocMW frees the window of key's index, bound or not.
func (n *NIC) DeallocMW(key verbs.RKey) error {
	r := n.keys.byIndex(key)
	if r == nil || r.window == 0 {
		return fmt.Errorf("cannot free window %v: no such window: %w", key, verbs.ErrInvalid)
	}
	n.unbind(r)
	n.removeRegion(r)
	return nil
}

// bind executes a BIND_MW that is posted to q.
//
// The rules are those of the InfiniBand specification, volume 1, section
// 10.6.7: window, region and queue pairs are in one protection domain; the
// region allows binding, contains the range, and allows local writes if the
// window is to allow remote writes or atomics; a window of type 2B must be
// unbound and gets at least one byte; one of type 1 may be bound, and is
// unbound by a bind of no bytes.
func (n *NIC) bind(q *qp, w *wqe) bool {
	mw := n.keys.byIndex(w.rkey)
	if mw == nil || mw.window == 0 || mw.pd != q.pd || w.access&^remoteAccess != 0 {
		return false
	}
	if mw.window == verbs.MWType1 && w.length == 0 {
		n.unbind(mw)
		mw.key = w.rkey
		return true
	}
	mr := n.keys.get(verbs.RKey(w.lkey))
	if mr == nil || mr.window != 0 || mr.pd != q.pd || !mr.access.Has(verbs.AccessMWBind) {
		return false
	}
	if w.access&^verbs.AccessRemoteRead != 0 && !mr.access.Has(verbs.AccessLocalWrite) {
		return false
	}
	if w.access.Has(verbs.AccessRemoteAtomic) && !aligned(mr.mem) {
		return false
	}
	if w.length == 0 {
		return false
	}
	mem := mr.at(w.addr, w.length)
	if mem == nil {
		return false
	}
	owner := q
	if mw.window == verbs.MWType2B {
		if mw.mr != nil {
			return false
		}
		if w.qpn != 0 {
			owner = n.qps.get(w.qpn)
		}
		if owner == nil || owner.pd != q.pd {
			return false
		}
	}
	n.unbind(mw)
	mw.key, mw.access, mw.base, mw.mem, mw.mr = w.rkey, w.access, w.addr, mem, mr
	mr.refs++
	if mw.window == verbs.MWType2B {
		mw.qpn, mw.owner = owner.num, owner
		if mw.next = owner.windows; mw.next != nil {
			mw.next.prev = mw
		}
		owner.windows = mw
	}
	n.counters.Binds++
	return true
}

// invalidate executes a LOCAL_INV that is posted to q: the window must be of
// type 2B, bound, named by its present key, and q's own unless the request
// may name any queue pair's.
func (n *NIC) invalidate(q *qp, w *wqe) bool {
	mw := n.keys.get(w.rkey)
	if mw == nil || mw.window != verbs.MWType2B || mw.mr == nil || mw.pd != q.pd {
		return false
	}
	if mw.owner != q && w.flags&verbs.SendAnyQP == 0 {
		return false
	}
	n.unbind(mw)
	n.counters.Invalidations++
	return true
}

// unbind takes away what a window grants. The key stays.
func (n *NIC) unbind(mw *region) {
	if mw.mr == nil {
		return
	}
	mw.mr.refs--
	if o := mw.owner; o != nil {
		if mw.prev == nil {
			o.windows = mw.next
		} else {
			mw.prev.next = mw.next
		}
		if mw.next != nil {
			mw.next.prev = mw.prev
		}
	}
	mw.access, mw.base, mw.mem, mw.qpn = 0, 0, nil, 0
	mw.mr, mw.owner, mw.prev, mw.next = nil, nil, nil, nil
}
