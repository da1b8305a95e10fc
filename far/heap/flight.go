package heap

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"polder/far/object"
	"polder/far/record"
	"polder/far/store"
	"polder/internal/buddy"
)

// Want is a far record that somebody wants to read.
type Want struct {
	Owner  Owner
	Number uint64 // what the owner calls the record
	Word   uint64 // the owner's, which refers to it
	Of     any    // what the owner wants to know again in Check and Landed
	Addr   uint64 // where it lies
	N      int    // bytes to read, from its header on
	Size   int    // the most bytes that it can have
	Index  int    // the number of whoever wants it, in a batch
	Use    Use
	Admit  bool // it deserves a place in local memory; under the owner's lock once there is a flight
	Apart  bool // nobody else is to share the flight, and nothing is to become local

	// The rest is for a record that scopes keep in place.
	Kind  Kind   // of the log that it goes to; Locked if it is no such record
	ID    uint16 // number of the owner, for the tail of the object
	Row   bool   // N is its exact size, and it may be read together with its neighbors
	Scope *Scope // that waits for it, and whose memory it uses, or nil
}

// Use is what a record is wanted for. A later value includes the former ones.
type Use uint8

const (
	UseHead  Use = iota // its header and its key, if N is enough for that
	UseBytes            // all of it, which the caller takes from the flight
	UseLook             // all of it: the call tries again, and takes it from the flight then
	UseLocal            // to have it in local memory, whether it deserves that or not
)

// Flight is one read of a far record, shared by all who want the record: they find the flight by the record's address
// until it has landed. A flight that nobody is to share, and whose record is not to become local, is not listed, so
// that it lands without a lock.
//
// A flight pins its segment until the last of its users lets go of it. So as long as the owner's word has the same
// address, the bytes are the record's.
//
// All but the Want is set when the flight has landed, and not changed afterwards.
type Flight struct {
	Want
	Rec   record.Record // what was read, as Check has left it; nil if that is of no use
	Err   error         // why Rec is nil; nil, too, if the owner no longer refers to the record: look again
	Short bool          // N was too little for the key

	// Of a scoped record: the object that it is from now on, and where the object's data lies.
	Object object.Object
	At     uintptr

	seg     *FarSegment
	pin     int     // of seg
	part    bool    // Use was UseHead when it was begun
	listed  bool    // whoever wants the record finds it, until it has landed
	follows bool    // it is read by the same operation as the one before it in the batch
	mine    bool    // Err is due to the leader; the others have to try again
	landing Landing // what Landed has returned last
	block   *block  // where it is read to
	buf     []byte  // the part of block that it is read to
	alone   *alone  // nil if it was made for a batch

	next *Flight       // in its bucket; under the bucket's mutex
	done chan struct{} // closed when it has landed; nil if nobody joined; under the bucket's mutex
	ref  atomic.Int32  // how many have joined it and not let go; one less if its leader has let go
}

// alone is what a flight needs that is not part of a batch.
type alone struct {
	block block
	op    [1]store.ReadOp
}

// block is memory that flights read into, with the number of its users: the flights, and the batch that takes parts
// of it for flights. It is a buffer, or else a slot of the logs, where the records stay.
type block struct {
	buddy.Buffer
	refs atomic.Int32

	slot object.Object
	addr uintptr // of slot's data
	dead int     // bytes of slot that are nobody's

	used  int   // bytes that the batch has given out
	given int32 // how many flights it has given parts to
}

// ErrFlying: somebody else fetches the record.
var ErrFlying = errors.New("it is being fetched")

// ErrMoved: the owner does not refer to the record any more.
var ErrMoved = errors.New("it has moved")

// flights is the listed flights of a heap, by the addresses of their records.
type flights [512]struct {
	mu    sync.Mutex
	first atomic.Pointer[Flight] // changes under mu
}

func (fl *flights) bucket(addr uint64) int { return int(addr * 0x9e3779b97f4a7c15 >> 55) }

