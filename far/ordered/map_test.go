package ordered

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"polder/far"
	"polder/internal/invariants"
)

// counted is in the context of calls of which store counts the reads. The heap reads, too, when it
// cleans.
type counted struct{}

// store is a MemStore that counts reads, and makes them wait.
type store struct {
	*far.MemStore

	mu    sync.Mutex
	reads int
	gate  chan struct{} // if not nil, reads wait until it is closed
	lent  []*segment
}

type segment struct {
	far.Segment
	lost chan struct{}
}

func (s *segment) Lost() <-chan struct{} { return s.lost }

func (s *store) Alloc(ctx context.Context) (far.Segment, error) {
	inner, err := s.MemStore.Alloc(ctx)
	if err != nil {
		return nil, err
	}
	seg := &segment{inner, make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lent = append(s.lent, seg)
	return seg, nil
}

func (s *store) Read(ctx context.Context, ops []far.ReadOp) {
	s.mu.Lock()
	if ctx.Value(counted{}) != nil {
		s.reads++
	}
	gate := s.gate
	s.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			for i := range ops {
				ops[i].Err = ctx.Err()
			}
			return
		}
	}
	inner := make([]far.ReadOp, len(ops))
	for i, op := range ops {
		inner[i] = far.ReadOp{Seg: op.Seg.(*segment).Segment, Off: op.Off, Buf: op.Buf}
	}
	s.MemStore.Read(ctx, inner)
	for i := range ops {
		ops[i].Err = inner[i].Err
	}
}

// hold makes reads wait until the function that it returns is called.
func (s *store) hold() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gate := make(chan struct{})
	s.gate = gate
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.gate = nil
		close(gate)
	}
}

func (s *store) readSoFar() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads
}

// world is a heap of the least budget, over a store, and what pushes everything else out of local
// memory.
type world struct {
	*far.Heap
	store   *store
	ballast *far.Array[[256]byte]
}

const (
	segmentSize = 256 << 10
	ballastSize = far.MinLocal / 256 * 3 / 2
)

