package farlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"polder/far/record"
	"polder/far/store"
)

// ErrPinBroken says that far memory was full, and that segments which a pinned checkpoint refers to were given up to
// make room for writes.
var ErrPinBroken = errors.New("far memory is full, and what the snapshot still needed was given back to make room for writes")

// Pinned is the checkpoint that was the last of its log when it was pinned. All that it refers to stays in far memory
// until Unpin, whatever dies or is cleaned meanwhile, and whatever checkpoints follow. But if the store has no more
// to lend, the pin breaks: those who write need the memory, and whoever reads the checkpoint can begin again with a
// newer one. It has one user.
type Pinned struct {
	Root   record.Root
	log    *Log
	listed []store.Segment        // in the order of the checkpoint's own list
	parts  []store.Segment        // segments that hold the checkpoint itself
	segs   map[store.Segment]bool // those of listed and of parts
	broken atomic.Bool
}

// Pin pins the last checkpoint. Until this process has taken one, it returns nil.
func (f *Log) Pin() *Pinned {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := &f.keeping
	if k.parts == nil || k.listed == nil {
		return nil
	}
	p := &Pinned{log: f, Root: k.root, listed: k.listed, parts: slices.Clone(k.parts), segs: map[store.Segment]bool{}}
	for _, s := range slices.Concat(p.listed, p.parts) {
		p.segs[s] = true
	}
	k.pins = append(k.pins, p)
	return p
}

// Unpin ends the pin. Ending it again is a no-op.
func (p *Pinned) Unpin() {
	f := p.log
	f.mu.Lock()
	defer f.mu.Unlock()
	k := &f.keeping
	k.pins = slices.DeleteFunc(k.pins, func(o *Pinned) bool { return o == p })
	k.pinned = slices.DeleteFunc(k.pinned, func(s Kept) bool {
		if k.hasPinned(s.seg) {
			return false
		}
		f.release(s.seg)
		return true
	})
}

// release lets go of a segment that only pins have kept: it is reserved for the next checkpoint, if that lacks
// segments, and otherwise becomes idle. f.mu must be held.
func (f *Log) release(s store.Segment) {
	if k := &f.keeping; len(k.spares) < k.most {
		k.spares = append(k.spares, s)
		return
	}
	f.idle = append(f.idle, idle{s, time.Now()})
}

// hasPinned reports whether a pin needs a segment. The log's mu must be held.
func (k *keeping) hasPinned(s store.Segment) bool {
	return slices.ContainsFunc(k.pins, func(p *Pinned) bool { return p.segs[s] })
}

// breakPins breaks all pins and lets go of the segments that only pins keep, since the store has no more to lend.
// Callers that have just found the store full find these segments among the idle ones at once; otherwise they would
// refuse those who wait for room. f.mu must be held.
func (f *Log) breakPins() {
	k := &f.keeping
	if len(k.pinned) == 0 {
		return // the pins cost nothing
	}
	for _, p := range k.pins {
		p.broken.Store(true)
	}
	for _, s := range k.pinned {
		f.release(s.seg)
	}
	k.pins, k.pinned = nil, nil
}

