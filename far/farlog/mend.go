package farlog

import (
	"context"
	"slices"

	"polder/far/record"
	"polder/far/store"
)

// Mend is called with a segment whose copies have different bytes. It reads all records of the segment from all
// copies, so that the store replaces the copies that are wrong.
func (f *Log) Mend(ctx context.Context, seg store.Segment) {
	m := f.Store.(store.Mirror)
	var s *Segment
	f.All(func(o *Segment) {
		if o.Seg == seg {
			s = o
		}
	})
	if s == nil {
		if p, pin := f.pinPart(seg); pin != nil {
			defer pin.Unpin()
			f.mendPart(ctx, m, seg, p, pin)
		}
		return // not in use otherwise: nothing in it counts
	}
	defer s.Unpin(s.Pin())
	k := Kept{seg: seg, seed: s.Seed, Written: int(s.written.Load())}
	mem := make([]byte, min(mendPiece, k.Written))
	for off := 0; off < k.Written && !s.Dead() && ctx.Err() == nil; {
		op := store.ReadOp{Seg: seg, Off: off, Buf: mem[:min(len(mem), k.Written-off)]}
		// most is how many bytes at the beginning of op.Buf are correct records in some copy.
		most := 0
		m.Reread(ctx, op, func() bool {
			n, _ := k.check(op.Buf, off)
			most = max(most, n)
			return false
		})
		switch {
		case most > 0:
			op.Buf = op.Buf[:most]
			m.Reread(ctx, op, func() bool { _, err := k.check(op.Buf, off); return err == nil })
			off += most
		case len(op.Buf) == k.Written-off:
			return // no copy has the record right: whoever reads it gets the error
		default:
			mem = make([]byte, min(2*len(mem), f.SegSize))
		}
	}
}

// mendPiece is how many bytes of a segment Mend reads at once, unless a record is larger.
const mendPiece = 64 << 10

// pinPart finds the part of the last checkpoint that is in seg, and pins seg, so that it is not written to from the
// front when the next checkpoint has taken the place of this one. If there is no such part, the pin is nil.
func (f *Log) pinPart(seg store.Segment) (record.Part, *Pinned) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := &f.keeping
	i := slices.Index(k.parts, seg)
	if i < 0 {
		return record.Part{}, nil
	}
	pin := &Pinned{log: f, segs: map[store.Segment]bool{seg: true}}
	k.pins = append(k.pins, pin)
	return k.root.Parts[i], pin
}

// mendPart is Mend of a segment that has the part p of a checkpoint. It stops if the pin breaks, since then the
// segment may be written to again.
func (f *Log) mendPart(ctx context.Context, m store.Mirror, seg store.Segment, p record.Part, pin *Pinned) {
	mem, seed := f.stretch(), f.checkpointHeader(p).Seed()
	head := store.ReadOp{Seg: seg, Buf: mem[:record.SegmentSize]}
	m.Reread(ctx, head, func() bool {
		h, err := record.DecodeSegment(head.Buf)
		return err == nil && h.Seed() == seed
	})
	for off, left := record.SegmentSize, int(p.Length); left > 0 && !pin.broken.Load() && ctx.Err() == nil; {
		op := store.ReadOp{Seg: seg, Off: off, Buf: mem[:min(len(mem), f.SegSize-off, record.Size(left))]}
		var r record.Record
		if !m.Reread(ctx, op, func() bool {
			var err error
			r, err = f.decodeStretch(op.Buf, p, off, left)
			return err == nil
		}) {
			return // no copy has the record right: whoever reads it gets the error
		}
		off += r.Size()
		left -= r.Len()
	}
}