func newWorld(t testing.TB, segments int) *world {
	w := &world{store: &store{MemStore: far.NewMemStore(segmentSize, segments)}}
	var err error
	if w.Heap, err = far.NewHeap(w.store, far.Config{Local: far.MinLocal, HeldTooLong: time.Minute}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// push makes everything else far, by and large.
func (w *world) push(t fataler) {
	var err error
	if w.ballast == nil {
		w.ballast, err = far.NewArray[[256]byte](context.Background(), w.Heap, ballastSize, far.StructureConfig{Name: "ballast"})
	}
	if err != nil {
		t.Fatal(err)
	}
	s := w.NewScope()
	defer s.Close()
	for _, b := range w.ballast.MutChunks(s, 0, ballastSize) {
		b[0][0]++
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
}

// settle is push, after which local memory is free: what is fetched displaces nothing.
func (w *world) settle(t fataler) {
	w.push(t)
	w.ballast.Free()
	w.ballast = nil
}

// fataler is a test, of whatever kind.
type fataler interface{ Fatal(...any) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// newSmall makes a map whose pages have room for few keys, so that few keys make a high tree.
func newSmall[K cmp.Ordered, V any](h *far.Heap, name string) *Map[K, V] {
	m := must(NewMap[K](h, Config[V]{Name: name}))
	m.t.room = 160
	return m
}

// audit checks all that must hold of a tree at rest.
func (t *tree) audit(ctx context.Context) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.root.IsNil() {
		if t.n != 0 {
			return fmt.Errorf("no root, but %d keys", t.n)
		}
		return nil
	}
	n, _, err := t.auditPage(ctx, t.root, nil, nil, -1)
	if err == nil && n != t.n {
		err = fmt.Errorf("%d keys are counted, there are %d", t.n, n)
	}
	return err
}

// auditPage checks the pages from that of p down, whose keys are not below lo and, unless hi is
// nil, below hi, and returns how many keys and pages there are.
func (t *tree) auditPage(ctx context.Context, p far.Ptr[page], lo, hi []byte, level int) (keys, pages int, err error) {
	pg, err := p.Load(ctx)
	switch {
	case err != nil:
		return 0, 0, err
	case pg.n == 0:
		return 0, 0, errors.New("an empty page")
	case level >= 0 && int(pg.level) != level:
		return 0, 0, fmt.Errorf("a page of level %d, want %d", pg.level, level)
	case pg.used() > t.room:
		return 0, 0, fmt.Errorf("%d bytes are used of %d", pg.used(), t.room)
	}
	sum := 0
	for i := range int(pg.n) {
		key, value := pg.at(i)
		sum += cost(key, value)
		switch {
		case i == 0 && pg.level > 0:
			if len(key) > 0 {
				return 0, 0, fmt.Errorf("the first key of an inner page is %q", key)
			}
		case i > 0 && bytes.Compare(pg.key(i-1), key) >= 0:
			return 0, 0, fmt.Errorf("key %q follows %q", key, pg.key(i-1))
		case bytes.Compare(key, lo) < 0 || hi != nil && bytes.Compare(key, hi) >= 0:
			return 0, 0, fmt.Errorf("key %q is not in [%q, %q)", key, lo, hi)
		}
	}
	if sum != pg.used() {
		return 0, 0, fmt.Errorf("records are %d bytes, a page counts %d", sum, pg.used())
	}
	if pg.level == 0 {
		return int(pg.n), 1, nil
	}
	pages = 1
	for i := range int(pg.n) {
		from, to := lo, hi
		if i > 0 {
			from = pg.key(i)
		}
		if i+1 < int(pg.n) {
			to = pg.key(i + 1)
		}
		c := pg.child(i)
		n, below, err := t.auditPage(ctx, c.ref.Ptr(t.h), from, to, int(pg.level)-1)
		if err == nil && n != int(c.count) {
			err = fmt.Errorf("a child of level %d counts %d keys and has %d", pg.level-1, c.count, n)
		}
		if err != nil {
			return 0, 0, err
		}
		keys, pages = keys+n, pages+below
	}
	return keys, pages, nil
}

// entry is what a model has of a key.
type entry struct{ k, v string }

func (e entry) compare(k string) int { return cmp.Compare(e.k, k) }

// model is a map and what it should be.
type model struct {
	m    *Map[string, string]
	s    *far.Scope
	want []entry
}

// find is the place of k among what the map should be.
func (md *model) find(k string) (int, bool) {
	return slices.BinarySearchFunc(md.want, k, entry.compare)
}

func (md *model) set(t *rapid.T, k, v string) {
	if err := md.m.Set(context.Background(), k, v); err != nil {
		t.Fatal(err)
	}
	i, found := md.find(k)
	if !found {
		md.want = slices.Insert(md.want, i, entry{})
	}
	md.want[i] = entry{k, v}
}

func (md *model) remove(t *rapid.T, k string) {
	i, found := md.find(k)
	ok, err := md.m.Delete(context.Background(), k)
	if err != nil || ok != found {
		t.Fatalf("Delete(%q): got %v, %v, want %v", k, ok, err, found)
	}
	if found {
		md.want = slices.Delete(md.want, i, i+1)
	}
}

// walked checks what an iteration yields, of which it takes the first few.
func (md *model) walked(t *rapid.T, what string, seq iter.Seq2[string, string], want []entry, few int) {
	var got []entry
	for k, v := range seq {
		if got = append(got, entry{k, v}); len(got) == few {
			break
		}
	}
	want = want[:min(len(want), max(few, 0))]
	if err := md.s.Err(); err != nil || !slices.Equal(got, want) {
		t.Fatalf("%s: got %v, %v, want %v", what, got, err, want)
	}
}

// A map is at any time what a sorted slice is, whether it is local or far, and however
// long keys and values are.
func TestAMapIsAsASortedSlice(t *testing.T) {
	w := newWorld(t, 400)
	ctx := context.Background()
	var far far.ClassStats
	rapid.Check(t, func(t *rapid.T) {
		md := &model{s: w.NewScope()}
		defer md.s.Close()
		longKey, longValue := 470, 20
		switch rapid.IntRange(0, 2).Draw(t, "kind") {
		case 0: // a high tree
			md.m = newSmall[string, string](w.Heap, "model")
			longKey, longValue = 8, 10
		case 1:
			md.m = must(NewMap[string](w.Heap, Config[string]{Name: "model"}))
		case 2:
			md.m = must(NewMap[string](w.Heap, Config[string]{Name: "model"}))
			longKey, longValue = 20, 470
		}
		defer md.m.Free()
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		text := func(most int) string {
			b := make([]byte, r.IntN(most+1))
			for i := range b {
				b[i] = "\x00ab\xff"[r.IntN(4)]
			}
			return string(b)
		}
		some := func() string { // often one that is there
			if len(md.want) > 0 && r.IntN(2) == 0 {
				return md.want[r.IntN(len(md.want))].k
			}
			return text(longKey)
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				if err := md.m.t.audit(ctx); err != nil {
					t.Fatal(err)
				}
				if n := md.m.Len(); n != len(md.want) {
					t.Fatalf("Len: got %d, want %d", n, len(md.want))
				}
			},
			"set": func(t *rapid.T) {
				for range r.IntN(60) {
					md.set(t, some(), text(longValue))
				}
			},
			"set in order": func(t *rapid.T) {
				k := text(longKey / 2)
				for i := range r.IntN(100) {
					md.set(t, k+fmt.Sprintf("%04d", i)[:min(4, longKey/2)], text(longValue))
				}
			},
			"delete": func(t *rapid.T) {
				for range r.IntN(60) {
					md.remove(t, some())
				}
			},
			"delete in order": func(t *rapid.T) {
				if len(md.want) == 0 {
					return
				}
				i := r.IntN(len(md.want))
				for _, e := range slices.Clone(md.want[i:min(i+r.IntN(150), len(md.want))]) {
					md.remove(t, e.k)
				}
			},
			"get": func(t *rapid.T) {
				k := some()
				i, found := md.find(k)
				v, ok, err := md.m.Get(ctx, k)
				if err != nil || ok != found || ok && v != md.want[i].v {
					t.Fatalf("Get(%q): got %q, %v, %v, want %v", k, v, ok, err, found)
				}
				if n, err := md.m.Rank(ctx, k); err != nil || n != i {
					t.Fatalf("Rank(%q): got %d, %v, want %d", k, n, err, i)
				}
			},
			"at": func(t *rapid.T) {
				i := r.IntN(len(md.want)+2) - 1
				check := func(what string, i int, k, v string, ok bool, err error) {
					there := i >= 0 && i < len(md.want)
					if err != nil || ok != there || ok && md.want[i] != (entry{k, v}) {
						t.Fatalf("%s, %d of %d: got %q, %q, %v, %v", what, i, len(md.want), k, v, ok, err)
					}
				}
				k, v, ok, err := md.m.At(ctx, i)
				check("At", i, k, v, ok, err)
				k, v, ok, err = md.m.Min(ctx)
				check("Min", 0, k, v, ok, err)
				k, v, ok, err = md.m.Max(ctx)
				check("Max", len(md.want)-1, k, v, ok, err)
			},
			"walk": func(t *rapid.T) {
				few := cmp.Or(r.IntN(2)*r.IntN(50), math.MaxInt)
				lo, hi := some(), some()
				i, _ := md.find(lo)
				j, _ := md.find(hi)
				md.walked(t, "All", md.m.All(md.s), md.want, few)
				md.walked(t, "From "+lo, md.m.From(md.s, lo), md.want[i:], few)
				md.walked(t, "Range "+lo+" to "+hi, md.m.Range(md.s, lo, hi), md.want[i:max(i, j)], few)
				down := slices.Clone(md.want)
				slices.Reverse(down)
				md.walked(t, "Backward", md.m.Backward(md.s), down, few)
				above, _ := md.find(lo + "\x00")
				md.walked(t, "BackwardFrom "+lo, md.m.BackwardFrom(md.s, lo), down[len(down)-above:], few)
				var keys []string
				for k := range md.m.Keys(md.s) {
					keys = append(keys, k)
				}
				if err := md.s.Err(); err != nil || !slices.EqualFunc(md.want, keys, func(e entry, k string) bool { return e.k == k }) {
					t.Fatalf("Keys: got %q, %v", keys, err)
				}
			},
			"push": func(t *rapid.T) {
				if r.IntN(4) == 0 {
					w.push(t)
				}
			},
			"clear": func(t *rapid.T) {
				if r.IntN(8) == 0 {
					md.m.Clear()
					md.want = nil
				}
			},
		})
		md.set(t, "last", "v") // so that something is far, whatever was drawn
		w.push(t)
		md.walked(t, "All in the end", md.m.All(md.s), md.want, math.MaxInt)
		st := md.m.Stats()
		far.Add(&st)
	})
	if far.Misses+far.Prefetched == 0 || far.Evacuated == 0 {
		t.Errorf("nothing was far: %+v", far)
	}
}

// Keys of every type are in the order of cmp.Compare, and come out as they went in.
func TestKeysAreInOrder(t *testing.T) {
	inOrder(t, rapid.Int())
	inOrder(t, rapid.Int8())
	inOrder(t, rapid.Int16())
	inOrder(t, rapid.Int32())
	inOrder(t, rapid.Uint16())
	inOrder(t, rapid.Uint64())
	inOrder(t, rapid.Map(rapid.Uint8(), func(u uint8) uintptr { return uintptr(u) << 60 }))
	inOrder(t, rapid.Map(rapid.Int64(), func(d int64) time.Duration { return time.Duration(d) }))
	inOrder(t, rapid.String())
	odd := rapid.SampledFrom([]float64{math.NaN(), math.Copysign(math.NaN(), -1), 0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.SmallestNonzeroFloat64})
	inOrder(t, rapid.OneOf(rapid.Float64(), odd))
	inOrder(t, rapid.OneOf(rapid.Float32(), rapid.Map(odd, func(f float64) float32 { return float32(f) })))
}

func inOrder[K cmp.Ordered](t *testing.T, keys *rapid.Generator[K]) {
	c, err := newKeyCoder[K]()
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := keys.Draw(t, "a"), keys.Draw(t, "b")
		var bufA, bufB [8]byte
		x, y := c.view(&a, &bufA), c.view(&b, &bufB)
		if got, want := bytes.Compare(x, y), cmp.Compare(a, b); got != want {
			t.Fatalf("%v (%x) and %v (%x) compare as %d, want %d", a, x, b, y, got, want)
		}
		var back K
		if err := c.decode(x, &back); err != nil || cmp.Compare(back, a) != 0 {
			t.Fatalf("%v comes back as %v, %v", a, back, err)
		}
		if c.size > 0 && c.decode(x[:len(x)-1], &back) == nil {
			t.Fatalf("%x, cut off, is taken for a key", x)
		}
	})
}

