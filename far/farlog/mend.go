package farlog

import (
	"context"

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
	if s == nil { // not in use: a spare segment, or a part of a checkpoint
		return
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
