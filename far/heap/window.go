package heap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"polder/far/object"
	"polder/far/record"
	"polder/far/store"
	"polder/internal/arena"
	"polder/internal/failpoint"
	"polder/internal/sizeclass"
)

// Records that become far are put into staging buffers, one record behind the other. When a buffer is full, it is
// written by a goroutine of its own, and the evacuator goes on with the next buffer. When a write has ended, the
// evacuator tells the owners of the records. All the buffers together are the window: they bound how much may be in
// flight. There are few of them as long as writes are fast. If writes take longer than slowWrite, the window grows,
// up to an eighth of the budget, so that the bandwidth of a store which is far away limits the writing, and not its
// latency.
//
// A buffer is written to one far segment, and holds what lies there in a row. The writes of a segment are settled in
// order, and once one of them has failed, none of the later ones counts. So what counts in a segment is its
// beginning, which the cleaner can walk over.

const (
	// narrow is how many buffers there are in any case: one is filled while the other is written.
	narrow = 2
	// widest is the most buffers that there are.
	widest = 64
	// slowWrite is how long a write has to take, at least, for the window to grow.
	slowWrite = time.Millisecond
	// windowShare is the part of the budget that may be in flight.
	windowShare = 1.0 / 8
	// idleWindow is how long a wide window stays when nothing is written.
	idleWindow = time.Second
)

// staging is a buffer, and what is in it.
type staging struct {
	mem     []byte
	pin     int         // of seg, while it is being written
	used    int         // bytes of mem, with the segment's header if the segment begins with this buffer
	seg     *FarSegment // the segment to write it to, if something is in it
	off     int         // and the offset to write it at
	sources []source    // of the records in it, in order
	part    int         // the number of mem among the parts of the window's memory; immutable

	number uint64 // of the write
	landed bool   // the write has ended
	err    error  // how the write has ended
	took   time.Duration
}

// source is where a record in a staging buffer was before: at a local address that it was
// evacuated from, or, with fromFar set, at a far one from which it is moved.
type source uint64

const (
	fromFar    source = 1 << 63
	staysLocal source = 1 << 62 // it is written back: the local one stays
)

// window is the staging buffers. It is the evacuator's.
type window struct {
	mapping *arena.Mapping
	mem     []byte // of all the buffers that there may be
	size    int    // of a buffer
	unused  []int  // the parts of mem, by number, that are no buffers

	may     int        // how many buffers there may be, for which the budget pays
	made    int        // how many there are
	free    []*staging // those in which nothing is
	filling *staging   // the one that is being filled, or nil
	flying  []*staging // those that are being written, in order
	landing chan *staging

	sent    uint64        // number of the last write
	suspect uint64        // writes up to this one were sent before one of them was known to have failed
	failed  error         // the error of the last write that failed
	fails   int           // how many writes have failed
	unmoved int           // records that the cleaner has copied for nothing
	pace    time.Duration // how long a write takes, smoothed
	last    time.Time     // when the last write was sent
	leaving int64         // bytes of local records that are in the buffers
}

// stagingCost is how many bytes of the budget a staging buffer of n bytes takes, with its sources: each record, of at
// least 48 bytes, has one of 8 bytes.
func stagingCost(n int) int64 { return int64(n + n/6) }

// windowFor is how many staging buffers a budget is good for: those in flight, and one that is being filled meanwhile.
func windowFor(budget int64, size int) int {
	return min(max(int(float64(budget)*windowShare)/size+1, narrow), widest)
}

func (w *window) init(size int, most int64) error {
	n := windowFor(most, size)
	m, err := arena.Anonymous(n*size, false)
	if err != nil {
		return err
	}
	w.mapping, w.mem, w.size = m, m.Bytes(), size
	w.landing = make(chan *staging, n)
	for i := n - 1; i >= 0; i-- {
		w.unused = append(w.unused, i)
	}
	w.may = narrow
	for range narrow {
		w.free = append(w.free, w.make())
	}
	return nil
}

// make makes another buffer.
func (w *window) make() *staging {
	i := w.unused[len(w.unused)-1]
	w.unused = w.unused[:len(w.unused)-1]
	w.made++
	return &staging{mem: w.mem[i*w.size : (i+1)*w.size : (i+1)*w.size], part: i}
}

// Staging is the memory of all the buffers that there may be.
func (w *window) Staging() []byte { return w.mem }

// busy reports whether something is being written, or about to be.
func (w *window) busy() bool {
	return len(w.flying) > 0 || w.filling != nil && len(w.filling.sources) > 0
}

// fits reports whether a record of n bytes can be put into the buffer that is being filled.
func (f *farLog) fits(n int) bool {
	b := f.filling
	return f.open != nil && b != nil && (b.used == 0 || b.seg == f.open) && b.used+n <= len(b.mem) && f.open.End+n <= f.SegSize
}

