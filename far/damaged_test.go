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
	const keys = 300
	far := &noisy{Store: heap.NewMemStore(tinySegment, 64)}
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
	if st := h.Stats(); far.damaged.Load() == 0 || st.CleanedSegments == 0 {
		t.Errorf("the test tested nothing: %d reads were damaged, %d segments cleaned", far.damaged.Load(), st.CleanedSegments)
	}
	far.off.Store(true)
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