// fill sets n keys in no order, each to its own text.
func fill(t testing.TB, m *Map[int, string], n int) {
	t.Helper()
	for _, k := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
		if err := m.Set(t.Context(), k, fmt.Sprint("value ", k)); err != nil {
			t.Fatal(err)
		}
	}
}

// What is lost is said to be: never absent, never another value. The rest is found, and Clear
// makes the map one again of which nothing is lost.
func TestLostPagesAreReported(t *testing.T) {
	w := newWorld(t, 400)
	m := newSmall[int, string](w.Heap, "lost")
	const n = 3000
	fill(t, m, n)
	w.push(t)
	for k := 0; k < n; k += 100 { // without the root all would be lost
		if _, _, err := m.Get(t.Context(), k); err != nil {
			t.Fatal(err)
		}
	}
	w.store.mu.Lock()
	for i, seg := range w.store.lent {
		if i%3 == 0 {
			close(seg.lost)
		}
	}
	w.store.mu.Unlock()
	var lost *far.LostError
	found, gone := 0, 0
	for k := range n {
		switch v, ok, err := m.Get(t.Context(), k); {
		case err == nil && ok && v == fmt.Sprint("value ", k):
			found++
		case !errors.As(err, &lost):
			t.Fatalf("Get(%d): got %q, %v, %v, want the value or a LostError", k, v, ok, err)
		default:
			gone++
			if err := m.Set(t.Context(), k, "new"); !errors.As(err, &lost) {
				t.Fatalf("Set(%d) in a lost page: got %v", k, err)
			}
			if _, err := m.Delete(t.Context(), k); !errors.As(err, &lost) {
				t.Fatalf("Delete(%d) in a lost page: got %v", k, err)
			}
		}
	}
	if found == 0 || gone == 0 {
		t.Fatalf("%d keys are found and %d lost: the test tests nothing", found, gone)
	}
	if m.Len() != n {
		t.Errorf("Len: got %d, want %d", m.Len(), n)
	}
	s := w.NewScope()
	defer s.Close()
	next := 0
	for k := range m.All(s) {
		if k != next {
			t.Fatalf("All: got %d, want %d", k, next)
		}
		next++
	}
	if err := s.Err(); !errors.As(err, &lost) {
		t.Errorf("All has ended after %d keys with %v, want a LostError", next, err)
	}
	m.Clear()
	fill(t, m, 100)
	if err := m.t.audit(t.Context()); err != nil || m.Len() != 100 {
		t.Errorf("after Clear: %d keys, %v", m.Len(), err)
	}
}