// full reports whether err says that the store has no segment to lend. If so, it breaks the pins, and there may be
// idle segments after that.
func (f *Log) full(err error) bool {
	if !errors.Is(err, store.ErrStoreFull) {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.breakPins()
	return true
}

// whole returns ErrPinBroken if the pin is broken, since what was read until now may be bytes of something else;
// otherwise err.
func (p *Pinned) whole(err error) error {
	if p.broken.Load() {
		return ErrPinBroken
	}
	return err
}

// Stretches reads a pinned checkpoint, one record at a time.
type Stretches struct {
	p    *Pinned
	part int
	off  int // in the part's segment; 0 before the first record
	left int // bytes of the checkpoint in the part
	mem  []byte
}

// Checkpoint returns the checkpoint, to be read from its beginning.
func (p *Pinned) Checkpoint() *Stretches { return &Stretches{p: p, part: -1, mem: p.log.stretch()} }

// Next returns the next bytes of the checkpoint, in memory that the next call uses again, and io.EOF at the end.
func (s *Stretches) Next(ctx context.Context) ([]byte, error) {
	for s.left == 0 {
		if s.part++; s.part == len(s.p.parts) {
			return nil, io.EOF
		}
		s.off, s.left = record.SegmentSize, int(s.p.Root.Parts[s.part].Length)
	}
	r, err := s.p.log.readStretch(ctx, s.p.parts[s.part], s.p.Root.Parts[s.part], s.off, s.left, s.mem)
	if err := s.p.whole(err); err != nil {
		return nil, err
	}
	s.left -= r.Len()
	s.off += r.Size()
	return r.Body(), nil
}

// Kept is a segment as a checkpoint lists it, or a dead one that is kept for a checkpoint, or one that a checkpoint is
// in of which nobody knows whether it is the last.
type Kept struct {
	ID       uint64
	Position uint64 // no two segments of a heap have the same, even if different owners opened them
	Written  int    // bytes of records, from its header on, which never change; 0 if there are none

	seg  store.Segment
	seed uint32
	part record.Part // of the checkpoint that is in it; its Length is 0 if none is
}

// kept returns what there is of s at the moment.
func (s *Segment) kept() Kept {
	return Kept{ID: s.ID, Position: s.Position(), Written: int(s.written.Load()), seg: s.Seg, seed: s.Seed}
}

// listEntry is how many bytes an entry of a checkpoint's list of segments has, without its name.
const listEntry = 7*8 + 2

// Segments reads from d the list of segments that AppendSegments has written.
func (p *Pinned) Segments(d *record.Decoder) ([]Kept, error) {
	list, err := readSegments(d, p.Root.Heap)
	if err == nil && len(list) != len(p.listed) {
		err = fmt.Errorf("BUG: the checkpoint lists %d segments, and refers to %d", len(list), len(p.listed))
	}
	if err != nil {
		return nil, err
	}
	for i := range list {
		list[i].seg = p.listed[i]
	}
	return list, nil
}

// readSegments reads from d what AppendSegments has written for a heap. The bytes may be anything.
func readSegments(d *record.Decoder, heap uint64) ([]Kept, error) {
	d.U64() // version
	d.U64() // age
	n := int(d.U32())
	if d.Err == nil && n > len(d.B)/listEntry {
		d.Err = fmt.Errorf("%d segments in %d bytes", n, len(d.B))
	}
	if d.Err != nil {
		return nil, d.Err
	}
	list := make([]Kept, 0, n)
	for range n {
		s := Segment{ID: d.U64(), age: d.U64(), epoch: d.U64(), stream: record.Stream(d.U64())}
		_, _ = d.U64(), d.U64() // live, filled
		written := d.U64()
		d.Bytes(int(d.U16())) // its name
		if d.Err == nil && written > mostOfSegment {
			d.Err = fmt.Errorf("a segment of %d bytes", written)
		}
		if d.Err != nil {
			return nil, d.Err
		}
		h := record.Segment{Heap: heap, Stream: s.stream, Hash: record.XXH3, Number: s.ID, Epoch: s.epoch, Position: s.age}
		list = append(list, Kept{ID: s.ID, Position: s.Position(), Written: int(written), seed: h.Seed()})
	}
	return list, nil
}

// mostOfSegment is the largest size of a segment that readSegments believes.
const mostOfSegment = 1 << 40

// ReadRecords reads the records of s from off on into mem: as many as there is room for, and at least one. If mem is
// too short for the first record, a longer buffer takes its place. It returns the records and the buffer. It checks
// all records, and reads bytes that are wrong again, from other copies if the store has some. At offset 0, the header
// of the segment comes before the records.
func (p *Pinned) ReadRecords(ctx context.Context, s *Kept, off int, mem []byte) (b, room []byte, err error) {
	for {
		b := mem[:min(len(mem), s.Written-off)]
		ops := []store.ReadOp{{Seg: s.seg, Off: off, Buf: b, Bulk: true}}
		p.log.Store.Read(ctx, ops)
		n, err := 0, ops[0].Err
		if err == nil {
			good := func() bool {
				if n, err = s.check(b, off); n > 0 {
					err = nil // the records behind these may be right in another copy only
				}
				return err == nil || errors.Is(err, record.ErrShort)
			}
			if !good() && !store.Reread(ctx, p.log.Store, ops[0], good) {
				err = &store.CorruptError{Segment: s.seg.Name(), Off: off, Err: err}
			}
		}
		switch err := p.whole(err); {
		case err == nil:
			return b[:n], mem, nil
		case !errors.Is(err, record.ErrShort) || off+len(b) == s.Written:
			return nil, mem, fmt.Errorf("cannot read %s: %w", s.seg.Name(), err)
		}
		mem = make([]byte, min(2*len(mem), p.log.SegSize))
	}
}

// check returns how many bytes at the beginning of b, which was read at off, are correct records, including the
// header of the segment at offset 0; and what is wrong with the record behind them: record.ErrShort if it goes on
// behind b.
func (s *Kept) check(b []byte, off int) (n int, err error) {
	if off == 0 {
		if len(b) < record.SegmentSize {
			return 0, record.ErrShort
		}
		h, err := record.DecodeSegment(b)
		if err == nil && h.Seed() != s.seed {
			err = errors.New("they are the header of another segment")
		}
		if err != nil {
			return 0, err
		}
		n = record.SegmentSize
	}
	for n < len(b) {
		r, err := record.Decode(b[n:], s.seed, off+n)
		if err == nil && r.Size() > len(b)-n {
			err = record.ErrShort
		}
		if err != nil {
			return n, err
		}
		n += r.Size()
	}
	return n, nil
}
