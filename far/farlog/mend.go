package farlog

import (
	"context"

	"polder/far/store"
)

// Mend looks through all records of a segment whose copies have different bytes, in all of them, so that the store replaces those that are not right.
func (f *Log) Mend(ctx context.Context, seg store.Segment) {
	m := f.Store.(store.Mirror)
	var s *Segment
	f.All(func(o *Segment) {
		if o.Seg == seg {
			s = o
		}
	})
	if s == nil { // a spare one
		return
	}
	defer s.Unpin(s.Pin())
	k := Kept{seg: seg, seed: s.Seed, Written: int(s.written.Load())}
	mem := make([]byte, min(mendPiece, k.Written))
	for off := 0; off < k.Written && !s.Dead() && ctx.Err() == nil; {
		op := store.ReadOp{Seg: seg, Off: off, Buf: mem[:min(len(mem), k.Written-off)]}
		most := 0 // the first bytes of them that some copy has, all of which are records that are right
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
			return // no copy has it: whoever reads it is told so
		default:
			mem = make([]byte, min(2*len(mem), f.SegSize))
		}
	}
}

// mendPiece is how much of a segment Mend reads at once, if no record is larger.
const mendPiece = 64 << 10
