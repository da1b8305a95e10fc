package farlog

import (
	"bytes"
	"context"
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
