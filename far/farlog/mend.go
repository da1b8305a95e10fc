package farlog

import (
	"context"
	"errors"
	"slices"

	"polder/far/record"
	"polder/far/store"
)

// Mend is the store.Judge of the log. It reads all records of a segment, also of one that is dead and only kept for
// the last checkpoint or for a pin, with reread. A checkpoint that failed may be the last one nevertheless: its root
// may have been kept although the keeper's answer was lost.
func (f *Log) Mend(ctx context.Context, seg store.Segment, reread store.Rereader) (all bool) {
	var s *Segment
	f.All(func(o *Segment) {
		if o.Seg == seg {
			s = o
		}
	})
	if s != nil {
		defer s.Unpin(s.Pin())
		return f.mendRecords(ctx, s.kept(), new(Pinned), reread)
	}
	if p, pin := f.pinPart(seg); pin != nil {
		defer pin.Unpin()
		return f.mendPart(ctx, seg, p, pin, reread)
	}
	if k, pin := f.pinDead(seg); pin != nil {
		defer pin.Unpin()
		if k.part.Length > 0 {
			return f.mendPart(ctx, seg, k.part, pin, reread)
		}
		return f.mendRecords(ctx, k, pin, reread)
	}
	return true // it is not in use: nothing in it counts
}

// mendRecords is Mend of a segment that has records. It stops if the pin breaks, since then the segment may be
// written to again.
func (f *Log) mendRecords(ctx context.Context, k Kept, pin *Pinned, reread store.Rereader) (all bool) {
	all = true
	mem := make([]byte, min(mendPiece, k.Written))
	for off := 0; off < k.Written; {
		if pin.broken.Load() || ctx.Err() != nil {
			return false
		}
		op := store.ReadOp{Seg: k.seg, Off: off, Buf: mem[:min(len(mem), k.Written-off)]}
		most := 0      // how many bytes at the beginning of op.Buf are correct records in some copy
		short := false // according to some copy, the first record goes on behind op.Buf
		size := 0      // of the first record, if its header is correct in some copy
		if off == 0 {
			size = record.SegmentSize
		}
		reread(op, func() bool {
			n, err := k.check(op.Buf, off)
			most, short = max(most, n), short || errors.Is(err, record.ErrShort)
			if r, err := record.DecodeHead(op.Buf, k.seed, off); err == nil {
				size = r.Size()
			}
			return false
		})
		switch {
		case most > 0:
			op.Buf = op.Buf[:most]
			if !reread(op, func() bool { _, err := k.check(op.Buf, off); return err == nil }) {
				return false
			}
			off += most
		case short && len(op.Buf) < k.Written-off:
			mem = make([]byte, min(2*len(mem), f.SegSize))
		case size > 0: // no copy has the record right: whoever reads it gets the error
			off += size
			all = false
		default: // nor does anybody know where the next one begins
			return false
		}
	}
	return all
}

// mendPiece is how many bytes of a segment Mend reads at once, unless a record is larger.
const mendPiece = 64 << 10

// pinPart finds the part of the last checkpoint, or of one that is pinned, that is in seg. It pins seg, so that it is
// not written to from the front when the checkpoint is no longer needed. If there is no such part, the pin is nil.
func (f *Log) pinPart(seg store.Segment) (record.Part, *Pinned) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := &f.keeping
	if i := slices.Index(k.parts, seg); i >= 0 {
		return k.root.Parts[i], f.pin(seg)
	}
	for _, p := range k.pins {
		if i := slices.Index(p.parts, seg); i >= 0 {
			return p.Root.Parts[i], f.pin(seg)
		}
	}
	return record.Part{}, nil
}

// pinDead finds seg among the dead segments that are kept for the last checkpoint or for pins, and those that have
// parts of checkpoints that failed, and pins it. If it is none of them, the pin is nil.
func (f *Log) pinDead(seg store.Segment) (Kept, *Pinned) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, dead := range [][]Kept{f.keeping.waiting, f.keeping.pinned} {
		if i := slices.IndexFunc(dead, func(k Kept) bool { return k.seg == seg }); i >= 0 {
			return dead[i], f.pin(seg)
		}
	}
	return Kept{}, nil
}

// pin pins one segment. f.mu must be held.
func (f *Log) pin(seg store.Segment) *Pinned {
	p := &Pinned{log: f, segs: map[store.Segment]bool{seg: true}}
	f.keeping.pins = append(f.keeping.pins, p)
	return p
}

// mendPart is Mend of a segment that has the part p of a checkpoint. It stops if the pin breaks, since then the
// segment may be written to again.
func (f *Log) mendPart(ctx context.Context, seg store.Segment, p record.Part, pin *Pinned, reread store.Rereader) (all bool) {
	mem, seed := f.stretch(), f.checkpointHeader(p).Seed()
	head := store.ReadOp{Seg: seg, Buf: mem[:record.SegmentSize]}
	all = reread(head, func() bool {
		h, err := record.DecodeSegment(head.Buf)
		return err == nil && h.Seed() == seed
	})
	for off, left := record.SegmentSize, int(p.Length); left > 0; {
		if pin.broken.Load() || ctx.Err() != nil {
			return false
		}
		op := store.ReadOp{Seg: seg, Off: off, Buf: mem[:min(len(mem), f.SegSize-off, record.Size(left))]}
		size, n := 0, 0 // of a record that is correct in some copy, and of its body
		good := func() bool {
			r, err := f.decodeStretch(op.Buf, p, off, left)
			if err == nil {
				size, n = r.Size(), r.Len()
			}
			return err == nil
		}
		reread(op, func() bool { good(); return false })
		if size == 0 {
			return false // no copy has the record right: whoever reads it gets the error
		}
		op.Buf = op.Buf[:size]
		if !reread(op, good) {
			return false
		}
		off += size
		left -= n
	}
	return all
}
