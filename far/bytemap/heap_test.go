package bytemap

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"sync"
	"testing"
	"time"

	"polder/far/heap"
	"polder/far/index"
	"polder/far/store/storetest"
	"polder/internal/buddy"
)

// testHeap is a heap that has maps alone: what package far makes of them, without objects.
type testHeap struct {
	Maps
	memory heap.Heap
	once   sync.Once
	notNow func() bool // the next part of a segment cannot be cleaned just now
}

// testConfig is what there is of far.Config for maps.
type testConfig struct {
	Local, MaxLocal int64
	MaxValue        int
}

// layout is how a heap divides its budget.
type layout struct {
	heap.Sizes
	shards int // of a map; 0 is by the budget
	early  bool
	notNow func() bool // of testHeap
}

// Learns and Learn implement heap.Host.
func (h *testHeap) Learns() bool { return h.notNow != nil || h.Maps.Learns() }

func (h *testHeap) Learn(ctx context.Context, rs []heap.Suspect) error {
	if h.notNow != nil && len(rs) > 0 && h.notNow() {
		return heap.ErrNotNow
	}
	if !h.Maps.Learns() {
		return nil
	}
	return h.Maps.Learn(ctx, rs)
}

// Marker implements heap.Host. No scope keeps anything in place.
func (h *testHeap) Marker() heap.Marker { return nil }

// testStats is what package far makes of both.
type testStats struct {
	heap.Stats
	Totals
}

func (h *testHeap) Stats() testStats { return testStats{h.core.Stats(), h.Totals()} }

func (h *testHeap) NewByteMap(name string) *Map {
	m, err := h.New(name, "", false)
	if err != nil {
		panic(err)
	}
	return m
}

func newHeap(store heap.Store, cfg testConfig, lay layout) (*testHeap, error) {
	if cfg.MaxValue == 0 {
		cfg.MaxValue = int(cfg.Local / 4)
	}
	h := &testHeap{notNow: lay.notNow}
	if err := h.memory.Init(store, heap.Config{Local: cfg.Local, MaxLocal: cfg.MaxLocal}, lay.Sizes, h); err != nil {
		return nil, err
	}
	h.Init(&h.memory, lay.Sizes, Config{MaxValue: cfg.MaxValue, Most: 1 << 14, Shards: lay.shards, Early: lay.early})
	h.memory.Start()
	h.Start()
	return h, nil
}

// Close ends the heap as far.Heap does.
func (h *testHeap) Close() error {
	var err error
	h.once.Do(func() { err = h.close() })
	return err
}

func (h *testHeap) close() error {
	h.core.Stop()
	h.Shut()
	errs := []error{h.core.AwaitScopes()}
	t := h.core.Tally()
	if err := h.Audit(t); err != nil {
		errs = append(errs, err)
	} else {
		errs = append(errs, h.core.Audit(t))
	}
	return errors.Join(append(errs, h.Maps.Close(), h.core.GiveBack(), h.core.Unmap())...)
}

// testSegment is the size of the segments of the stores in tests.
const testSegment = 256 << 10

// newTestHeap makes a heap that the test closes, and a map on it.
func newTestHeap(t testing.TB, store heap.Store, cfg testConfig) (*testHeap, *Map) {
	t.Helper()
	if cfg.Local == 0 {
		cfg.Local = heap.MinLocal
	}
	cfg.MaxLocal = 4 * cfg.Local
	sz, err := heap.SizesFor(store, heap.Config{Local: cfg.Local, MaxLocal: cfg.MaxLocal})
	if err != nil {
		t.Fatal(err)
	}
	h, err := newHeap(store, cfg, layout{Sizes: sz})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h, h.NewByteMap("test")
}

// tiny is a layout so small that a few hundred kilobytes of entries go through
// everything that a heap does. Keys must not be longer than a kilobyte.
var tiny = layout{
	Sizes: heap.Sizes{
		SegSize: 16 << 10,
		Staging: 16 << 10,
		Fetch:   2 * buddy.MaxBuf,
		Logs:    (12*16 + 8*4) << 10,
		Open:    1,
	},
	shards: 8,
}

const tinySegment = 32 << 10 // of its store

// newTinyHeap makes a heap whose logs hold local bytes.
func newTinyHeap(t testing.TB, store heap.Store, local int64) (*testHeap, *Map) {
	t.Helper()
	h, m := openTiny(t, store, local)
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h, m
}

// openTiny makes a heap that the caller closes.
func openTiny(t interface{ Fatal(...any) }, store heap.Store, local int64) (*testHeap, *Map) {
	lay := tiny
	lay.Logs = max(lay.Logs, local)
	cfg := testConfig{Local: lay.Local(), MaxValue: 1 << 20}
	h, err := newHeap(store, cfg, lay)
	if err != nil {
		t.Fatal(err)
	}
	return h, h.NewByteMap("test")
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

var value, key = storetest.Value, storetest.Key

func mustSet(t testing.TB, m *Map, k, v []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := m.Set(ctx, k, Entry{Value: v}); err != nil {
		t.Fatalf("Set(%q): %v", k, err)
	}
}

func mustGet(t testing.TB, m *Map, k, want []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	e, err := m.Get(ctx, k, nil)
	if err != nil {
		t.Fatalf("Get(%q): %v", k, err)
	}
	if !bytes.Equal(e.Value, want) {
		t.Fatalf("Get(%q): got %d bytes that are not the %d that were set", k, len(e.Value), len(want))
	}
}

// allKeys iterates over the keys of m, as Map.Keys does.
func allKeys(ctx context.Context, m *Map) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for cursor := uint64(0); ; {
			var keys [][]byte
			next, err := m.Scan(ctx, cursor, func(key []byte, _ Entry) { keys = append(keys, key) })
			if err != nil {
				yield(nil, err)
				return
			}
			for _, k := range keys {
				if !yield(k, nil) {
					return
				}
			}
			if cursor = next; next == 0 {
				return
			}
		}
	}
}

// loseThat loses the segments that hold the far copies of the entries in m that
// want asks for.
func loseThat(s *storetest.Store, m *Map, want func(w index.Word) bool) int {
	gone := map[heap.Segment]bool{}
	for i := range m.shards() {
		sh := m.at(i)
		sh.mu.Lock()
		for p := range index.Place(len(sh.t.Buckets) * index.BucketEntries) {
			if w := *sh.t.Word(p); w.Far() && want(w) {
				gone[m.h.core.Far.Seg(w.Addr()).Seg] = true
			}
		}
		sh.mu.Unlock()
	}
	return s.Lose(func(_ int, seg heap.Segment) bool { return gone[seg] })
}
