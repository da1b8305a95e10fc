package farlog

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"

	"polder/far/record"
	"polder/far/store"
)

// written makes a segment with so many records, and returns what is in it.
func written(t *testing.T, f *Log, records int) (*Segment, []byte) {
	t.Helper()
	s := addSegment(t, f)
	size := record.Size(100)
	mem := make([]byte, record.SegmentSize+records*size)
	s.Header().Put(mem)
	for off := record.SegmentSize; off < len(mem); off += size {
		record.Put(mem[off:off+size], record.Header{Kind: record.Entry}, make([]byte, 100)).Seal(s.Seed, off)
	}
	if err := s.Seg.Write(t.Context(), mem, 0); err != nil {
		t.Fatal(err)
	}
	s.Wrote(len(mem))
	s.Seal()
	return s, mem
}

// TestWhatIsKeptForACheckpointIsMended: the records of a segment count not only while some live, but as long as the
// last checkpoint, or one that is pinned, refers to them; and so does a part of such a checkpoint.
func TestWhatIsKeptForACheckpointIsMended(t *testing.T) {
	f, k := newKept(16)
	s, mem := written(t, f, 1)
	mends := func(when string, seg store.Segment, want int) {
		t.Helper()
		got := 0
		all := f.Mend(t.Context(), seg, func(op store.ReadOp, good func() bool) bool {
			one := [1]store.ReadOp{op}
			one[0].Seg = op.Seg.(*lateSegment).Segment
			if k.mem.Read(t.Context(), one[:]); one[0].Err != nil {
				t.Fatal(one[0].Err)
			}
			ok := good()
			if ok {
				got += len(op.Buf)
			}
			return ok
		})
		if got != want || !all {
			t.Errorf("%s: %d bytes were looked at, all that count: %v, want %d", when, got, all, want)
		}
	}
	commit := func() {
		t.Helper()
		_, segs := f.AppendSegments(nil)
		if _, err := f.Commit(t.Context(), make([]byte, 100), segs, 0, 4); err != nil {
			t.Fatal(err)
		}
	}
	mends("while something lives in it", s.Seg, len(mem))
	commit()
	s.Bury(160)
	f.Drop(t.Context(), s)
	mends("when it is dead, and the last checkpoint refers to it", s.Seg, len(mem))
	pin, part := f.Pin(), f.keeping.parts[0]
	mends("a part of the last checkpoint", part, len(mem))
	commit()
	mends("when only a pinned checkpoint refers to it", s.Seg, len(mem))
	mends("a part of a pinned checkpoint", part, len(mem))
	pin.Unpin()
	mends("when nothing refers to it", s.Seg, 0)
	mends("a part of a checkpoint that is over", part, 0)

	k.away = errors.New("the answer is lost")
	if _, err := f.Commit(t.Context(), make([]byte, 100), nil, 0, 4); !errors.Is(err, k.away) {
		t.Fatalf("a checkpoint whose root may be kept or not: %v, want %v", err, k.away)
	}
	part = f.keeping.waiting[len(f.keeping.waiting)-1].seg
	mends("a part of a checkpoint that may be the last or not", part, len(mem))
	k.away = nil
	commit()
	mends("when there is a later one", part, 0)
	if !slices.Contains(f.keeping.spares, part) {
		t.Error("a part of a checkpoint that failed is not used again after a later one")
	}
}

// twoCopies is a store with two copies, each of which has one byte of every segment wrong. The first one is read.
type twoCopies struct {
	*lateKeeper
	wrong [2]int
}

func (s *twoCopies) Read(_ context.Context, ops []store.ReadOp) {
	for i := range ops {
		ops[i].Err = s.read(0, ops[i])
	}
}

func (s *twoCopies) read(i int, op store.ReadOp) error {
	op.Seg = op.Seg.(*lateSegment).Segment
	one := [1]store.ReadOp{op}
	s.mem.Read(context.Background(), one[:])
	if at := s.wrong[i] - op.Off; at >= 0 && at < len(op.Buf) {
		op.Buf[at] ^= 1
	}
	return one[0].Err
}

func (s *twoCopies) Judge(store.Judge) {}

func (s *twoCopies) Reread(_ context.Context, op store.ReadOp, good func() bool) bool {
	for i := range s.wrong {
		if s.read(i, op) == nil && good() {
			return true
		}
	}
	return false
}

// TestRecordsAreReadThoughNoCopyHasAllOfThemRight: each record is read from a copy that has it right.
func TestRecordsAreReadThoughNoCopyHasAllOfThemRight(t *testing.T) {
	f, k := newKept(16)
	size := record.Size(100)
	for _, wrong := range [][2]int{{record.SegmentSize + 50, record.SegmentSize + 2*size + 50}, {record.SegmentSize + size + 50, 9}} {
		s, mem := written(t, f, 3)
		f.Store = &twoCopies{k, wrong}
		_, segs := f.AppendSegments(nil)
		if _, err := f.Commit(t.Context(), make([]byte, 100), segs, 0, 4); err != nil {
			t.Fatal(err)
		}
		pin, kept := f.Pin(), s.kept()
		var got []byte
		for room := make([]byte, 4096); len(got) < len(mem); {
			b, _, err := pin.ReadRecords(t.Context(), &kept, len(got), room)
			if err != nil {
				t.Fatalf("behind %d bytes, of which %v are wrong in one copy each: %v", len(got), wrong, err)
			}
			got = append(got, b...)
		}
		if !bytes.Equal(got, mem) {
			t.Errorf("other bytes were read than were written, where %v are wrong in one copy each", wrong)
		}
		pin.Unpin()
	}
}
