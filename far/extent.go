package far

import (
	"errors"
	"fmt"
	"sync/atomic"

	"polder/far/heap"
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
	c     *class           // that they were of when the fetch began
	each  int              // bytes of an entry
	seg   *heap.FarSegment // pinned
	slot  heap.Object
	addr  uintptr // of slot's data
	kind  heap.Kind
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
	each = heap.FarObjectSize(c.size)
	if c.size < extentLeast || w.farSize() < each { // which is of a class of before
		return 0, c, each
	}
	seg, next := w.farAddr()/h.core.Far.Units, w.farAddr()
	for n = 1; n < len(items); n++ {
		next += uint64(each / heap.Unit)
		if o := items[n].w; o.farAddr() != next || o.farClass() != c.id || next/h.core.Far.Units != seg {
			break
		}
	}
	return n, c, each
}

// boardExtent begins the fetch of the extent of items, of which it takes as many as
// the log has room for, at least one. It fails as boardObject does.
func (h *Heap) boardExtent(x *extent, items []item, c *class, each int, k heap.Kind) (err error) {
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
	case x.seg.Gone():
		err = &heap.LostError{Segment: x.seg.Seg.Name()}
	default:
		x.slot, x.addr, err = h.extentSlot(k, len(items), each)
	}
	if err != nil {
		h.unpinFar(x.seg)
		return err
	}
	x.items, x.c, x.each, x.kind = items[:(len(x.slot)-heap.ObjectHeader)/each], c, each, k
	return nil
}

// extentSlot makes room for n entries of each bytes, or as many of them as the
// open segment has room for, unless that is not even one.
func (h *Heap) extentSlot(k heap.Kind, n, each int) (heap.Object, uintptr, error) {
	ol := h.buffer(k)
	ol.Mu.Lock()
	defer ol.Mu.Unlock()
	room := 0
	if ol.Seg >= 0 {
		room = (h.core.Logs.SegSize - h.core.Logs.Segs[ol.Seg].Used - heap.ObjectHeader) / each
	}
	if room < 1 {
		room = (h.core.Logs.SegSize - heap.ObjectHeader) / each
	}
	n = min(n, room)
	return h.slot(ol, heap.ForMutator, heap.ObjectHead(0, n*each), 0, n*each)
}

// target is the bytes that the read is to fill.
func (x *extent) target() []byte { return x.slot[heap.ObjectHeader:] }

// landExtent ends the fetch of x, whose read ended with err: checks the bytes and
// makes the objects local, of which somebody may wait for that of the word asked.
// What goes wrong with one of them only, those who dereference it are told.
func (h *Heap) landExtent(x *extent, asked uint64, err error) error {
	defer h.unpinFar(x.seg)
	n := len(x.items)
	h.core.Count.Fetches.Add(uint64(n))
	if err != nil {
		h.dropSlot(x.addr, heap.HeadLen(x.slot.Head()))
		if x.seg.Gone() {
			h.core.WakeJanitor()
			return nil
		}
		return fmt.Errorf("cannot fetch %d bytes from %s: %w", n*x.each, x.seg.Seg.Name(), err)
	}
	h.core.Count.BytesIn.Add(uint64(n * x.each))
	c := x.c
	size := heap.ObjectSize(c.size)
	spare := heap.HeaderSize // bytes of the slot that are nobody's
	// From the last on, since what is laid out behind one object may reach into the
	// entry of the next.
	for i := n - 1; i >= 0; i-- {
		it := &x.items[i]
		b := x.slot[heap.ObjectHeader+i*x.each:][:x.each]
		number := h.words.number(it.p)
		if _, now, err := h.inspectObject(b, number, it.w); err != nil || now != c {
			if loadWord(it.p) == it.w {
				h.core.Count.Corrupt.Add(1)
			}
			it.p, number = nil, 0
			spare += size
		}
		// What follows belongs to it, up to the next one's header.
		area := x.slot[heap.HeaderSize+i*x.each:]
		if i < n-1 {
			area = area[:x.each]
		}
		spare += layOut(area, heap.ObjectHead(number, c.size), heap.NewTail(it.w.farAddr(), c.id))
	}
	x.slot.SetHead(heap.ObjectHead(0, heap.HeaderSize-heap.ObjectHeader))
	coldness := c.cfg.HotBits
	if x.kind == heap.Streamed {
		coldness = coldest
	}
	landed, met, looked := 0, false, 0
	defer func() {
		for _, it := range x.items[looked:] { // Fetched panics
			if it.p != nil {
				spare += size
			}
		}
		h.core.Logs.SegmentOf(x.addr).Live.Add(-int64(spare))
		c.bytesIn.Add(uint64(landed * c.size))
		c.brought(landed, met)
	}()
	for i := range x.items {
		it := &x.items[i]
		if it.p == nil {
			looked++
			continue
		}
		at := heap.HeaderSize + i*x.each + heap.ObjectHeader
		if c.cfg.Fetched != nil {
			c.cfg.Fetched(x.slot[at : at+c.size : at+c.size])
		}
		looked++
		if casWord(it.p, it.w, localWord(x.addr+uintptr(at-heap.ObjectHeader), coldness)) {
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
func layOut(area heap.Object, head, tail uint64) (rest int) {
	n := heap.HeadLen(head)
	size := heap.ObjectSize(n)
	clear(area[heap.ObjectHeader+n : size])
	if rest = len(area) - size; rest > 0 {
		atomic.StoreUint64(area[size:].Tail(), 0)
		area[size:].SetHead(heap.ObjectHead(0, rest-heap.ObjectHeader))
	}
	atomic.StoreUint64(area.Tail(), tail)
	area.SetHead(head)
	return rest
}

// isTheirs reports whether err concerns those who dereference the object, who will
// come upon it, and nobody else.
func isTheirs(err error) bool {
	var lost *heap.LostError
	var corrupt *heap.CorruptError
	return err == errAgain || err == heap.ErrNoRoom || errors.As(err, &lost) || errors.As(err, &corrupt)
}
