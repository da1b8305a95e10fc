package soft

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/codec"
	"polder/internal/invariants"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open makes a heap of n segments for a test.
func open(t testing.TB, segments int) *Heap {
	t.Helper()
	h, err := Open(Config{Budget: int64(segments) * SegmentSize})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// openShared is open for a heap of which the segments can be revoked and
// granted as a coordinator does it, without there being one.
func openShared(t testing.TB, segments int) *Heap {
	t.Helper()
	s, err := newStore(segments, true)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Budget: int64(segments) * SegmentSize}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	h := newHeap(cfg, s)
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func newMap[K comparable, V any](t testing.TB, h *Heap) *Map[K, V] {
	t.Helper()
	m, err := NewMap(h, MapConfig[K, V]{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// checkAccounts compares what the segments' accounts say with what the
// containers hold, while the evacuator is kept still.
func checkAccounts(t *testing.T, h *Heap, count func() int) {
	t.Helper()
	h.evac.mu.Lock()
	defer h.evac.mu.Unlock()
	if got, want := h.Stats().Objects, int64(count()); got != want {
		t.Errorf("the accounts say %d objects, the containers hold %d", got, want)
	}
}

func TestMapReturnsWhatWasStored(t *testing.T) {
	h := open(t, 16)
	m := newMap[string, string](t, h)
	for i := range 20000 {
		if err := m.Set(fmt.Sprint(i), strings.Repeat("x", i%100)+fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20000 {
		want := strings.Repeat("x", i%100) + fmt.Sprint(i)
		if got, ok := m.Get(fmt.Sprint(i)); !ok || got != want {
			t.Fatalf("key %d: got %q, %v, want %q", i, got, ok, want)
		}
	}
	if n := m.Len(); n != 20000 {
		t.Fatalf("the map has %d keys, want 20000", n)
	}
	for i := range 10000 {
		if !m.Delete(fmt.Sprint(i)) {
			t.Fatalf("key %d was not there to delete", i)
		}
	}
	if _, ok := m.Get("77"); ok {
		t.Fatal("a deleted key is still there")
	}
	n := 0
	for k, v := range m.All() {
		if !strings.HasSuffix(v, k) {
			t.Fatalf("key %q has value %q", k, v)
		}
		n++
	}
	if n != 10000 {
		t.Fatalf("All visited %d keys, want 10000", n)
	}
	m.Clear()
	if s := h.Stats(); s.Objects != 0 || s.Live != 0 {
		t.Fatalf("after Clear: %d objects of %d bytes, want none", s.Objects, s.Live)
	}
}

func TestMapOfPlainTypesAllocatesNothing(t *testing.T) {
	type key struct{ a, b uint32 }
	type val [4]uint64
	h := open(t, 16)
	m := newMap[key, val](t, h)
	for i := range uint32(1000) {
		if err := m.Set(key{i, i}, val{uint64(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(1000, func() {
		if v, ok := m.Get(key{7, 7}); !ok || v[0] != 7 {
			t.Fatalf("got %v, %v", v, ok)
		}
	}); n != 0 {
		t.Errorf("Get allocates %v times", n)
	}
	if n := testing.AllocsPerRun(1000, func() {
		if err := m.Set(key{7, 7}, val{7}); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("Set allocates %v times", n)
	}
}

func TestMapEvictsWhatIsColdAndKeepsWhatIsHot(t *testing.T) {
	if invariants.Enabled {
		return // one goroutine does much; "make plain" runs it
	}
	h := open(t, 16)
	m := newMap[int, [1000]byte](t, h)
	for i := range 100 {
		if err := m.Set(i, [1000]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
	}
	for i := 100; i < 200000; i++ {
		if err := m.Set(i, [1000]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		if i%10 == 0 {
			m.Get(i / 10 % 100)
		}
	}
	hot := 0
	for i := range 100 {
		if v, ok := m.Get(i); ok && v[0] == byte(i) {
			hot++
		}
	}
	if hot < 95 {
		t.Errorf("of 100 hot keys %d are left", hot)
	}
	checkAccounts(t, h, m.Len)
	if s := h.Stats(); s.Live > s.Budget || s.EvictedObjects == 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestMapHoldsLargeValuesWhole(t *testing.T) {
	if invariants.Enabled {
		return // one goroutine does much; "make plain" runs it
	}
	h := open(t, 64)
	m := newMap[string, []byte](t, h)
	r := rand.New(rand.NewPCG(1, 1))
	want := map[string][]byte{}
	var ramp [512]byte
	for i := range ramp {
		ramp[i] = byte(i)
	}
	for i := range 12 {
		n := 200<<10 + r.IntN(6<<20)
		b := bytes.Repeat(ramp[i:i+256], n/256+1)[:n]
		k := fmt.Sprint(i)
		want[k] = b
		if err := m.Set(k, b); err != nil {
			t.Fatal(err)
		}
	}
	for k, b := range want {
		if got, ok := m.Get(k); !ok || !bytes.Equal(got, b) {
			t.Errorf("key %s: got %d bytes, %v, want %d", k, len(got), ok, len(b))
		}
	}
	for range 100 { // more than there is room for
		k := fmt.Sprint(r.IntN(30))
		b := bytes.Repeat([]byte(k), 1<<20)
		if err := m.Set(k, b); err != nil {
			t.Fatal(err)
		}
		if got, ok := m.Get(k); ok && !bytes.Equal(got, b) {
			t.Fatalf("key %s has %d other bytes", k, len(got))
		}
	}
	m.Clear()
	if s := h.Stats(); s.Objects != 0 {
		t.Fatalf("after Clear: %d objects", s.Objects)
	}
	if n := len(h.larges.values); n != 0 {
		t.Fatalf("after Clear: %d large values", n)
	}
}

func TestMapForgetsAfterTheTimeToLive(t *testing.T) {
	h := open(t, 8)
	m := newMap[string, int](t, h)
	now := time.Unix(1000, 0)
	m.t.clock = func() time.Time { return now }
	if err := m.SetTTL("a", 1, time.Second); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Second - 1)
	if _, ok := m.Get("a"); !ok {
		t.Fatal("gone before its time")
	}
	now = now.Add(1)
	if _, ok := m.Get("a"); ok {
		t.Fatal("there after its time")
	}
	if err := m.SetTTL("a", 1, 0); !errors.Is(err, errNoExpiry) {
		t.Fatalf("got %v, want %v", err, errNoExpiry)
	}
}

func TestMapCompareAndSwapIsAtomic(t *testing.T) {
	h := open(t, 8)
	m := newMap[string, int](t, h)
	if err := m.Set("n", 0); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				for {
					v, ok := m.Get("n")
					if !ok {
						t.Error("the counter is gone")
						return
					}
					if ok, err := m.CompareAndSwap("n", v, v+1); err != nil {
						t.Error(err)
						return
					} else if ok {
						break
					}
				}
			}
		})
	}
	wg.Wait()
	if v, _ := m.Get("n"); v != 8000 {
		t.Fatalf("the counter is %d, want 8000", v)
	}
}

func TestMapRefusesTypesItCannotKeep(t *testing.T) {
	h := open(t, 8)
	if _, err := NewMap(h, MapConfig[string, *int]{}); err == nil {
		t.Error("a map of pointers was made")
	}
	if _, err := NewMap(h, MapConfig[float64, int]{}); err == nil {
		t.Error("a map with floating-point keys was made")
	}
	m := newMap[string, int](t, h)
	if err := m.Set(strings.Repeat("k", maxKey+1), 1); !errors.Is(err, ErrKeyTooLarge) {
		t.Errorf("got %v, want %v", err, ErrKeyTooLarge)
	}
}

// TestMapsKeepStructs as keys, whatever lies between their fields, and with strings and
// slices as values.
func TestMapsKeepStructs(t *testing.T) {
	type key struct {
		A uint8
		B uint32
		S string
	}
	type value struct {
		Name string
		Tags []string
	}
	m := newMap[key, value](t, open(t, 8))
	k, same := key{A: 1, B: 2, S: "s"}, key{A: 1, B: 2, S: "s"}
	codec.Bytes(&same)[2] = 0xff // between A and B
	want := value{"name", []string{"a", ""}}
	if err := m.Set(k, want); err != nil {
		t.Fatal(err)
	}
	if got, ok := m.Get(same); !ok || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, ok, want)
	}
	for gotKey, got := range m.All() {
		if gotKey != k || !reflect.DeepEqual(got, want) {
			t.Errorf("All: got %+v: %+v", gotKey, got)
		}
	}
}

func TestSetBudgetGivesMemoryBackAndTakesMore(t *testing.T) {
	if invariants.Enabled {
		return // one goroutine does much; "make plain" runs it
	}
	h, err := Open(Config{Budget: 16 * SegmentSize, Max: 32 * SegmentSize})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	m := newMap[int, [4000]byte](t, h)
	fill := func() {
		for i := range 20000 { // more than the largest budget has room for
			if err := m.Set(i, [4000]byte{1}); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill()
	for _, n := range []int64{32, 8, 20} {
		if err := h.SetBudget(n * SegmentSize); err != nil {
			t.Fatal(err)
		}
		if got := h.Budget(); got != n*SegmentSize {
			t.Fatalf("the budget is %d, want %d", got, n*SegmentSize)
		}
		fill()
		s := h.Stats()
		if s.Live > n*SegmentSize || s.Live < n*SegmentSize/3 { // open and free segments are a good part of eight
			t.Errorf("with %d segments: %d bytes live", n, s.Live)
		}
		checkAccounts(t, h, m.Len)
	}
}

func TestClosedHeapMissesAndRefuses(t *testing.T) {
	h := open(t, 8)
	m := newMap[int, int](t, h)
	if err := m.Set(1, 1); err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if _, ok := m.Get(1); ok {
		t.Error("a closed heap answers")
	}
	if err := m.Set(1, 1); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want %v", err, ErrClosed)
	}
}

// TestWhatNoPointerReachesIsNoBudget: a pointer has no bits for more memory than MaxBudget.
func TestWhatNoPointerReachesIsNoBudget(t *testing.T) {
	h, err := Open(Config{Budget: MaxBudget + SegmentSize})
	if err == nil {
		_ = h.Close()
	}
	if want := "want at most 549755813888"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want an error with %q", err, want)
	}
}
