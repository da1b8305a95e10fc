package bytemap

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"polder/far/entry"
	"polder/far/farlog"
	"polder/far/heap"
	"polder/far/index"
	"polder/far/record"
	"polder/far/store"
	"polder/internal/offload"
)

// Aggregate iterates over a map in the order of the tags, comes by each value once, and looks through it. It looks
// through local values here. Of a far entry the index knows where the record lies, and the store looks through the
// record there. If the store cannot, or the entry may have expired, the record is read from there.

const (
	// lookEntries is about how many entries are visited while the lock of a shard is held.
	lookEntries = 256
	// lookers is how many goroutines look through a map, each through some shards. Each reads leaves one after the
	// other; it does not wait for the leaves of the others.
	lookers = 4
	// lookStep is about how many bytes of values that are at hand are looked through at a time.
	lookStep = 64 << 10
	// lookBytes is about how many bytes of records one goroutine has the store look through, or reads, at a time.
	lookBytes = 1 << 20
)

// Aggregate adds up what q says of the values of m, which are stored as they are in memory.
func Aggregate(ctx context.Context, m *Map, q *offload.Scan) (a offload.Aggregate, err error) {
	if q.Stride > m.h.pieces {
		return a, fmt.Errorf("its values are longer than %d bytes, and so in pieces", m.h.pieces)
	}
	if err := m.h.core.Begin(); err != nil {
		return a, err
	}
	defer m.h.core.End()
	if m.freed.Load() {
		return a, m.gone()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var next atomic.Uint64 // shard that nobody has taken
	var windows [lookers]window
	var wg sync.WaitGroup
	for i := range windows {
		w := &windows[i]
		w.init(m, q)
		wg.Go(func() {
			defer w.pins.Release()
			for at := next.Add(1) - 1; at < uint64(m.h.shards) && w.err == nil; at = next.Add(1) - 1 {
				w.shard(ctx, at)
			}
			if w.err == nil {
				w.finish(ctx)
			}
			if w.err != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	for i := range windows {
		w := &windows[i]
		q.Merge(&a, &w.a)
		if w.err != nil && (err == nil || errors.Is(err, context.Canceled)) {
			err = w.err // rather than that of a goroutine that another one has stopped
		}
	}
	return a, err
}

// window is the entries of a map that one goroutine is looking through. Entries of the current step, which may have
// to be repeated, are behind the others.
type window struct {
	m    *Map
	q    offload.Scan
	pins *farlog.Pins
	a    offload.Aggregate
	err  error

	values    []byte           // the values at hand, for look
	parts     []store.ScanPart // records that the store is to look through,
	reads     []store.ScanPart // and those to be read
	bytes     int              // of both
	seen      int              // entries of the step
	lost      error            // an entry of the step is lost, or its value has a wrong size
	hasValues int              // bytes of values, and number of parts and of reads, before the step
	hasParts  int
	hasReads  int
}

func (w *window) init(m *Map, q *offload.Scan) {
	w.m, w.q, w.pins = m, *q, m.h.core.Far.NewPins()
	w.values = make([]byte, 0, lookStep+w.q.Stride) // large ones are aligned
}

// shard looks through a shard.
func (w *window) shard(ctx context.Context, at uint64) {
	for cursor := at << 32; w.err == nil; {
		if w.err = context.Cause(ctx); w.err != nil {
			return
		}
		var next uint64
		if _, next, w.err = w.m.scan(ctx, cursor, index.Word.Committed, w); w.err == nil {
			w.err = w.lost
		}
		if w.err != nil {
			return
		}
		w.hasValues, w.hasParts, w.hasReads = len(w.values), len(w.parts), len(w.reads)
		if len(w.values) >= lookStep {
			w.look()
		}
		if w.bytes >= lookBytes {
			w.finish(ctx)
		}
		if cursor = next; cursor>>32 != at || cursor == 0 {
			return
		}
	}
}

// rewind begins a step, for the first time or again.
func (w *window) rewind() {
	w.values, w.parts, w.reads = w.values[:w.hasValues], w.parts[:w.hasParts], w.reads[:w.hasReads]
	w.seen, w.lost = 0, nil
}

// visit takes note of an entry. The lock of its shard is held.
func (w *window) visit(tag uint32, word index.Word) {
	h := w.m.h
	w.seen++
	if !word.Far() {
		if e := h.entryAt(word.Addr()); !e.Expired() {
			w.lost = errors.Join(w.lost, w.add(e.Value()))
		}
		return
	}
	if word.IsLost() {
		return // its shard says so
	}
	seg := w.pins.Hold(word.Addr(), func() bool { return true }) // the lock keeps it referred to
	if seg == nil {
		w.lost = &heap.LostError{Segment: h.core.Far.Seg(word.Addr()).Seg.Name()}
		return
	}
	off := h.core.Far.Offset(word.Addr())
	p := store.ScanPart{Seg: seg.Seg, Seed: seg.Seed, Off: off, Number: uint64(tag), N: min(word.Size(), h.core.Far.SegSize-off)}
	if word&index.TTL != 0 {
		w.reads = append(w.reads, p)
	} else {
		w.parts = append(w.parts, p)
	}
	w.bytes += p.N
}

// lose notes that entries are lost.
func (w *window) lose() {
	name := w.m.h.core.LastLost.Load()
	if name == nil {
		name = new(string)
	}
	w.lost = &heap.LostError{Segment: *name}
}

// add adds a value to the values at hand.
func (w *window) add(value []byte) error {
	if len(value) != w.q.Stride {
		return &heap.CorruptError{Segment: "map " + w.m.name, Err: fmt.Errorf("a value is %d bytes, want %d", len(value), w.q.Stride)}
	}
	w.values = append(w.values, value...)
	return nil
}

// look looks through the values at hand.
func (w *window) look() {
	w.q.Aggregate(&w.a, w.values)
	w.values, w.hasValues = w.values[:0], 0
}

// finish has the store look through parts, reads what the store cannot look through, and looks through all values at
// hand.
func (w *window) finish(ctx context.Context) {
	h := w.m.h
	o := store.Objects{Owner: w.m.id, Size: w.q.Stride, Entries: true}
	if store, ok := h.core.Far.Store.(store.Computer); ok && len(w.parts) > 0 {
		limited, cancel := context.WithTimeout(ctx, heap.StoreTimeout)
		store.Scan(limited, &w.q, o, w.parts, &w.a)
		cancel()
		for i := range w.parts {
			if w.parts[i].Err != nil {
				w.reads = append(w.reads, w.parts[i])
			}
		}
		w.m.computed.Add(uint64(len(w.parts) + w.hasReads - len(w.reads)))
	} else {
		w.reads = append(w.reads, w.parts...)
	}
	w.err = w.read(ctx)
	w.look()
	w.pins.Release()
	w.parts, w.reads, w.hasParts, w.hasReads, w.bytes = w.parts[:0], w.reads[:0], 0, 0, 0
}

// read reads the records in reads where they lay when visit took note of them, and adds their values to those at hand.
func (w *window) read(ctx context.Context) error {
	h := w.m.h
	ops := make([]store.ReadOp, len(w.reads))
	for i := range w.reads {
		p := &w.reads[i]
		ops[i] = store.ReadOp{Seg: p.Seg, Off: p.Off, Buf: make([]byte, p.N), Bulk: true}
	}
	if len(ops) == 0 {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, heap.StoreTimeout)
	defer cancel()
	h.core.Far.Store.Read(limited, ops)
	i, rec, err := 0, record.Record(nil), error(nil)
	right := func() bool {
		if rec, err = record.Decode(ops[i].Buf, w.reads[i].Seed, ops[i].Off); err == nil && (rec.Kind() != record.Entry || rec.Owner() != w.m.id || uint32(rec.Number()) != uint32(w.reads[i].Number)) {
			err = heap.ErrForeign
		}
		return err == nil
	}
	for i = range ops {
		op := &ops[i]
		if store.Gone(op.Seg) {
			return &heap.LostError{Segment: op.Seg.Name()}
		}
		if op.Err != nil {
			return op.Err
		}
		if !right() && !h.core.Reread(op.Seg, op.Off, op.Buf, right) {
			return &heap.CorruptError{Segment: op.Seg.Name(), Err: err}
		}
		if entry.Expired(rec.Expiry()) {
			continue
		}
		if err := w.add(rec.Value()); err != nil {
			return err
		}
	}
	return nil
}