// join joins the flight of the record at addr and returns it; nil if there is none. The caller has to let go of it.
func (fl *flights) join(addr uint64, use Use) *Flight {
	b := &fl[fl.bucket(addr)]
	if b.first.Load() == nil {
		return nil // fast path
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.first.Load()
	for f != nil && f.Addr != addr {
		f = f.next
	}
	if f == nil {
		return nil
	}
	f.ref.Add(1)
	f.Use = max(f.Use, use)
	if f.done == nil {
		f.done = make(chan struct{})
	}
	return f
}

// list lists f, and reports false if there is a flight of its record.
func (fl *flights) list(f *Flight) bool {
	b := &fl[fl.bucket(f.Addr)]
	b.mu.Lock()
	defer b.mu.Unlock()
	first := b.first.Load()
	for o := first; o != nil; o = o.next {
		if o.Addr == f.Addr {
			return false
		}
	}
	f.next = first
	b.first.Store(f)
	return true
}

func (fl *flights) unlist(f *Flight) {
	b := &fl[fl.bucket(f.Addr)]
	b.mu.Lock()
	defer b.mu.Unlock()
	if o := b.first.Load(); o == f {
		b.first.Store(f.next)
	} else {
		for ; o.next != f; o = o.next {
		}
		o.next = f.next
	}
	f.next = nil
}

// listed reports whether any flight is listed.
func (fl *flights) listed() bool {
	for i := range fl {
		if fl[i].first.Load() != nil {
			return true
		}
	}
	return false
}

// Join returns the flight of the record at addr, which the caller has joined and has to let go of, or nil.
func (h *Heap) Join(addr uint64, use Use) *Flight { return h.flights.join(addr, use) }

// Board begins the flight of w, as a part of b. If b is nil, the caller leads the flight, and lets go of it. If there
// is no buffer for the flight, Board returns the channel to wait for, and the caller must let go of all its flights
// before it waits. Board fails with ErrFlying or ErrMoved if the caller has to look at the record again, with a
// LostError, or with ErrNoRoom.
func (h *Heap) Board(b *Batch, w *Want) (f *Flight, busy <-chan struct{}, err error) {
	f = h.newFlight(b)
	f.Want = *w
	if err = h.begin(f); err != nil {
		return nil, nil, err
	}
	if w.Kind.scoped() && w.N >= fetchInPlace {
		c := new(block)
		if f.alone != nil {
			c = &f.alone.block
		}
		one := [1]*Flight{f}
		_, err = h.seatRow(c, one[:])
	} else {
		busy = h.seat(b, f)
	}
	if err != nil || busy != nil {
		h.end(f)
		h.LetGo(f)
		return nil, busy, err
	}
	if b != nil {
		b.lead(f)
	}
	return f, nil, nil
}

// newFlight returns an unused flight, one of b's unless b is nil.
func (h *Heap) newFlight(b *Batch) *Flight {
	if b != nil {
		if k := len(b.spare) - 1; k >= 0 {
			f := b.spare[k]
			b.spare = b.spare[:k]
			return f
		}
		return new(Flight)
	}
	f, _ := h.unused.Get().(*Flight)
	if f == nil {
		f = &Flight{alone: new(alone)}
	}
	return f
}

// begin pins the segment of f and lists f.
func (h *Heap) begin(f *Flight) (err error) {
	f.seg, f.part = h.Far.Seg(f.Addr), f.Use == UseHead
	if f.seg == nil {
		return ErrMoved
	}
	f.pin = f.seg.Pin()
	switch {
	// No lock keeps the word of a scoped record as it is. The cleaner changes words first and looks for pins
	// afterwards, so the word is looked at once more, with the segment pinned.
	case f.Kind.scoped() && (!f.Owner.Refers(&f.Want) || h.Far.Seg(f.Addr) != f.seg):
		err = ErrMoved
	case f.Kind.scoped() && f.seg.Gone():
		err = &LostError{Segment: f.seg.Seg.Name()}
	case !f.Apart && !h.flights.list(f):
		err = ErrFlying
	default:
		f.listed = !f.Apart
		return nil
	}
	f.seg.Unpin(f.pin)
	return err
}

// seat gives f a buffer, or else returns the channel to wait for.
func (h *Heap) seat(b *Batch, f *Flight) (busy <-chan struct{}) {
	if b != nil {
		return b.seat(f)
	}
	c := &f.alone.block
	if c.Buffer, busy = h.Bufs.Get(f.N); busy != nil {
		return busy
	}
	c.refs.Store(1)
	f.block, f.buf = c, c.B
	return nil
}

// endUses ends n uses of c.
func (h *Heap) endUses(c *block, n int32) {
	if c == nil || c.refs.Add(-n) > 0 {
		return
	}
	if c.slot != nil {
		h.Logs.SegmentOf(c.addr).Live.Add(-int64(c.dead))
		c.slot = nil
	}
	h.Bufs.Put(c.Buffer)
	c.Buffer = buddy.Buffer{}
}

// end unlists f, and wakes those who wait for it.
func (h *Heap) end(f *Flight) {
	if f.listed {
		h.flights.unlist(f)
	}
	if f.done != nil {
		close(f.done)
	}
}

// LetGo lets go of f.
func (h *Heap) LetGo(f *Flight) {
	if h.released(f) && f.alone != nil {
		h.unused.Put(f)
	}
}

// released lets go of f, and reports whether nobody has f any more: then f is to be used again.
func (h *Heap) released(f *Flight) bool {
	if f.done != nil && f.ref.Add(-1) >= 0 {
		return false
	}
	h.endUses(f.block, 1)
	f.seg.Unpin(f.pin)
	if f.done != nil {
		f.done = nil
		f.ref.Store(0)
	}
	f.Want, f.Rec, f.Err, f.Short, f.Object, f.At = Want{}, nil, nil, false, nil, 0
	f.seg, f.block, f.buf = nil, nil, nil
	f.listed, f.follows, f.mine, f.landing = false, false, false, Elsewhere
	if f.alone != nil {
		f.alone.op[0] = store.ReadOp{}
	}
	return true
}

// Fly makes the flight f, which the caller began alone, and returns when it has landed.
func (h *Heap) Fly(ctx context.Context, f *Flight) {
	f.alone.op[0] = f.op(h)
	h.Far.Store.Read(ctx, f.alone.op[:])
	one := [1]*Flight{f}
	h.landed(ctx, one[:], f.alone.op[:])
}

// Wait returns when f, which the caller has joined, has landed, or with the cause of ctx's end.
func (f *Flight) Wait(ctx context.Context) error {
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// op is the operation that reads f, and, if f is the first of a row, those that follow it.
func (f *Flight) op(h *Heap) store.ReadOp {
	buf := f.buf
	if f.block.slot != nil {
		buf = f.block.slot[object.Header:]
	}
	return store.ReadOp{Seg: f.seg.Seg, Off: h.Far.Offset(f.Addr), Buf: buf}
}

// landed ends the flights fs, which were read by ops.
func (h *Heap) landed(ctx context.Context, fs []*Flight, ops []store.ReadOp) {
	bytes, op := 0, len(ops)-1
	// From the last on: an object that is laid out reaches into the record behind it.
	for i := len(fs) - 1; i >= 0; i-- {
		f := fs[i]
		if err := ops[op].Err; err != nil {
			h.failed(ctx, f, err)
		} else if h.inspect(f); !f.follows {
			bytes += len(ops[op].Buf)
		}
		if f.block.slot != nil {
			f.layOut()
		}
		if !f.follows {
			op--
		}
	}
	h.Count.Fetches.Add(uint64(len(fs)))
	h.Count.BytesIn.Add(uint64(bytes))
	n := 0
	defer func() {
		for _, f := range fs[n:] { // only if an owner panics, in a function of the program's
			h.dropOwn(f)
			f.Rec = nil
			h.end(f)
		}
	}()
	for ; n < len(fs); n++ {
		h.land(fs[n])
		h.end(fs[n])
	}
}

// failed takes note of the error of f's read.
func (h *Heap) failed(ctx context.Context, f *Flight, err error) {
	switch {
	case f.seg.Gone():
		h.WakeJanitor() // to account for what went with it
		f.Err = &LostError{Segment: f.seg.Seg.Name()}
	case f.Owner.Refers(&f.Want):
		f.mine = ctx.Err() != nil
		f.Err = fmt.Errorf("cannot fetch %d bytes from %s: %w", len(f.buf), f.seg.Seg.Name(), err)
	}
}

// decode returns the record that f has brought, or an error if it is not the one that was wanted. It sets Short if
// less was read than the record's key takes.
func (f *Flight) decode(h *Heap) (e record.Record, err error) {
	if f.part {
		e, err = f.seg.DecodeHead(f.buf, h.Far.Offset(f.Addr))
	} else {
		e, err = f.seg.Decode(f.buf, h.Far.Offset(f.Addr))
	}
	f.Short = err == record.ErrShort && f.part && f.N < f.Size
	if err == nil {
		err = f.Owner.Check(e, &f.Want)
	}
	return e, err
}

// rereadFlight is Reread of what f has brought, in which decode has found err. It is not a part of inspect because
// its closure is garbage, which most calls of inspect need not make.
func (h *Heap) rereadFlight(f *Flight, err error) (e record.Record, _ error) {
	if f.block.slot == nil {
		f.buf = make([]byte, len(f.buf)) // the next record, which has been checked, may begin in the old one
	}
	// The owner may change bytes that it has found good, so those are not decoded a second time.
	h.Reread(f.seg.Seg, h.Far.Offset(f.Addr), f.buf, func() bool { e, err = f.decode(h); return err == nil || f.Short })
	return e, err
}

// inspect checks the bytes that f has brought. They may be anything.
func (h *Heap) inspect(f *Flight) {
	e, err := f.decode(h)
	if err != nil && !f.Short && f.Owner.Refers(&f.Want) && !f.seg.Gone() {
		e, err = h.rereadFlight(f, err)
	}
	if f.Short {
		return
	}
	switch {
	case err == nil:
		f.Rec = e
	case f.Owner.Refers(&f.Want):
		f.Err = &CorruptError{Segment: f.seg.Seg.Name(), Off: h.Far.Offset(f.Addr), Err: err}
	}
	if f.seg.Gone() {
		h.WakeJanitor()
	}
}

// Reread is store.Reread of bytes of seg that were not good.
func (h *Heap) Reread(seg store.Segment, off int, buf []byte, good func() bool) bool {
	h.Count.Corrupt.Add(1)
	ctx, cancel := context.WithTimeout(h.Ctx, StoreTimeout)
	defer cancel()
	return store.Reread(ctx, h.Far.Store, store.ReadOp{Seg: seg, Off: off, Buf: buf}, good)
}

// land has the owner refer to what f has brought, if that is to be local: a scoped record always, a locked one if it
// deserves that.
func (h *Heap) land(f *Flight) {
	if f.Rec == nil || !f.listed {
		return
	}
	if f.Kind.scoped() && f.Object == nil {
		n := f.Rec.Len()
		o, addr, err := h.NewSlot(f.Scope, f.Kind, object.Head(f.Number, n), object.NewTail(f.Addr, f.ID), n)
		if err != nil {
			f.Rec, f.Err, f.mine = nil, err, true
			return
		}
		clear(o[object.Header+copy(o[object.Header:], f.Rec.Value()):])
		f.Object, f.At = o[:object.Header+n], addr
		h.endUses(f.block, 1)
		f.block = nil
	}
	f.landing = f.Owner.Landed(f)
	switch {
	case f.landing == Elsewhere:
		h.dropOwn(f)
		f.Rec = nil
	case f.Object != nil && f.block != nil:
		f.block.dead -= object.Size(len(f.Object) - object.Header)
	}
}

// dropOwn accounts for the slot that only f uses, if f has one, when nobody refers to the object in it.
func (h *Heap) dropOwn(f *Flight) {
	if f.Object != nil && f.block == nil {
		h.DropSlot(f.At, len(f.Object)-object.Header)
	}
}

// insist waits for room for records of fs that are to be local and for which there was none. It waits no longer than
// HoldFor, since the buffers are held meanwhile.
func (h *Heap) insist(ctx context.Context, fs []*Flight) {
	var limited context.Context
	for _, f := range fs {
		if f.Rec == nil || f.landing != StaysFar {
			continue
		}
		if limited == nil {
			var cancel context.CancelFunc
			limited, cancel = context.WithTimeout(ctx, HoldFor)
			defer cancel()
		}
		for f.Owner.Landed(f) == StaysFar && h.Logs.Why() == nil && h.WaitRoom(limited) == nil {
		}
	}
}

// Whole reports whether f reads all of the record.
func (f *Flight) Whole() bool { return !f.part }

// Segment is the far segment of f, which is pinned.
func (f *Flight) Segment() *FarSegment { return f.seg }

// Local reports whether the record has become local.
func (f *Flight) Local() bool { return f.landing == Kept }

// Corrupt reports whether the store answered with other bytes.
func (f *Flight) Corrupt() bool {
	_, ok := f.Err.(*CorruptError)
	return ok
}

// Told is the error that whoever looks at the record again gets in any case: that the record is lost or corrupt. It
// is nil if f has brought the record, or has another error.
func (f *Flight) Told() error {
	if _, lost := f.Err.(*LostError); lost || f.Corrupt() {
		return f.Err
	}
	return nil
}

// Failure is the error of the store that all who have joined f have to report; nil if there is none.
func (f *Flight) Failure() error {
	if f.mine || f.Told() != nil {
		return nil
	}
	return f.Err
}
