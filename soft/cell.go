package soft

import (
	"encoding/binary"
	"runtime"
	"sync/atomic"

	"polder/codec"
	"polder/internal/failpoint"
	"polder/soft/internal/order"
)

// cell is a slot that is always there: of an array, a queue or a pointer. Its
// object has no key.
type cell = atomic.Uint64

// undisturbed is how often a reader tries to copy a value while nobody overwrites it, before it takes the stripe's
// lock to keep writers away.
const undisturbed = 16

// loadCell copies a cell's value, of a type without pointers, to dst.
//
//polder:hot
func loadCell[T any](h *Heap, c *cell, dst *T) (word, bool) {
	for tries := 0; ; tries++ {
		w := word(c.Load())
		seg := w.segment()
		gen := h.ctl.Generation(seg)
		if w == 0 {
			return w, false
		}
		if w.alive(gen) {
			p := h.stripeOf(w)
			state := p.Load()
			if sizeOf[T]() > maxInPlace || state&stripeLocked == 0 {
				copyOut(h.base, seg, w.offset()+headerSize, dst)
				order.LoadFence()
				if h.ctl.Generation(seg) == gen && (sizeOf[T]() > maxInPlace || sameWrites(state, p.Load())) {
					h.touch(w)
					return w, true
				}
			}
			if tries < undisturbed {
				if tries&3 == 3 {
					runtime.Gosched()
				}
				continue
			}
			if readLocked(h, w, dst) {
				h.touch(w)
				return w, true
			}
		}
		failpoint.Hit("soft.gone")
		if word(c.Load()) == w { // not moved meanwhile
			return w, false
		}
	}
}

// loadLarge is loadCell for types that are larger than an object.
func loadLarge[T any](h *Heap, c *cell, dst *T) (word, bool) {
	var id largeID
	w, ok := loadCell(h, c, &id)
	return w, ok && h.larges.read(codec.Bytes(dst), id)
}

// appendCell appends a cell's value, of whatever size, to dst. The cell must belong to a container that overwrites
// nothing in place.
func appendCell(h *Heap, c *cell, dst []byte) ([]byte, bool) {
	mark := len(dst)
	for {
		w := word(c.Load())
		if hd, ok := h.headerOf(w); ok && hd.fits(w.offset()) {
			dst = append(dst[:mark], h.base.bytes(w.segment(), w.offset()+headerSize, hd.size)...)
			order.LoadFence()
			if w.alive(h.ctl.Generation(w.segment())) {
				h.touch(w)
				if hd.flags&flagLarge != 0 {
					return h.larges.append(dst[:mark], idOf(dst[mark:]))
				}
				return dst, true
			}
		}
		failpoint.Hit("soft.gone")
		if word(c.Load()) == w { // nor moved meanwhile
			return dst[:mark], false
		}
	}
}

// storeCell makes a cell hold val, which took cost to build. If cas is set, it does so only if the cell still names
// old.
func storeCell(h *Heap, owner uint16, ref uint64, c *cell, val []byte, cost uint8, cas bool, old word) (word, bool, error) {
	hd := header{size: uint32(len(val)), cost: cost, owner: owner, ref: ref}
	var large largeID
	var name [8]byte
	if len(val) > maxInline {
		var err error
		if large, err = h.larges.create(owner, ref, val); err != nil {
			return 0, false, err
		}
		binary.LittleEndian.PutUint64(name[:], uint64(large))
		hd.size, hd.flags, val = 8, flagLarge, name[:]
	}
	w, err := h.place(hd, val)
	if err != nil {
		h.larges.drop(large)
		return 0, false, err
	}
	for {
		if !cas {
			old = word(c.Load())
		}
		if swapCell(h, c, old, w) {
			w = keepCell(h, c, w, hd, val)
			h.larges.adopt(large)
			return w, true, nil
		}
		if cas {
			h.markDead(w)
			h.release(w, granulesFor(int(hd.size)))
			h.larges.drop(large)
			return 0, false, nil
		}
	}
}

// keepCell places a cell's object again if its segment was emptied after the object was appended and before the cell
// named it, and returns the object's word. It notices because the evacuator marks an object dead before it looks
// whether the object's slot names it.
func keepCell(h *Heap, c *cell, w word, hd header, val []byte) word {
	for h.isDead(w) || !w.alive(h.ctl.Generation(w.segment())) {
		to, err := h.place(hd, val)
		if err != nil {
			return w // there is no memory: it is lost
		}
		if !swapCell(h, c, w, to) { // it was named in time, or has been replaced
			h.markDead(to)
			h.release(to, granulesFor(int(hd.size)))
			return w
		}
		w = to
	}
	return w
}

// swapCell makes a cell name to instead of from and releases from's object.
func swapCell(h *Heap, c *cell, from, to word) bool {
	hd, alive := h.headerOf(from)
	var large largeID
	if alive {
		large = h.largeNamed(from, hd)
		h.markDead(from)
	}
	if !c.CompareAndSwap(uint64(from), uint64(to)) {
		return false
	}
	if alive {
		h.release(from, granulesFor(int(hd.size)))
		h.larges.drop(large)
	}
	return true
}

// dropCell empties a cell.
func dropCell(h *Heap, c *cell) {
	for {
		w := word(c.Load())
		if w == 0 || swapCell(h, c, w, 0) {
			return
		}
	}
}

// sweepCell empties a cell whose object is gone, and reports whether it was.
func sweepCell(h *Heap, c *cell) bool {
	w := word(c.Load())
	return w != 0 && !w.alive(h.ctl.Generation(w.segment())) && c.CompareAndSwap(uint64(w), 0)
}

// cellHoldsLarge is owner.holdsLarge for one cell.
func cellHoldsLarge(h *Heap, c *cell, id largeID) bool {
	w := word(c.Load())
	hd, ok := h.headerOf(w)
	return ok && hd.flags&flagLarge != 0 && h.largeNamed(w, hd) == id
}