// A Set that there is no memory for changes nothing. What can be read of a full heap is right, and
// when the map has been cleared there is room again.
func TestAFullHeapChangesNothing(t *testing.T) {
	w := newWorld(t, 8)
	m := must(NewMap[int](w.Heap, Config[[200]byte]{}))
	key := func(i int) int { return i * 7919 % 100_000 }
	value := func(k, round int) (v [200]byte) {
		for i := range v {
			v[i] = byte(k>>(i%2*8) + round)
		}
		return v
	}
	for round := range 2 {
		n := 1
		err := m.Set(t.Context(), key(0), value(key(0), round))
		for deadline := time.Now().Add(time.Minute); err != nil && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			err = m.Set(t.Context(), key(0), value(key(0), round)) // the evacuator comes upon what was freed
		}
		for ; err == nil; n++ {
			err = m.Set(t.Context(), key(n), value(key(n), round))
		}
		if n--; !errors.Is(err, far.ErrFull) || n < 5000 {
			t.Fatalf("Set after %d keys: got %v, want ErrFull", n, err)
		}
		if got := m.Len(); got != n {
			t.Errorf("Len: got %d, want %d", got, n)
		}
		read := 0
		for i := range n + 1 {
			switch v, ok, err := m.Get(far.NoWait, key(i)); {
			case err == nil && ok == (i < n) && (!ok || v == value(key(i), round)):
				read++
			case !errors.Is(err, far.ErrWouldBlock):
				t.Fatalf("Get(%d) in a full heap: %v, %v", key(i), ok, err)
			}
		}
		if read == 0 { // what is local is what was set last, or pages on their way
			switch v, ok, err := m.Get(t.Context(), key(0)); {
			case err == nil && (!ok || v != value(key(0), round)):
				t.Errorf("Get of the first key in a full heap: %q, %v", v, ok)
			case err != nil && !errors.Is(err, far.ErrFull) && !errors.Is(err, far.ErrScopeFull):
				t.Errorf("Get of the first key in a full heap: %v", err)
			}
		}
		for i := 0; i < n; i += 100 { // which makes room, if it can be had
			if ok, err := m.Delete(t.Context(), key(i)); ok == (err != nil) || err != nil && !errors.Is(err, far.ErrFull) && !errors.Is(err, far.ErrScopeFull) {
				t.Fatalf("Delete in a full heap: %v, %v", ok, err)
			}
		}
		m.Clear()
		if got := w.Stats().Pointers; got != 0 {
			t.Errorf("%d pages are left of an empty map", got)
		}
	}
}

