package heap

import (
	"sync/atomic"

	"polder/far/object"
	"polder/far/record"
	"polder/internal/processor"
)

// NewSlot makes room for an object of n bytes in a log of kind k and writes its header. If it fails with ErrNoRoom, a
// caller without a scope (s is nil) may wait for room; a caller in a scope must leave the scope before it waits.
func (h *Heap) NewSlot(s *Scope, k Kind, head, tail uint64, n int) (object.Object, uintptr, error) {
	c := h.Claim(s, object.Size(n))
	if k == Streamed && c == ForScope {
		// The reserve for scopes is enough for the Scoped logs only, see edges.
		if o, addr, err := h.slotIn(k, ForMutator, head, tail, n); err == nil {
			return o, addr, nil
		}
		k = Scoped
	}
	return h.slotIn(k, c, head, tail, n)
}

func (h *Heap) slotIn(k Kind, c Claim, head, tail uint64, n int) (object.Object, uintptr, error) {
	ol := h.Logs.Buffer(k)
	ol.Mu.Lock()
	defer ol.Mu.Unlock()
	return h.Logs.Slot(ol, c, head, tail, n)
}

// Buffer is the allocation buffer of this processor (the paper's PCAB).
func (l *Logs) Buffer(k Kind) *OpenLog {
	ols := l.Objects
	if k == Streamed {
		ols = l.Streams
	}
	return &ols[processor.Number()&(len(ols)-1)]
}

// Slot is NewSlot in ol, whose mutex must be held.
func (l *Logs) Slot(ol *OpenLog, c Claim, head, tail uint64, n int) (object.Object, uintptr, error) {
	b, at, ok := l.Place(ol, object.Size(n), c)
	if !ok {
		return nil, 0, ErrNoRoom
	}
	o := object.Object(b)
	atomic.StoreUint64(o.Tail(), tail)
	o.SetHead(head)
	return o, l.DataOf(at), nil
}

// DropSlot accounts for a slot of n bytes of data that nothing refers to.
func (h *Heap) DropSlot(addr uintptr, n int) {
	h.Logs.SegmentOf(addr).Live.Add(-int64(object.Size(n)))
}

// fetchInPlace is the size in bytes from which on far objects are read directly to where they are to stay, rather
// than into a buffer. Objects that lie side by side in far memory, as they do when they were evacuated one after
// another, form a row: it is read in one piece, and its objects may be smaller.
//
// They are read into a slot of the logs, which is a single object that is nobody's as long as the read is under way.
// Then
//
//	  0  header of the slot
//	 16  first record: header of 32 bytes, data, padding
//	...  second record
//
// becomes
//
//	  0  an object of 16 bytes that is nobody's
//	 32  header of the first object
//	 48  its data
//	...  an object that is nobody's, where the first half of the second record's header was
//	...  header of the second object
//
// so that nothing is copied. This costs 16 bytes of local memory for every object, and 16 more for the whole row. The
// evacuator wins them back when it keeps an object, since it moves the object without them.
const fetchInPlace = 4 << 10

// seatRow makes c a slot of the logs, into which the flights fs are to be read. Their records have the same size and
// lie side by side. The slot is for as many of them, from the first on, as the open segment has room for; seatRow
// returns how many.
func (h *Heap) seatRow(c *block, fs []*Flight) (n int, err error) {
	w := &fs[0].Want
	if c.slot, c.addr, err = h.rowSlot(w.Scope, w.Kind, len(fs), w.N); err != nil {
		return 0, err
	}
	c.dead = len(c.slot)
	n = (len(c.slot) - object.Header) / w.N
	c.refs.Store(int32(n))
	for i, f := range fs[:n] {
		begin, end := object.Header+i*w.N, object.Header+(i+1)*w.N
		f.block, f.follows = c, i > 0
		f.buf = c.slot[begin:end:min(end+object.Header, len(c.slot))]
		f.At = c.addr + uintptr(begin+object.Header)
	}
	return n, nil
}

// rowSlot makes a slot for n records of each bytes, or for as many of them as the open segment has room for. If it
// has no room for even one, the slot is in another segment.
func (h *Heap) rowSlot(s *Scope, k Kind, n, each int) (object.Object, uintptr, error) {
	if n == 1 {
		return h.NewSlot(s, k, object.Head(0, each), 0, each)
	}
	l := &h.Logs
	ol := l.Buffer(k)
	ol.Mu.Lock()
	defer ol.Mu.Unlock()
	n = min(n, l.rowRoomIn(ol, each))
	return l.Slot(ol, ForMutator, object.Head(0, n*each), 0, n*each)
}

// rowRoom is how many records of each bytes fit into the next slot in ol, at least one.
func (l *Logs) rowRoom(ol *OpenLog, each int) int {
	ol.Mu.Lock()
	defer ol.Mu.Unlock()
	return l.rowRoomIn(ol, each)
}

// rowRoomIn is rowRoom with the mutex of ol held.
func (l *Logs) rowRoomIn(ol *OpenLog, each int) int {
	if ol.Seg >= 0 {
		if n := (l.SegSize - l.Segs[ol.Seg].Used - object.Header) / each; n > 0 {
			return n
		}
	}
	return (l.SegSize - object.Header) / each
}

// layOut turns the record that f has read in place into an object, and what is left of the record's area into an
// object that is nobody's; all of the area if f.Rec is nil. In front of the area the object before it ends. The
// flights behind f in its row have been laid out already.
func (f *Flight) layOut() {
	area := object.Object(f.buf[object.Header:cap(f.buf)])
	head, tail := object.Head(0, len(area)-object.Header), uint64(0)
	if f.Rec != nil {
		n := f.Rec.Len()
		head, tail = object.Head(f.Number, n), object.NewTail(f.Addr, f.ID)
		clear(area[object.Header+n : object.Size(n)])
		f.Object = area[:object.Header+n]
	}
	size := object.Size(object.HeadLen(head))
	if rest := len(area) - size; rest > 0 {
		atomic.StoreUint64(area[size:].Tail(), 0)
		area[size:].SetHead(object.Head(0, rest-object.Header))
	}
	atomic.StoreUint64(area.Tail(), tail)
	area.SetHead(head)
	if !f.follows { // f is the first of its row, and the last to be laid out: others may walk over the row now
		f.block.slot.SetHead(object.Head(0, record.HeaderSize-object.Header))
	}
}
