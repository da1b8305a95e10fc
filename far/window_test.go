package far

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"polder/far/heap"
	"polder/far/store/storetest"
	"polder/internal/invariants"
)

// distantStore is a MemStore whose writes take a latency each, and a share of a bandwidth that
// they have together.
type distantStore struct {
	*heap.MemStore
	latency   time.Duration
	bandwidth float64 // bytes a second

	mu   sync.Mutex
	next time.Time // when the next write can be sent
}

type distantSegment struct {
	heap.Segment
	store *distantStore
}

func (s *distantStore) Alloc(ctx context.Context) (heap.Segment, error) {
	seg, err := s.MemStore.Alloc(ctx)
	if err != nil {
		return nil, err
	}
	return &distantSegment{seg, s}, nil
}

func (s *distantStore) Read(ctx context.Context, ops []heap.ReadOp) {
	for i := range ops {
		ops[i].Seg = ops[i].Seg.(*distantSegment).Segment
	}
	s.MemStore.Read(ctx, ops)
}

func (s *distantSegment) Write(ctx context.Context, p []byte, off int) error {
	st := s.store
	st.mu.Lock()
	if now := time.Now(); st.next.Before(now) {
		st.next = now
	}
	st.next = st.next.Add(time.Duration(float64(len(p)) / st.bandwidth * float64(time.Second)))
	at := st.next.Add(st.latency)
	st.mu.Unlock()
	time.Sleep(time.Until(at))
	return s.Segment.Write(ctx, p, off)
}

// Evacuation does not wait for one write before it fills the next buffer. What is in flight may grow to
// an eighth of the budget, so that a store with a long way to it is written to at its
// bandwidth, or at what that many bytes in flight come to.
func TestWritesAreInFlightTogether(t *testing.T) {
	const (
		local   = 16 << 20
		latency = 5 * time.Millisecond
	)
	window := float64(local/8) / latency.Seconds()
	for _, c := range []struct {
		name      string
		bandwidth float64
		fill      func(t *testing.T, h *Heap, n int)
	}{
		{"entries, as far as the window goes", 100e9, fillEntries},
		{"entries, as far as the bandwidth goes", 100e6, fillEntries},
		{"objects, as far as the window goes", 100e9, fillObjects},
		{"objects, as far as the bandwidth goes", 100e6, fillObjects},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &distantStore{MemStore: heap.NewMemStore(1<<20, 1<<10), latency: latency, bandwidth: c.bandwidth}
				h := got(NewHeap(store, Config{Local: local}))(t)
				defer h.Close()
				c.fill(t, h, 24<<20) // until there is something to evacuate, and the window is wide
				before, began := h.Stats(), time.Now()
				c.fill(t, h, 24<<20)
				after := h.Stats()
				rate := float64(after.BytesOut-before.BytesOut) / time.Since(began).Seconds()
				if want := 0.8 * min(c.bandwidth, window); rate < want {
					t.Errorf("%.0f MB/s were evacuated, want at least %.0f", rate/1e6, want/1e6)
				}
				if after.Resident > after.Budget {
					t.Errorf("%d bytes are resident in a budget of %d", after.Resident, after.Budget)
				}
			})
		})
	}
}

func fillEntries(t *testing.T, h *Heap, n int) {
	m := h.NewByteMap("")
	for i := range n / 4096 {
		mustSet(t, m, key(i), value(uint64(i), 4096))
	}
}

func fillObjects(t *testing.T, h *Heap, n int) {
	c := got(NewClass[[4096]byte](h, ClassConfig{}))(t)
	for range n / 4096 {
		got(c.New(t.Context(), [4096]byte{}))(t)
	}
}

// A write fails while others of the same segment, before and behind it, are under way, again and again:
// nothing is taken to be far that is not, and the counts agree in the end.
func TestWritesFailWhileOthersAreInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.New(256<<10, 1<<10)
		h := got(NewHeap(store, Config{Local: 4 << 20}))(t)
		m := h.NewByteMap("")
		c := got(NewClass[[1000]byte](h, ClassConfig{}))(t)
		r := rand.New(rand.NewPCG(1, 2))
		const n = 4000
		rounds := 10
		if invariants.Enabled {
			rounds = 4
		}
		versions, pointers := make([]uint64, n), make([]Ptr[[1000]byte], n)
		valueOf := func(i int) []byte { return value(uint64(i)<<32|versions[i], 1000) }
		// Most of what is here is written, and goes to far memory, and is cleaned.
		for i := range n {
			mustSet(t, m, key(i), valueOf(i))
			pointers[i] = got(c.New(t.Context(), [1000]byte(valueOf(i))))(t)
		}
		store.Delay.Store(int64(5 * time.Millisecond))
		for round := range rounds {
			store.FlakyWrites.Store(int64(round % 2 * 100)) // a tenth, or none
			for range n / 2 {
				i := r.IntN(n)
				versions[i]++
				if err := m.Set(t.Context(), key(i), Entry{Value: valueOf(i)}); err != nil {
					t.Fatal(err)
				}
				if err := pointers[i].Store(t.Context(), [1000]byte(valueOf(i))); err != nil {
					t.Fatal(err)
				}
			}
		}
		store.Delay.Store(0)
		for i := range n {
			mustGet(t, m, key(i), valueOf(i))
			if v := got(pointers[i].Load(t.Context()))(t); v != [1000]byte(valueOf(i)) {
				t.Fatalf("object %d is not what was stored", i)
			}
		}
		if s := h.Stats(); s.CleanedSegments == 0 || s.Corrupt != 0 || s.Lost != 0 {
			t.Errorf("%d segments were cleaned, want some; %d records were corrupt and %d lost, want none", s.CleanedSegments, s.Corrupt, s.Lost)
		}
		synctest.Wait()
		if err := h.audit(); err != nil {
			t.Error(err)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if n := store.Lent(); n != 0 {
			t.Errorf("%d segments have not been given back", n)
		}
	})
}