// farKey returns a key whose page is far.
func farKey(t *testing.T, w *world, m *Map[int, string], n int) int {
	t.Helper()
	for range 10 {
		for k := range n {
			if _, _, err := m.Get(far.NoWait, k); errors.Is(err, far.ErrWouldBlock) {
				return k
			}
		}
		w.push(t)
	}
	t.Fatal("nothing is far")
	return 0
}

func TestNoWaitChangesNothing(t *testing.T) {
	w := newWorld(t, 400)
	m := must(NewMap[int](w.Heap, Config[string]{}))
	const n = 2000
	fill(t, m, n)
	w.push(t)
	k := farKey(t, w, m, n)
	would := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, far.ErrWouldBlock) {
			t.Errorf("%s: got %v, want ErrWouldBlock", what, err)
		}
	}
	would("Set", m.Set(far.NoWait, k, "new"))
	_, err := m.Delete(far.NoWait, k)
	would("Delete", err)
	_, err = m.Rank(far.NoWait, k)
	would("Rank", err)
	_, _, _, err = m.At(far.NoWait, k)
	would("At", err)
	s := w.NewScope()
	defer s.Close()
	s.SetContext(far.NoWait)
	for range m.From(s, k) {
		t.Error("an iteration has gone on")
	}
	would("From", s.Err())
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := m.Get(canceled, k); !errors.Is(err, context.Canceled) {
		t.Errorf("Get, canceled: got %v, want context.Canceled", err)
	}
	if v, ok, err := m.Get(t.Context(), k); v != fmt.Sprint("value ", k) || !ok || err != nil {
		t.Errorf("Get(%d): got %q, %v, %v", k, v, ok, err)
	}
	if _, _, err := m.Get(canceled, k); err != nil {
		t.Errorf("Get of what is local, canceled: got %v", err)
	}
}