// reserve returns room for a record of n bytes, which comes from from, and the far address that the record will have.
// The record counts as live from now on. fits must have reported true.
func (f *farLog) reserve(n int, from source) ([]byte, uint64) {
	b, s := f.filling, f.open
	if b.used == 0 {
		b.seg, b.off = s, s.End
	}
	addr := s.Address(s.End)
	room := b.mem[b.used : b.used+n : b.used+n]
	b.used += n
	b.sources = append(b.sources, from)
	s.End += n
	s.Append(sizeclass.Round(n))
	return room, addr
}

// records calls fn for every record in b, with where it was before and the address where it is to be.
func (b *staging) records(fn func(r record.Record, from source, addr uint64)) {
	at := 0
	if b.off == 0 {
		at = record.SegmentSize
	}
	for _, from := range b.sources {
		r := record.Record(b.mem[at:])
		fn(r, from, b.seg.Address(b.off+at))
		at += r.Size()
	}
}

// makeFit makes room for n bytes, so that fits reports true, and reports whether it has: the store may have no room.
// It may wait for a buffer.
func (h *Heap) makeFit(n int) bool {
	for !h.Far.fits(n) {
		h.submit()
		if !h.FarReady(n) {
			return false
		}
		h.refill()
	}
	return true
}

// refill sees to it that there is a buffer to fill. If it can get none, it waits until a write has ended. Each write
// ends: the store has StoreTimeout for it.
func (h *Heap) refill() {
	f := &h.Far
	for f.filling == nil {
		if n := len(f.free); n > 0 {
			f.filling, f.free = f.free[n-1], f.free[:n-1]
			return
		}
		h.widen()
		if f.made < f.may && h.Logs.fits() {
			f.filling = f.make()
			return
		}
		h.arrived(<-f.landing)
	}
}

// submit writes what is in the buffer that is being filled.
func (h *Heap) submit() {
	f := &h.Far
	b := f.filling
	if b == nil || len(b.sources) == 0 {
		return
	}
	f.filling = nil
	f.sent++
	f.last = time.Now()
	b.number, b.landed, b.err = f.sent, false, nil
	b.pin = b.seg.Pin()
	b.seg.Writes++
	f.flying = append(f.flying, b)
	if b.seg.Failed {
		b.landed = true // arrived is about to deal with it
		return
	}
	h.Wg.Go(func() { h.write(b) })
}

// write seals the records in b and writes them.
func (h *Heap) write(b *staging) {
	f := &h.Far
	b.records(func(r record.Record, _ source, addr uint64) { r.Seal(b.seg.Seed, f.Offset(addr)) })
	ctx, cancel := context.WithTimeout(h.Ctx, StoreTimeout)
	defer cancel()
	began := time.Now()
	b.err = b.seg.Seg.Write(ctx, b.mem[:b.used], b.off)
	b.took = time.Since(began)
	f.landing <- b
}

// arrived settles b, whose write has ended, unless earlier writes to the same segment are still under way; then b
// waits for those. It also settles later writes to that segment which have waited for b.
func (h *Heap) arrived(b *staging) {
	f := &h.Far
	b.landed = true
	for {
		i := slices.IndexFunc(f.flying, func(b *staging) bool {
			first := slices.IndexFunc(f.flying, func(o *staging) bool { return o.seg == b.seg })
			return b.landed && f.flying[first] == b
		})
		if i < 0 {
			return
		}
		b := f.flying[i]
		f.flying = slices.Delete(f.flying, i, i+1)
		h.settle(b)
	}
}

// collect calls arrived for every write that has ended.
func (h *Heap) collect() {
	for {
		select {
		case b := <-h.Far.landing:
			h.arrived(b)
		default:
			return
		}
	}
}

// Drain writes what is in the buffers, and waits until all writes have ended.
func (h *Heap) Drain() {
	h.submit()
	for len(h.Far.flying) > 0 {
		h.arrived(<-h.Far.landing)
	}
}

var errBehindFailed = errors.New("a write in front of it has failed")

// settle tells the owners of the records in b what became of its write.
func (h *Heap) settle(b *staging) {
	f, s, err := &h.Far, b.seg, b.err
	if s.Failed {
		if err = errBehindFailed; s.Worn.Load() {
			err = store.ErrSealed
		}
	} else if err == nil && s.Gone() {
		err = &LostError{Segment: s.Seg.Name()}
	}
	if err != nil {
		if !s.Failed {
			s.Failed, s.End = true, b.off // nobody knows what became of the write
		}
		if errors.Is(err, store.ErrSealed) {
			s.Worn.Store(true) // another segment will do, at once
			f.fails++
			f.failed = err
		} else {
			f.failedWrite(b.number, fmt.Errorf("cannot evacuate %d bytes to %s: %w", b.used, s.Seg.Name(), err))
		}
		if f.open == s {
			h.closeFar()
		}
	} else {
		if f.pace == 0 {
			f.pace = b.took
		}
		f.pace = (3*f.pace + b.took) / 4
		if b.number > f.suspect {
			f.succeeded()
		}
		h.Count.BytesOut.Add(uint64(b.used))
		s.Wrote(b.off + b.used)
	}
	failpoint.Hit("far.settled")
	if !h.Pass.active() {
		h.Pass.Passes.Add(1) // counts as a pass, during which no class's number is used again
		defer h.Pass.Passes.Add(1)
	}
	b.records(func(r record.Record, from source, addr uint64) { h.settleRecord(r, from, addr, s, err == nil) })
	clear(b.sources)
	b.sources, b.used, b.seg = b.sources[:0], 0, nil
	f.free = append(f.free, b)
	s.Writes--
	s.Unpin(b.pin)
	h.noteTrouble()
	if h.Logs.roomForWaiting() {
		h.Logs.finish(nil)
	}
	h.Scopes.RoomMade()
}

