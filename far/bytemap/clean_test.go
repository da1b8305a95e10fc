package bytemap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"polder/far/heap"
	"polder/far/store"
)

// slowStore is a store that takes no segment back for a while.
type slowStore struct {
	heap.Store
	until chan struct{}
}

type slowSegment struct {
	store.Segment
	of slowStore
}

func (s slowStore) Alloc(ctx context.Context) (store.Segment, error) {
	seg, err := s.Store.Alloc(ctx)
	return slowSegment{seg, s}, err
}

func (s slowStore) Read(ctx context.Context, ops []store.ReadOp) {
	for i := range ops {
		ops[i].Seg = ops[i].Seg.(slowSegment).Segment
	}
	s.Store.Read(ctx, ops)
}

func (s slowSegment) Free(ctx context.Context) error {
	<-s.of.until
	return s.Segment.Free(ctx)
}

// Segments of leaves of which nothing lives any more, but which the store has not taken back yet, are no reason to
// clean others, of which much lives.
func TestWhatIsAboutToBeGivenBackIsNotCleanedFor(t *testing.T) {
	t.Parallel()
	slow := slowStore{heap.NewMemStore(64<<10, 4000), make(chan struct{})}
	_, m := openEarly(t, slow, 400<<10)
	defer close(slow.until)
	ctx := within(t, 2*time.Minute)
	r := rand.New(rand.NewPCG(1, 2))
	for range ofModel(400000) {
		mustSet(t, m, fmt.Append(nil, "key", r.IntN(60000)), []byte("value"))
	}
	settleAll(t, ctx, m)
}

// TestASegmentIsCleanedPartByPart: of every other part it cannot be known just now what lives. What comes before is not cleaned again, or this would
// never end; and what is to spare for the rest of a segment is used by nobody else, or a full store could not be cleaned any more.
func TestASegmentIsCleanedPartByPart(t *testing.T) {
	t.Parallel()
	for name, segments := range map[string]int{"full": 34, "roomy": 400} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lay, calls := tiny, 0
			lay.Logs = 400 << 10
			lay.notNow = func() bool { calls++; return calls%2 == 0 } // it is the evacuator that calls it
			h, err := newHeap(heap.NewMemStore(64<<10, segments), testConfig{Local: lay.Local()}, lay)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := h.Close(); err != nil {
					t.Error(err)
				}
				if calls < 100 {
					t.Errorf("the cleaner has asked %d times what lives", calls)
				}
			}()
			m := h.NewByteMap("test")
			ctx := within(t, time.Minute)
			r := rand.New(rand.NewPCG(1, 2))
			want := map[string][]byte{}
			for i := range 30000 {
				k, v := fmt.Sprint("key", r.IntN(6000)), bytes.Repeat(fmt.Append(nil, i%10), 200)
				if err := m.Set(ctx, []byte(k), Entry{Value: v}); err != nil {
					t.Fatalf("after %d SETs: %v", i, err)
				}
				want[k] = v
			}
			for k, v := range want {
				mustGet(t, m, []byte(k), v)
			}
			if name == "roomy" {
				return
			}
			for i := 0; err == nil; i++ { // that there is nothing to clean any more is said, although it was put off before
				err = m.Set(ctx, fmt.Append(nil, "more", i), Entry{Value: make([]byte, 200)})
			}
			if !errors.Is(err, heap.ErrStoreFull) {
				t.Errorf("when all lives: got %v, want ErrStoreFull", err)
			}
		})
	}
}