// Who waits for the store holds up nobody else: neither readers nor writers of what is local.
func TestNobodyWaitsForTheStoreOfOthers(t *testing.T) {
	w := newWorld(t, 400)
	m := must(NewMap[int](w.Heap, Config[string]{}))
	const n = 2000
	fill(t, m, n)
	w.push(t)
	if _, _, _, err := m.Max(t.Context()); err != nil {
		t.Fatal(err)
	}
	k := farKey(t, w, m, n-200)
	release := w.store.hold()
	slow := context.WithValue(t.Context(), counted{}, true)
	before := w.store.readSoFar()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer release()
	wg.Go(func() {
		if err := m.Set(slow, k, "late"); err != nil {
			t.Error(err)
		}
	})
	wg.Go(func() {
		if v, ok, err := m.Get(slow, k); err != nil || !ok {
			t.Errorf("Get: %q, %v, %v", v, ok, err)
		}
	})
	for deadline := time.Now().Add(time.Minute); w.store.readSoFar() == before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing is read")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := m.Set(ctx, n-1, "new"); err != nil {
		t.Error(err)
	}
	if v, _, err := m.Get(ctx, n-1); v != "new" || err != nil {
		t.Errorf("Get: got %q, %v", v, err)
	}
}

// A walk that waits for a far leaf asks for others beside it: few at first, and then more, but none that
// it will not come to.
func TestAWalkReadsAhead(t *testing.T) {
	w := newWorld(t, 400)
	m := must(NewMap[int](w.Heap, Config[string]{}))
	const n = 20_000
	fill(t, m, n)
	w.push(t)
	s := w.NewScope()
	defer s.Close()
	for _, back := range []bool{false, true} {
		wk := &walk{o: m.t.begin(), back: back}
		for _, most := range []int{1, 3, 7, 15, 31, 31} {
			var up *page
			var asked, want []far.AnyRef
			err := wk.o.try(t.Context(), false, func() {
				if !wk.o.find(nil, back) { // the first leaf or, if back, the last one
					return
				}
				wk.o.path = wk.o.path[:len(wk.o.path)-1]
				st := wk.o.path[len(wk.o.path)-1]
				up = st.pg
				wk.ahead = most / 2
				wk.lookAhead()
				asked = slices.Clone(wk.o.missing)
				wk.o.missing = wk.o.missing[:0]
				for k := 1; k <= most; k++ {
					i := st.i + k
					if back {
						i = st.i - k
					}
					if i < 0 || i >= int(up.n) {
						break
					}
					if p := up.child(i).ref.Ptr(w.Heap); !p.IsLocal() {
						want = append(want, p.Any())
					}
				}
			})
			if err != nil || up == nil || up.level != 1 {
				t.Fatalf("there is no way to a leaf: %v", err)
			}
			if wk.ahead != most || len(asked) > most || !slices.Equal(asked, want) {
				t.Errorf("back %v: %d are asked for beside a leaf, of %d, want %d of %d", back, len(asked), wk.ahead, len(want), most)
			}
		}
		wk.o.end()
	}
	for what, seq := range map[string]iter.Seq2[int, string]{"All": m.All(s), "Backward": m.Backward(s)} {
		keys := 0
		for range seq {
			keys++
		}
		if s.Err() != nil || keys != n {
			t.Errorf("%s: %d keys, %v, want %d", what, keys, s.Err(), n)
		}
	}
}