// settleRecord tells the owner of r, which was written at addr of s or was not.
func (h *Heap) settleRecord(r record.Record, from source, addr uint64, s *FarSegment, written bool) {
	size, o := sizeclass.Round(r.Size()), h.host.Owner(r.Owner())
	if from&fromFar != 0 {
		from := uint64(from &^ fromFar)
		if written && o.Moved(r, from, addr, s) {
			h.Count.cleanedBytes.Add(uint64(r.Size()))
			h.BuryFar(from, size)
		} else {
			h.Far.unmoved++
			s.Live.Add(-int64(size))
		}
		return
	}
	l := h.Logs.local(uint64(from &^ staysLocal))
	if from&staysLocal != 0 {
		if !o.Settled(l, s, addr, written, true) {
			s.Live.Add(-int64(size))
		}
		return
	}
	n := object.Size(len(l.Mem) - object.Header)
	seg := h.Logs.Seg(l.Addr)
	if o.Settled(l, s, addr, written, false) {
		h.Count.evacuated.Add(1)
		seg.Live.Add(-int64(n))
	} else {
		s.Live.Add(-int64(size))
	}
	h.Far.leaving -= int64(n)
	if seg.leaving -= int64(n); seg.leaving == 0 {
		h.emptied(seg)
	}
}

// noteTrouble tells those who wait for room whether the store fails; being full is no failure.
func (h *Heap) noteTrouble() {
	err := h.Far.err
	if errors.Is(err, ErrStoreFull) {
		err = nil
	}
	h.Logs.note(err)
}

// failedWrite notes that the write of that number has failed. Writes that were under way when the first of them
// failed count as one failure of the store.
func (f *farLog) failedWrite(number uint64, err error) {
	f.failed = err
	f.fails++
	if number > f.suspect {
		f.suspect = f.sent
		f.Failed(err)
	}
}

// closeFar seals the open segment.
func (h *Heap) closeFar() {
	f := &h.Far
	h.midway = nil
	if f.open == nil {
		return
	}
	h.submit()
	if f.filling != nil {
		f.filling.used = 0 // there is nothing but a header in it
	}
	f.open.Seal()
	f.open = nil
}

// openWith makes seg the open segment. It may wait for a buffer.
func (h *Heap) openWith(seg store.Segment) error {
	f := &h.Far
	s, err := f.Add(seg, record.Data)
	if err != nil {
		return err
	}
	h.closeFar()
	h.refill()
	b := f.filling
	s.Header().Put(b.mem)
	b.seg, b.off, b.used, s.End = s, 0, record.SegmentSize, record.SegmentSize
	f.open = s
	return nil
}

// widen lets the window grow if writes are slow. The memory comes from the logs: the evacuator has them give it back
// first, and makes the buffers when they have.
func (h *Heap) widen() {
	f := &h.Far
	most := min(windowFor(h.Budget.Load(), f.size), f.made+len(f.unused))
	n := min(f.may, most-f.may)
	if f.pace <= slowWrite || n <= 0 {
		return
	}
	h.Scopes.Mu.Lock() // so that no scope is let in meanwhile
	defer h.Scopes.Mu.Unlock()
	if h.Logs.growWindow(int64(n)*stagingCost(f.size), h.Scopes.promised()) {
		f.may += n
	}
}

// trimWindow gives back the memory of buffers that are no longer needed, and reports whether there were any.
func (h *Heap) trimWindow() (some bool) {
	f := &h.Far
	most := windowFor(h.Budget.Load(), f.size)
	if h.Logs.narrow.Swap(false) || f.pace < slowWrite/2 || !f.busy() && time.Since(f.last) > idleWindow {
		most = narrow
	}
	for f.may > most {
		if f.made == f.may {
			n := len(f.free) - 1
			if n < 0 {
				return some
			}
			b := f.free[n]
			f.free = f.free[:n]
			if err := f.mapping.Punch(b.part*f.size, f.size); err != nil {
				panic("BUG: " + err.Error())
			}
			f.unused = append(f.unused, b.part)
			f.made--
		}
		f.may--
		h.Logs.growWindow(-stagingCost(f.size), 0)
		some = true
	}
	return some
}
