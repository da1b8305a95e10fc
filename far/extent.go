package far

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// An extent is far objects of one size that lie side by side in a far segment,
// as those do that were evacuated one after another. They are read at once,
// and to where they stay: into a slot of the logs that is one object, nobody's, as
// long as the read is under way. Then
//
//	  0  header of the slot
//	 16  first entry: header of 32 bytes, data, checksum, padding
//	...  second entry
//
// becomes
//
//	  0  an object of 16 bytes that is nobody's
//	 32  header of the first object
//	 48  its data
//	...  an object that is nobody's, where the rest of the first entry and the
//	     first half of the second one's header were
//	...  header of the second object
//
// so that nothing is copied. It costs 32 bytes of local memory for every object,
// which the evacuator wins back when it keeps one.
type extent struct {
	items []item
	c     *class      // that they were of when the fetch began
	each  int         // bytes of an entry
	seg   *farSegment // pinned
	slot  object
	addr  uintptr // of slot's data
	kind  kind
}

// item is a far object that is to be fetched.
type item struct {
	p *uint64
	w pword
}

// extentLeast is the size in bytes from which on far objects are worth it. Other
// objects than these are read into a buffer and copied.
const extentLeast = 1 << 10

// extentOf returns how many of the objects of items, from the first on, lie side
// by side, their class, and the bytes of each one's far entry. There are none if the
// first is not for an extent.
func (h *Heap) extentOf(items []item) (n int, c *class, each int) {
	w := items[0].w
	c = h.class(w.farClass())
	each = farObjectSize(c.size)
	if c.size < extentLeast || w.farSize() < each { // which is of a class of before
		return 0, c, each
	}
	seg, next := w.farAddr()/h.far.units, w.farAddr()
	for n = 1; n < len(items); n++ {
		next += uint64(each / unit)
		if o := items[n].w; o.farAddr() != next || o.farClass() != c.id || next/h.far.units != seg {
			break
		}
	}
	return n, c, each
}

// boardExtent begins the fetch of the extent of items, of which it takes as many as
// the log has room for, at least one. It fails as boardObject does.
func (h *Heap) boardExtent(x *extent, items []item, c *class, each int, k kind) (err error) {
	if x.seg = h.pinFar(items[0].p, items[0].w); x.seg == nil {
		return errAgain
	}
	// The others' bytes stay as long as the segment does, if they are still
	// theirs now.
	for i, it := range items {
		if loadWord(it.p) != it.w {
			items = items[:i]
			break
		}
	}
	switch {
	case len(items) == 0:
		err = errAgain
	case x.seg.gone():
		err = &LostError{x.seg.seg.Name()}
	default:
		x.slot, x.addr, err = h.extentSlot(k, len(items), each)
	}
	if err != nil {
		h.unpinFar(x.seg)
		return err
	}
	x.items, x.c, x.each, x.kind = items[:(len(x.slot)-objectHeader)/each], c, each, k
	return nil
}

// extentSlot makes room for n entries of each bytes, or as many of them as the
// open segment has room for, unless that is not even one.
func (h *Heap) extentSlot(k kind, n, each int) (object, uintptr, error) {
	ol := h.buffer(k)
	ol.mu.Lock()
	defer ol.mu.Unlock()
	room := 0
	if ol.seg >= 0 {
		room = (h.logs.segSize - h.logs.segs[ol.seg].used - objectHeader) / each
	}
	if room < 1 {
		room = (h.logs.segSize - objectHeader) / each
	}
	n = min(n, room)
	return h.slot(ol, forMutator, objectHead(0, n*each), 0, n*each)
}

// target is the bytes that the read is to fill.
func (x *extent) target() []byte { return x.slot[objectHeader:] }

// landExtent ends the fetch of x, whose read ended with err: checks the bytes and
// makes the objects local, of which somebody may wait for that of the word asked.
// What goes wrong with one of them only, those who dereference it are told.
func (h *Heap) landExtent(x *extent, asked uint64, err error) error {
	defer h.unpinFar(x.seg)
	n := len(x.items)
	h.count.fetches.Add(uint64(n))
	if err != nil {
		h.dropSlot(x.addr, headLen(x.slot.head()))
		if x.seg.gone() {
			h.wakeJanitor()
			return nil
		}
		return fmt.Errorf("cannot fetch %d bytes from %s: %w", n*x.each, x.seg.seg.Name(), err)
	}
	h.count.bytesIn.Add(uint64(n * x.each))
	c := x.c
	size := objectSize(c.size)
	spare := headerSize // bytes of the slot that are nobody's
	// From the last on, since what is laid out behind one object may reach into the
	// entry of the next.
	for i := n - 1; i >= 0; i-- {
		it := &x.items[i]
		b := x.slot[objectHeader+i*x.each:][:x.each]
		number := h.words.number(it.p)
		if _, now, err := h.inspectObject(b, number, it.w); err != nil || now != c {
			if loadWord(it.p) == it.w {
				h.count.corrupt.Add(1)
			}
			it.p, number = nil, 0
			spare += size
		}
		// What follows belongs to it, up to the next one's header.
		area := x.slot[headerSize+i*x.each:]
		if i < n-1 {
			area = area[:x.each]
		}
		spare += layOut(area, objectHead(number, c.size), newTail(it.w.farAddr(), c.id))
	}
	x.slot.setHead(objectHead(0, headerSize-objectHeader))
	coldness := c.cfg.HotBits
	if x.kind == streams {
		coldness = coldest
	}
	landed, met, looked := 0, false, 0
	defer func() {
		for _, it := range x.items[looked:] { // Fetched panics
			if it.p != nil {
				spare += size
			}
		}
		h.logs.segmentOf(x.addr).live.Add(-int64(spare))
		c.bytesIn.Add(uint64(landed * c.size))
		c.brought(landed, met)
	}()
	for i := range x.items {
		it := &x.items[i]
		if it.p == nil {
			looked++
			continue
		}
		at := headerSize + i*x.each + objectHeader
		if c.cfg.Fetched != nil {
			c.cfg.Fetched(x.slot[at : at+c.size : at+c.size])
		}
		looked++
		if casWord(it.p, it.w, localWord(x.addr+uintptr(at-objectHeader), coldness)) {
			landed++
			met = met || h.words.number(it.p) == asked
		} else {
			spare += size
		}
	}
	return nil
}

// layOut makes an object with that head and tail at the front of area, in which
// its data lies already, and of the rest one that is nobody's. It returns how
// large that is.
func layOut(area object, head, tail uint64) (rest int) {
	n := headLen(head)
	size := objectSize(n)
	clear(area[objectHeader+n : size])
	if rest = len(area) - size; rest > 0 {
		atomic.StoreUint64(area[size:].tail(), 0)
		area[size:].setHead(objectHead(0, rest-objectHeader))
	}
	atomic.StoreUint64(area.tail(), tail)
	area.setHead(head)
	return rest
}

// isTheirs reports whether err concerns those who dereference the object, who will
// come upon it, and nobody else.
func isTheirs(err error) bool {
	var lost *LostError
	var corrupt *CorruptError
	return err == errAgain || err == errNoRoom || errors.As(err, &lost) || errors.As(err, &corrupt)
}