func TestAnEmptyMapCostsLessThanAKiB(t *testing.T) {
	w := newWorld(t, 100)
	s := w.Stats()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	maps := make([]*Map[string, string], 100)
	for i := range maps {
		maps[i] = must(NewMap[string](w.Heap, Config[string]{}))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	got := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / int64(len(maps))
	t.Logf("an empty map takes %d bytes", got)
	if got >= 1<<10 {
		t.Errorf("making an empty map takes %d bytes, want less than 1024", got)
	}
	if now := w.Stats(); now.LocalLive != s.LocalLive || now.Index != s.Index {
		t.Errorf("empty maps take %d bytes of local memory and %d of index", now.LocalLive-s.LocalLive, now.Index-s.Index)
	}
	for _, m := range maps {
		m.Free()
	}
}

// What nobody uses takes no local memory but a word for each page.
func TestAKeyTakesLessThanAByteOfLocalMemory(t *testing.T) {
	w := newWorld(t, 400)
	m := must(NewMap[int](w.Heap, Config[int]{}))
	const n = 50_000
	for k := range n {
		if err := m.Set(t.Context(), k*7919%n, k); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.Stats().Index; got >= n {
		t.Errorf("%d bytes of local memory lead to %d keys", got, n)
	}
}

// Free gives back all memory, what is far without reading it, and so do deletions as they
// come.
func TestWhatIsFreedIsGivenBack(t *testing.T) {
	w := newWorld(t, 400)
	m := newSmall[int, string](w.Heap, "shrinks")
	const n = 4000
	fill(t, m, n)
	_, most, err := m.t.auditPage(t.Context(), m.t.root, nil, nil, -1)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range rand.New(rand.NewPCG(3, 4)).Perm(n)[:n*9/10] {
		if ok, err := m.Delete(t.Context(), k); !ok || err != nil {
			t.Fatalf("Delete(%d): %v, %v", k, ok, err)
		}
	}
	if err := m.t.audit(t.Context()); err != nil {
		t.Error(err)
	}
	_, pages, err := m.t.auditPage(t.Context(), m.t.root, nil, nil, -1)
	if err != nil || pages > most/4 {
		t.Errorf("a tenth of the keys takes %d of %d pages (%v), want a quarter at most", pages, most, err)
	}
	if got := w.Stats().Pointers; got != pages {
		t.Errorf("%d pages are not freed", got-pages)
	}
	w.settle(t)
	release := w.store.hold()
	m.Free()
	release()
	given := func() bool {
		s := w.Stats()
		return s.Pointers == 0 && s.FarLive == 0 && s.LocalLive == 0
	}
	for deadline := time.Now().Add(time.Minute); !given(); time.Sleep(time.Millisecond) { // what is just being evacuated settles
		if s := w.Stats(); time.Now().After(deadline) {
			t.Fatalf("after Free: %d pointers, %d bytes far and %d local", s.Pointers, s.FarLive, s.LocalLive)
		}
	}
}

func TestWhatIsTooLargeIsRefused(t *testing.T) {
	w := newWorld(t, 100)
	m := must(NewMap[string](w.Heap, Config[string]{Name: "words"}))
	for _, c := range []struct {
		key, value int
		ok         bool
	}{{MaxKey, MaxEntry - MaxKey, true}, {MaxKey + 1, 0, false}, {MaxKey, MaxEntry - MaxKey + 1, false}, {0, MaxEntry, true}, {0, MaxEntry + 1, false}} {
		err := m.Set(t.Context(), strings.Repeat("k", c.key), strings.Repeat("v", c.value))
		if (err == nil) != c.ok || !c.ok && !errors.Is(err, far.ErrTooLarge) {
			t.Errorf("a key of %d and a value of %d: got %v", c.key, c.value, err)
		}
	}
	if m.Len() != 2 {
		t.Errorf("Len: got %d, want 2", m.Len())
	}
	if _, err := NewMap[int](w.Heap, Config[[MaxEntry]byte]{}); !errors.Is(err, far.ErrTooLarge) {
		t.Errorf("values of %d bytes: got %v", MaxEntry, err)
	}
	if _, err := NewMap[int](w.Heap, Config[struct{ Peer *int }]{}); err == nil || !strings.Contains(err.Error(), ".Peer is of type *int") {
		t.Errorf("values with pointers: got %v", err)
	}
}

func TestIteratingInAnOpenScopeIsRefused(t *testing.T) {
	w := newWorld(t, 100)
	m := must(NewMap[int](w.Heap, Config[int]{}))
	s := w.NewScope()
	defer s.Close()
	s.Enter()
	for range m.All(s) {
		t.Error("a key of an empty map")
	}
	s.Leave()
	if err := s.Err(); !errors.Is(err, far.ErrScopeOpen) {
		t.Errorf("got %v, want ErrScopeOpen", err)
	}
}

func TestAClosedHeapSaysSo(t *testing.T) {
	h := must(far.NewHeap(far.NewMemStore(segmentSize, 10), far.Config{Local: far.MinLocal}))
	m := must(NewMap[int](h, Config[int]{}))
	if err := m.Set(t.Context(), 1, 1); err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := m.Get(t.Context(), 1); !errors.Is(err, far.ErrClosed) {
		t.Errorf("Get: got %v, want ErrClosed", err)
	}
	if err := m.Set(t.Context(), 2, 1); !errors.Is(err, far.ErrClosed) {
		t.Errorf("Set: got %v, want ErrClosed", err)
	}
	m.Free()
}

// Get of what is local makes no garbage.
func TestGetMakesNoGarbage(t *testing.T) {
	if invariants.Enabled {
		t.Log("with the race detector, pools drop things")
		return
	}
	w := newWorld(t, 100)
	m := must(NewMap[string](w.Heap, Config[int]{}))
	for i := range 1000 {
		if err := m.Set(t.Context(), fmt.Sprint(i), i); err != nil {
			t.Fatal(err)
		}
	}
	ctx := context.Background()
	if got := testing.AllocsPerRun(1000, func() {
		if v, ok, err := m.Get(ctx, "77"); v != 77 || !ok || err != nil {
			t.Errorf("got %d, %v, %v", v, ok, err)
		}
	}); got != 0 {
		t.Errorf("Get makes %v allocations, want none", got)
	}
}

func BenchmarkGet(b *testing.B) {
	w := newWorld(b, 400)
	m := must(NewMap[int](w.Heap, Config[int]{}))
	const n = 50_000
	for k := range n {
		if err := m.Set(b.Context(), k, k); err != nil {
			b.Fatal(err)
		}
	}
	ctx, r := context.Background(), rand.New(rand.NewPCG(1, 1))
	for b.Loop() {
		if _, ok, err := m.Get(ctx, r.IntN(n)); !ok || err != nil {
			b.Fatal(err)
		}
	}
}

// TestAFullMapCanBeReadForEver: when neither far memory nor what is local has room for more,
// everything can be read, over and over.
func TestAFullMapCanBeReadForEver(t *testing.T) {
	w := newWorld(t, 8)
	m := must(NewMap[int](w.Heap, Config[[200]byte]{}))
	key := func(i int) int { return i * 7919 % 100_000 }
	n := 0
	for ; m.Set(t.Context(), key(n), [200]byte{byte(n)}) == nil; n++ {
	}
	rounds, some := 1, min(n, 4000)
	if os.Getenv("TEST_SOAK") != "" {
		rounds, some = 10, n
	}
	for round := range rounds {
		for i := range some {
			if v, ok, err := m.Get(t.Context(), key(i)); err != nil || !ok || v[0] != byte(i) {
				t.Fatalf("round %d, key %d of %d: %v, %v", round, i, n, ok, err)
			}
		}
	}
}
