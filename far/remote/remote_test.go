package remote

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"go.uber.org/goleak"

	"polder/far"
	"polder/far/remote/scan"
	"polder/memnode"
	"polder/memnode/component"
	"polder/pool"
	"polder/pool/pooltest"
)

func TestMain(m *testing.M) {
	component.Main(component.Set{scan.Name: {New: newScanner, Bounded: true}})
	goleak.VerifyTestMain(m)
}

func TestABatchReadsWhatWasWritten(t *testing.T) {
	c := pooltest.NewCluster(t, pooltest.Inproc,
		memnode.Config{Lend: 4 << 17, ChunkSize: 1 << 17}, memnode.Config{Lend: 4 << 17, ChunkSize: 1 << 17})
	s := NewStore(c.Open(pool.Config{}).Pool)
	if got := s.SegmentSize(); got != 1<<17 {
		t.Fatalf("segments have %d bytes, want %d", got, 1<<17)
	}
	var ops []far.ReadOp
	for i := range 4 {
		seg, err := s.Alloc(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := seg.Write(t.Context(), bytes.Repeat([]byte{byte('a' + i)}, 5000), 300); err != nil {
			t.Fatal(err)
		}
		ops = append(ops, far.ReadOp{Seg: seg, Off: 299, Buf: make([]byte, 100)})
	}
	ops = append(ops, far.ReadOp{Seg: ops[0].Seg, Off: 1 << 17, Buf: make([]byte, 1)})
	s.Read(t.Context(), ops)
	for i, op := range ops[:4] {
		want := append([]byte{0}, bytes.Repeat([]byte{byte('a' + i)}, 99)...)
		if op.Err != nil || !bytes.Equal(op.Buf, want) {
			t.Fatalf("segment %d (%s): got %q, %v, want %q", i, op.Seg.Name(), op.Buf, op.Err, want)
		}
	}
	if err := ops[4].Err; !errors.Is(err, pool.ErrRange) {
		t.Fatalf("reading past the end: got %v, want %v", err, pool.ErrRange)
	}
	if err := ops[0].Seg.Free(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestAFullPoolIsAFullStore(t *testing.T) {
	c := pooltest.NewCluster(t, pooltest.Inproc, memnode.Config{Lend: 1 << 17, ChunkSize: 1 << 16})
	s := NewStore(c.Open(pool.Config{}).Pool)
	seg, err := s.Alloc(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Alloc(t.Context()); !errors.Is(err, far.ErrStoreFull) {
		t.Fatalf("got %v, want %v", err, far.ErrStoreFull)
	}
	if err := seg.Free(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Alloc(t.Context()); err != nil {
		t.Fatalf("after a free: %v", err)
	}
}

func TestNoWaitDoesNotWait(t *testing.T) {
	c := pooltest.NewCluster(t, pooltest.Inproc, memnode.Config{Lend: 1 << 17, ChunkSize: 1 << 16})
	s := NewStore(c.Open(pool.Config{}).Pool)
	if _, err := s.Alloc(far.NoWait); !errors.Is(err, far.ErrWouldBlock) {
		t.Fatalf("got %v, want %v", err, far.ErrWouldBlock)
	}
}

func TestASegmentIsLostWithItsNode(t *testing.T) {
	c := pooltest.NewCluster(t, pooltest.Inproc, memnode.Config{Lend: 1 << 17, ChunkSize: 1 << 16})
	s := NewStore(c.Open(pool.Config{}).Pool)
	seg, err := s.Alloc(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	c.Nodes[0].Crash()
	c.Nodes[0].Start()
	<-seg.Lost()
	ops := []far.ReadOp{{Seg: seg, Buf: make([]byte, 1)}}
	s.Read(t.Context(), ops)
	if !errors.Is(ops[0].Err, pool.ErrLost) {
		t.Fatalf("got %v, want %v", ops[0].Err, pool.ErrLost)
	}
}
