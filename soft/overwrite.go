package soft

import (
	"polder/codec"
	"polder/soft/internal/order"
)

// maxInPlace is the largest value that is overwritten where it lies. Readers of the stripe wait meanwhile, so writing
// must not take long; and larger values are appended nearly as fast.
const maxInPlace = 4 << 10

// overwritten says what became of an attempt to write in place.
type overwritten uint8

const (
	written  overwritten = iota
	gone                 // the object has been revoked or recycled
	frozen               // the object is dead: its slot is changing
	differed             // the value is not the one that was expected
)

// overwrite replaces the value of w's object in place, by *v, and reports whether it did. It does not if the object
// is gone or dead, if its reverse pointer is not rev, or if somebody holds its stripe's lock.
//
// Preconditions: T is codec.Pointerless and is at most maxInPlace; w named an
// object of T.
//
//polder:hot
func overwrite[T any](h *Heap, w word, rev uint64, v *T) bool {
	_ = *v // a nil pointer panics here, and not with the stripe locked
	seg, off := w.segment(), w.offset()
	p := h.stripeOf(w)
	state := p.Load()
	if state&w.deadBit() != 0 || !p.tryLock(state) {
		return false
	}
	ok := w.alive(h.ctl.Generation(seg)) && h.base.load64(seg, off+8) == rev
	if ok {
		copyIn(h.base, seg, off+headerSize, v)
	}
	p.unlock(state)
	if ok {
		h.touch(w)
	}
	return ok
}

// overwriteSlow replaces the value of w's object in place, by *v, if the value equals *old or if old is nil. It waits
// for the stripe's lock. The caller has loaded w out of the object's slot, so no reverse pointer is compared.
func overwriteSlow[T any](h *Heap, w word, old, v *T) overwritten {
	_ = *v // as in overwrite
	seg, off := w.segment(), w.offset()
	p := h.stripeOf(w)
	for {
		if !w.alive(h.ctl.Generation(seg)) {
			return gone
		}
		state := p.idle()
		if state&w.deadBit() != 0 {
			return frozen
		}
		if !p.tryLock(state) {
			continue
		}
		got := overwriteLocked(h, w, seg, off, old, v)
		p.unlock(state)
		return got
	}
}

// Preconditions: the stripe in which w begins is locked.
func overwriteLocked[T any](h *Heap, w word, seg, off uint32, old, v *T) overwritten {
	if !w.alive(h.ctl.Generation(seg)) {
		return gone
	}
	if old != nil {
		same := string(h.base.bytes(seg, off+headerSize, uint32(sizeOf[T]()))) == string(codec.Bytes(old))
		order.LoadFence()
		if !w.alive(h.ctl.Generation(seg)) {
			return gone
		}
		if !same {
			return differed
		}
	}
	copyIn(h.base, seg, off+headerSize, v)
	h.touch(w)
	return written
}

// readLocked copies a value out while nobody can overwrite it, for a reader that writers have disturbed each time it
// tried (undisturbed).
func readLocked[T any](h *Heap, w word, dst *T) bool {
	_ = *dst // as in overwrite
	seg := w.segment()
	p := h.stripeOf(w)
	state := p.idle()
	for !p.tryLock(state) {
		state = p.idle()
	}
	gen := h.ctl.Generation(seg)
	ok := w.alive(gen)
	if ok {
		copyOut(h.base, seg, w.offset()+headerSize, dst)
		order.LoadFence()
		ok = h.ctl.Generation(seg) == gen
	}
	p.unlock(state)
	return ok
}

// putCell makes a cell hold *v, in place if it can.
func putCell[T any](h *Heap, owner uint16, ref uint64, c *cell, v *T) (word, error) {
	if sizeOf[T]() <= maxInPlace {
		for {
			w := word(c.Load())
			if w == 0 {
				break
			}
			if got := overwriteSlow(h, w, nil, v); got == written {
				return w, nil
			}
			if word(c.Load()) == w { // gone, or changing: we do not wait for it
				break
			}
		}
	}
	w, _, err := storeCell(h, owner, ref, c, codec.Bytes(v), 0, false, 0)
	return w, err
}

// casCell makes a cell hold *v if it holds *old.
func casCell[T any](h *Heap, owner uint16, ref uint64, c *cell, old, v *T) (word, bool, error) {
	for {
		w := word(c.Load())
		if w == 0 {
			return 0, false, nil
		}
		if sizeOf[T]() <= maxInPlace {
			switch overwriteSlow(h, w, old, v) {
			case written:
				return w, true, nil
			case differed:
				return 0, false, nil
			case gone:
				if word(c.Load()) == w {
					return 0, false, nil
				}
				continue
			}
			// Frozen: the object does not change any more, so a copy of it can be compared.
		}
		now, at, ok := new(T), word(0), false
		if sizeOf[T]() > maxInline {
			at, ok = loadLarge(h, c, now)
		} else {
			at, ok = loadCell(h, c, now)
		}
		if !ok {
			return 0, false, nil
		}
		if at != w {
			continue
		}
		if string(codec.Bytes(now)) != string(codec.Bytes(old)) {
			return 0, false, nil
		}
		if to, ok, err := storeCell(h, owner, ref, c, codec.Bytes(v), 0, true, w); ok || err != nil {
			return to, ok, err
		}
	}
}
