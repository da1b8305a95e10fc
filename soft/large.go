package soft

import (
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"

	"polder/soft/internal/order"
)

// larges are the values that do not fit into one object. Such a value is a
// row of pieces, each an object that lives and moves by itself; the object
// under the value's key holds only its identity. Pieces are immutable and an
// identity is never used again, so a reader that has proved each piece has a
// whole value: all of one write, or nothing. If one piece is gone, the value
// is, and the rest is released.
type larges struct {
	h    *Heap
	id   uint16
	next atomic.Uint64

	mu     sync.RWMutex // taken under a table's lock, and leaf but for Heap.mu
	values map[largeID]*large
}

// largeID is the identity of a large value; zero is none.
type largeID uint64

type large struct {
	size   int
	owner  uint16
	ref    uint64
	pieces []*piece    // immutable but for the words
	whole  atomic.Bool // the object that names it has been published
}

// piece is a part of a value that ends before the offset end.
type piece struct {
	word atomic.Uint64
	end  int
}

// each passes every piece to f, with the range of the value that it holds, until f returns false. It reports whether
// f never did.
func (v *large) each(f func(p *piece, from, to int) bool) bool {
	from := 0
	for _, p := range v.pieces {
		if !f(p, from, p.end) {
			return false
		}
		from = p.end
	}
	return true
}

const pieceBits = 14 // MaxValue / minPiece

func idOf(b []byte) largeID {
	if len(b) < 8 {
		return 0
	}
	return largeID(binary.LittleEndian.Uint64(b))
}

func (l *larges) init(h *Heap) {
	l.h = h
	l.values = make(map[largeID]*large)
	l.id, _ = h.owners.add(l, 0)
}

// largeNamed returns the large value that an object names, if any.
func (h *Heap) largeNamed(w word, hd header) largeID {
	if hd.flags&flagLarge == 0 || !hd.fits(w.offset()) {
		return 0
	}
	gen := h.ctl.Generation(w.segment())
	at := w.offset() + headerSize + hd.prefix() + uint32(hd.klen)
	if !w.alive(gen) || at+8 > w.offset()+headerSize+hd.size {
		return 0
	}
	id := idOf(h.base.bytes(w.segment(), at, 8))
	order.LoadFence()
	if h.ctl.Generation(w.segment()) != gen {
		return 0
	}
	return id
}

// create stores the pieces of a value for an object that is yet to be
// published.
func (l *larges) create(owner uint16, ref uint64, val []byte) (largeID, error) {
	if len(val) > MaxValue {
		return 0, ErrTooLarge
	}
	v := &large{size: len(val), owner: owner, ref: ref}
	id := largeID(l.next.Add(1))
	for at := 0; at < len(val); {
		pref := uint64(id)<<pieceBits | uint64(len(v.pieces))
		w, n, err := l.h.placePiece(header{owner: l.id, ref: pref & refMask}, val[at:])
		if err != nil {
			l.free(v)
			return 0, err
		}
		at += n
		v.pieces = append(v.pieces, &piece{end: at})
		v.pieces[len(v.pieces)-1].word.Store(uint64(w))
	}
	// Only now can the evacuator move or evict the pieces. A piece whose segment it emptied before that is gone,
	// which the first reader will notice.
	l.mu.Lock()
	l.values[id] = v
	l.mu.Unlock()
	return id, nil
}

// adopt says that the object that names the value has been published.
func (l *larges) adopt(id largeID) {
	if v := l.get(id); v != nil {
		v.whole.Store(true)
	}
}

func (l *larges) get(id largeID) *large {
	if id == 0 {
		return nil
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.values[id]
}

// append appends a value to dst, and reports whether all of it was there.
func (l *larges) append(dst []byte, id largeID) ([]byte, bool) {
	v := l.get(id)
	if v == nil {
		return dst, false
	}
	mark := len(dst)
	dst = slices.Grow(dst, v.size)[:mark+v.size]
	if !l.copy(dst[mark:], v) {
		l.drop(id)
		return dst[:mark], false
	}
	return dst, true
}

// read copies a value into dst, which must be as long as the value.
func (l *larges) read(dst []byte, id largeID) bool {
	v := l.get(id)
	if v == nil || v.size != len(dst) {
		return false
	}
	if !l.copy(dst, v) {
		l.drop(id)
		return false
	}
	return true
}

func (l *larges) copy(dst []byte, v *large) bool {
	h := l.h
	return v.each(func(p *piece, from, to int) bool {
		part := dst[from:to]
		for {
			w := word(p.word.Load())
			if w == 0 {
				return false
			}
			seg := w.segment()
			gen := h.ctl.Generation(seg)
			if w.alive(gen) {
				copy(part, h.base.bytes(seg, w.offset()+headerSize, uint32(len(part))))
				order.LoadFence()
				if h.ctl.Generation(seg) == gen {
					h.touch(w)
					return true
				}
			}
			if word(p.word.Load()) == w {
				return false // revoked
			}
		}
	})
}

// drop releases a value. Dropping the identity 0, or a value twice, is a no-op.
func (l *larges) drop(id largeID) {
	if id == 0 {
		return
	}
	l.mu.Lock()
	v := l.values[id]
	delete(l.values, id)
	l.mu.Unlock()
	if v != nil {
		l.free(v)
	}
}

// free releases the pieces of a value that nobody will find any more.
func (l *larges) free(v *large) {
	v.each(func(p *piece, from, to int) bool {
		for {
			w := word(p.word.Load())
			if w == 0 {
				return true
			}
			l.h.markDead(w)
			if p.word.CompareAndSwap(uint64(w), 0) {
				l.h.release(w, granulesFor(to-from))
				return true
			}
		}
	})
}

// swing is owner.swing. With one piece evicted, the others are of no use.
func (l *larges) swing(ref uint64, from, to word) bool {
	id := largeID(ref >> pieceBits)
	i := ref & (1<<pieceBits - 1)
	v := l.get(id)
	if v == nil || i >= uint64(len(v.pieces)) || !v.pieces[i].word.CompareAndSwap(uint64(from), uint64(to)) {
		return false
	}
	if to == 0 {
		l.drop(id)
	}
	return true
}

// sweep is owner.sweep: values of which a piece or the object that names them
// is gone are released.
func (l *larges) sweep() {
	l.mu.RLock()
	gone := make(map[largeID]*large)
	check := make(map[largeID]*large)
	for id, v := range l.values {
		if !v.whole.Load() {
			continue
		}
		check[id] = v
		for i := range v.pieces {
			if w := word(v.pieces[i].word.Load()); w == 0 || !w.alive(l.h.ctl.Generation(w.segment())) {
				gone[id] = v
				break
			}
		}
	}
	l.mu.RUnlock()
	for id, v := range check {
		if o := l.h.owners.get(v.owner).owner; gone[id] == nil && (o == nil || !o.holdsLarge(v.ref, id)) {
			gone[id] = v
		}
	}
	for id := range gone {
		l.drop(id)
	}
}

func (l *larges) holdsLarge(uint64, largeID) bool { return false }
