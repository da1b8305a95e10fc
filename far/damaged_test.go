package far

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"polder/far/heap"
	"polder/far/store"
)

// noisy is far memory of which some reads bring damaged bytes, though never two in a row.
type noisy struct {
	heap.Store
	off     atomic.Bool
	damaged atomic.Int64 // reads; whoever reads does so alone
	quiet   bool         // the next one is good
}

func (s *noisy) Read(ctx context.Context, ops []store.ReadOp) {
	if s.Store.Read(ctx, ops); s.off.Load() {
		return
	}
	if s.quiet = !s.quiet && rand.IntN(3) == 0; s.quiet {
		s.damaged.Add(1)
		for _, op := range ops {
			op.Buf[rand.IntN(len(op.Buf))] ^= 1
		}
	}
}

// What is damaged on its way from far memory is read once more: the cleaner does not give a segment up for it.
func TestWhatIsDamagedOnItsWayIsCleaned(t *testing.T) {
	far := &noisy{Store: heap.NewMemStore(tinySegment, 64)}
	cleans(t, far, &far.off)
	if far.damaged.Load() == 0 {
		t.Error("the test tested nothing: no read was damaged")
	}
}

// cleans fails the test if the cleaner gives up a segment of far, whose reads bring damaged bytes until off is set.
func cleans(t *testing.T, far heap.Store, off *atomic.Bool) {
	t.Helper()
	const keys = 300
	h, stays := openTiny(t, far, 0)
	defer h.Close()
	goes := h.NewByteMap("goes")
	for round := range 60 {
		for i := range keys { // only the cleaner reads: keys of these maps are not in far memory yet
			for _, m := range []*ByteMap{goes, stays}[:1+max(1-round, 0)] {
				if err := m.Set(t.Context(), key(i), Entry{Value: value(uint64(i), 1000)}); err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
			}
		}
		goes.Clear()
	}
	if st := h.Stats(); int64(st.CleanedBytes) < st.FarLive/8 {
		t.Errorf("%d bytes of %d that live were moved by the cleaner, in %d tries, want more", st.CleanedBytes, st.FarLive, st.CleanedSegments)
	}
	off.Store(true)
	for i := range keys {
		e, err := stays.Get(t.Context(), key(i), nil)
		if err != nil || string(e.Value) != string(value(uint64(i), 1000)) {
			t.Fatalf("key %d: %d bytes, %v", i, len(e.Value), err)
		}
	}
	h.core.Stop()
	h.core.Far.All(func(s *heap.FarSegment) {
		if s.Broken {
			t.Errorf("%s is cleaned no more, of which %d of %d bytes live", s.Seg.Name(), s.Live.Load(), s.Filled())
		}
	})
}

// scarred is far memory with two copies. All reads are of one that is damaged, every so many bytes, until it is replaced; the
// other is good.
type scarred struct {
	heap.Store
	off   atomic.Bool
	reads atomic.Int64 // of the good copy
}

// scars is the distance of the damaged bytes: a few records.
const scars = 5000

func (s *scarred) Read(ctx context.Context, ops []store.ReadOp) {
	if s.Store.Read(ctx, ops); s.off.Load() {
		return
	}
	for _, op := range ops {
		for at := (op.Off + scars) / scars * scars; at < op.Off+len(op.Buf); at += scars {
			op.Buf[at-op.Off] ^= 1
		}
	}
}

func (s *scarred) Judge(store.Judge) {}

func (s *scarred) Reread(ctx context.Context, op store.ReadOp, good func() bool) bool {
	s.reads.Add(1)
	one := [1]store.ReadOp{op}
	s.Store.Read(ctx, one[:])
	return one[0].Err == nil && good()
}

// TestWhatHasADamagedCopyIsCleaned: the cleaner does not depend on the copy being replaced at once.
func TestWhatHasADamagedCopyIsCleaned(t *testing.T) {
	far := &scarred{Store: heap.NewMemStore(tinySegment, 64)}
	cleans(t, far, &far.off)
	if far.reads.Load() == 0 {
		t.Error("the test tested nothing: no read was of a damaged copy")
	}
}
