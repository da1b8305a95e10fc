package far

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"polder/far/heap"
	"polder/far/store/storetest"
	"polder/internal/arena"
	"polder/pool/pooltest"
)

// testSegment is the size of the segments of the stores in tests.
const testSegment = 256 << 10

// newTestHeap makes a heap that the test closes, and a map on it.
func newTestHeap(t testing.TB, store heap.Store, cfg Config) (*Heap, *ByteMap) {
	t.Helper()
	if cfg.Local == 0 {
		cfg.Local = heap.MinLocal
	}
	h, err := NewHeap(store, cfg)
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

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

var value, key = storetest.Value, storetest.Key

func mustSet(t testing.TB, m *ByteMap, k, v []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := m.Set(ctx, k, Entry{Value: v}); err != nil {
		t.Fatalf("Set(%q): %v", k, err)
	}
}

func mustGet(t testing.TB, m *ByteMap, k, want []byte) {
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

func TestHoldsManyTimesItsBudget(t *testing.T) {
	t.Parallel()
	store := heap.NewMemStore(testSegment, 1000)
	h, m := newTestHeap(t, store, Config{})
	n := ofModel(8<<10) + 1<<10 // of 4 KiB: more than twice the budget
	for i := range n {
		mustSet(t, m, key(i), value(uint64(i), 4096))
	}
	for i := range n {
		mustGet(t, m, key(i), value(uint64(i), 4096))
	}
	if got := m.Len(); got != n {
		t.Errorf("Len: got %d, want %d", got, n)
	}
	s := h.Stats()
	if s.Resident > s.Budget {
		t.Errorf("resident %d of %d bytes", s.Resident, s.Budget)
	}
	for i := range n {
		if ok, err := m.Delete(context.Background(), key(i)); !ok || err != nil {
			t.Fatalf("Delete(%d): %v, %v", i, ok, err)
		}
	}
	if _, err := m.Get(context.Background(), key(0), nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("Get after Delete: %v", err)
	}
	if got := m.Len(); got != 0 {
		t.Errorf("Len: got %d, want 0", got)
	}
}

// What the kernel says is resident is no more than what the heap counts.
func TestResidentMemoryIsWhatIsCounted(t *testing.T) {
	h, m := newTestHeap(t, heap.NewMemStore(testSegment, 1000), Config{})
	r := rand.New(rand.NewPCG(1, 1))
	for round := range 4 {
		for range 12000 {
			k := key(r.IntN(100000))
			switch r.IntN(4) {
			case 0:
				if _, err := m.Delete(context.Background(), k); err != nil {
					t.Fatal(err)
				}
			case 1:
				if _, err := m.Get(context.Background(), k, nil); err != nil && !errors.Is(err, ErrNotFound) {
					t.Fatal(err)
				}
			default:
				mustSet(t, m, k, value(r.Uint64(), r.IntN(1000)))
			}
		}
		resident := int64(0)
		for _, mem := range [][]byte{h.core.Logs.Mapping.Bytes(), h.core.Bufs.Mapping.Bytes(), h.core.Far.Staging()} {
			pages := make([]byte, (len(mem)+arena.PageSize-1)/arena.PageSize)
			if err := mincore(mem, pages); err != nil {
				t.Fatal(err)
			}
			for _, p := range pages {
				resident += int64(p&1) * int64(arena.PageSize)
			}
		}
		s := h.Stats()
		if resident += s.Index; resident > s.Resident {
			t.Errorf("round %d: %d bytes are resident, and %d counted", round, resident, s.Resident)
		}
		// A buffer for what is written that is to be made counts already while the logs give back what it takes.
		pooltest.Eventually(t, "no more is counted than the budget has", func() bool { s := h.Stats(); return s.Resident <= s.Budget })
	}
	if s := h.Stats(); s.Fetches == 0 || s.Index <= 256<<10 {
		t.Errorf("not enough happened: %+v", s)
	}
}

func TestLargeValues(t *testing.T) {
	t.Parallel()
	_, m := newTestHeap(t, heap.NewMemStore(testSegment, 1000), Config{MaxValue: 32 << 20})
	for i, n := range []int{16 << 10, 16<<10 + 1, 1 << 20, 20 << 20} {
		mustSet(t, m, key(i), value(uint64(i), n))
		mustGet(t, m, key(i), value(uint64(i), n))
	}
	mustGet(t, m, key(2), value(2, 1<<20))
	if got := m.Len(); got != 4 {
		t.Errorf("Len: got %d, want 4", got)
	}
}

func TestWrongConfigurationIsRefused(t *testing.T) {
	for _, c := range []struct {
		size int
		cfg  Config
		want string
	}{
		{1 << 20, Config{Local: heap.MinLocal - 1}, "local budget"},
		{1 << 20, Config{Local: heap.MinLocal, MaxValue: -1}, "MaxValue"},
		{64 << 10, Config{Local: heap.MinLocal}, "segments"},
		{3 << 20, Config{Local: heap.MinLocal}, "power of two"},
		{0, Config{Local: heap.MinLocal}, "there is no store"},
		{1 << 20, Config{Local: 1 << 62}, "cannot allocate memory"}, // and four times that is no int64
	} {
		var st Store
		if c.size > 0 {
			st = heap.NewMemStore(c.size, 10)
		}
		h, err := NewHeap(st, c.cfg)
		if err == nil {
			h.Close()
			t.Errorf("%+v, segments of %d: accepted", c.cfg, c.size)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %q, want something about %q", c.cfg, err, c.want)
		}
	}
}
