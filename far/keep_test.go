package far

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"polder/far/heap"
	"polder/far/record"
	"polder/internal/invariants"
)

// keeper is a Keeper in this process, of which a test can make a copy at any moment, as if the process had
// been killed then.
type keeper struct {
	*heap.MemStore
	mu     sync.Mutex
	root   []byte
	segs   map[string]*heap.MemSegment
	reopen map[string]bool // since it was copied
	fails  error           // of SetRoot
	roots  int             // how many have been set
}

func newKeeper(size, segments int) *keeper {
	return &keeper{MemStore: heap.NewMemStore(size, segments), segs: map[string]*heap.MemSegment{}}
}

// copy is what a process that is started now finds.
func (k *keeper) copy() *keeper {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := newKeeper(k.SegmentSize(), k.Most())
	n.root = slices.Clone(k.root)
	n.reopen = map[string]bool{}
	for name, s := range k.segs {
		s.Mu.RLock()
		if s.Mem != nil {
			n.segs[name] = n.MemStore.Adopt(name, slices.Clone(s.Mem))
		}
		s.Mu.RUnlock()
	}
	return n
}

func (k *keeper) Alloc(ctx context.Context) (heap.Segment, error) {
	s, err := k.MemStore.Alloc(ctx)
	if err == nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.segs[s.Name()] != nil {
			panic("BUG: two segments of a name")
		}
		k.segs[s.Name()] = s.(*heap.MemSegment)
	}
	return s, err
}

func (k *keeper) Root(context.Context) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.root, nil
}

func (k *keeper) SetRoot(_ context.Context, root []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fails != nil {
		return k.fails
	}
	k.root, k.roots = slices.Clone(root), k.roots+1
	return nil
}

func (k *keeper) Reopen(_ context.Context, name string) (heap.Segment, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.segs[name]
	if s == nil {
		return nil, &heap.LostError{Segment: name}
	}
	k.reopen[name] = true
	return s, nil
}

func (k *keeper) Wants() bool { return false }

func (k *keeper) Prune(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, s := range maps.Clone(k.segs) {
		if !k.reopen[name] {
			if err := s.Free(ctx); err != nil {
				return err
			}
			delete(k.segs, name)
		}
	}
	return nil
}

// openKept opens the heap in k. With early set words are settled as soon as they can be.
func openKept(t testing.TB, k *keeper, local int64, early bool) *Heap {
	t.Helper()
	k.reopen = map[string]bool{}
	cfg := Config{Local: local}
	lay, err := layoutFor(k, &cfg)
	if err != nil {
		t.Fatal(err)
	}
	lay.early = early
	h, err := open(t.Context(), k, cfg, lay)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func closeHeap(t testing.TB, h *Heap) {
	t.Helper()
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
}

// checkContents fails unless m has exactly what want has.
func checkContents(t testing.TB, m *ByteMap, want map[string]Entry) {
	t.Helper()
	if m.Len() != len(want) {
		t.Errorf("there are %d entries, want %d", m.Len(), len(want))
	}
	for k, e := range want {
		got, err := m.Get(t.Context(), []byte(k), nil)
		if err != nil || string(got.Value) != string(e.Value) || got.Tag != e.Tag || !got.Expire.Equal(e.Expire) {
			t.Fatalf("key %q: %.20q (%d bytes), tag %d, expires %v: %v; want %.20q (%d bytes), tag %d, %v", k, got.Value, len(got.Value), got.Tag, got.Expire, err, e.Value, len(e.Value), e.Tag, e.Expire)
		}
	}
	n := 0
	for cursor := uint64(0); ; {
		var err error
		if cursor, err = m.Scan(t.Context(), cursor, func(key []byte, _ Entry) {
			n++
			if _, ok := want[string(key)]; !ok {
				t.Fatalf("key %q is there", key)
			}
		}); err != nil {
			t.Fatal(err)
		}
		if cursor == 0 {
			break
		}
	}
	if n < len(want) {
		t.Errorf("a scan finds %d entries, want %d", n, len(want))
	}
}

func anyEntry(r *rand.Rand) Entry {
	n := r.IntN(200)
	switch r.IntN(50) {
	case 0:
		n = r.IntN(4 << 10)
	case 1:
		n = 20<<10 + r.IntN(100<<10)
	}
	e := Entry{Value: make([]byte, n), Tag: uint8(r.IntN(4))}
	for i := range e.Value {
		e.Value[i] = byte(r.Uint32())
	}
	if r.IntN(5) == 0 {
		e.Expire = time.UnixMilli(time.Now().Add(time.Hour).UnixMilli() + r.Int64N(1000))
	}
	return e
}

// A heap that is closed and opened again, again and again, with more memory and with less, has what it had.
func TestAHeapIsOpenedAgain(t *testing.T) {
	for _, early := range []bool{false, true} {
		t.Run(fmt.Sprintf("early=%v", early), func(t *testing.T) {
			k := newKeeper(heap.MinSegmentSize, 600)
			r := rand.New(rand.NewPCG(1, 2))
			want := map[string]Entry{}
			rounds := 6
			if invariants.Enabled { // "make plain" has them all
				rounds = 3
			}
			for round := range rounds {
				h := openKept(t, k, int64(4+round%3)<<20, early)
				m := h.NewByteMap("things")
				checkContents(t, m, want)
				if round == 0 && h.NewByteMap("other") == m {
					t.Fatal("two maps are one")
				}
				want = churn(t, m, r, want, 8000, 3000)
				closeHeap(t, h)
				k = k.copy()
			}
		})
	}
}

// change is one of those that TestACheckpointIsWhole makes: a few keys in one transaction.
type change struct {
	clear bool
	keys  []string
	es    []*Entry // nil deletes
}

func (c change) apply(want map[string]Entry) {
	if c.clear {
		clear(want)
	}
	for i, k := range c.keys {
		if c.es[i] == nil {
			delete(want, k)
		} else {
			want[k] = *c.es[i]
		}
	}
}

// Whenever the process ends, the heap is opened again as it was between two transactions, at the last
// checkpoint, or at one that was just being taken.
func TestACheckpointIsWhole(t *testing.T) {
	for _, early := range []bool{false, true} {
		t.Run(fmt.Sprintf("early=%v", early), func(t *testing.T) {
			k := newKeeper(heap.MinSegmentSize, 600)
			h := openKept(t, k, heap.MinLocal, early)
			m, seq := h.NewByteMap("things"), h.NewByteMap("sequence")
			var mu sync.Mutex
			var history []change
			done := make(chan struct{})
			var wg sync.WaitGroup
			wg.Go(func() {
				r := rand.New(rand.NewPCG(3, 4))
				txn := h.NewTxn()
				for {
					select {
					case <-done:
						return
					default:
					}
					c := change{clear: r.IntN(400) == 0}
					for range r.IntN(5) {
						c.keys = append(c.keys, fmt.Sprintf("key %d", r.IntN(3000)))
						if e := anyEntry(r); r.IntN(4) == 0 {
							c.es = append(c.es, nil)
						} else {
							c.es = append(c.es, &e)
						}
					}
					mu.Lock()
					history = append(history, c)
					n := len(history)
					mu.Unlock()
					if c.clear {
						txn.Clear(m)
					}
					var err error
					for i, key := range c.keys {
						if c.es[i] == nil {
							_, err = txn.Delete(t.Context(), m, []byte(key))
						} else {
							err = txn.Set(t.Context(), m, []byte(key), *c.es[i])
						}
						if err != nil {
							t.Error(err)
						}
					}
					if err := txn.Set(t.Context(), seq, []byte("n"), Entry{Value: fmt.Append(nil, n)}); err != nil {
						t.Error(err)
					}
					txn.Commit()
				}
			})
			type crash struct {
				k     *keeper
				least int // changes that a checkpoint has for certain
			}
			var crashes []crash
			least := 0
			r := rand.New(rand.NewPCG(5, 6))
			rounds := 6
			if invariants.Enabled { // "make plain" has them all
				rounds = 3
			}
			for range rounds {
				at := time.Duration(r.IntN(int(30 * time.Millisecond)))
				wg.Go(func() {
					time.Sleep(at)
					mu.Lock()
					c := crash{least: least}
					mu.Unlock()
					c.k = k.copy()
					mu.Lock()
					crashes = append(crashes, c)
					mu.Unlock()
				})
				time.Sleep(15 * time.Millisecond)
				mu.Lock()
				n := len(history) - 1
				mu.Unlock()
				if err := h.Checkpoint(t.Context()); err != nil {
					t.Error(err)
				}
				mu.Lock()
				least = max(n, 0)
				crashes = append(crashes, crash{k.copy(), least})
				mu.Unlock()
				time.Sleep(15 * time.Millisecond)
			}
			close(done)
			wg.Wait()
			closeHeap(t, h)
			crashes = append(crashes, crash{k.copy(), len(history)})
			for i, c := range crashes {
				h := openKept(t, c.k, heap.MinLocal, early)
				n := 0
				if e, err := h.NewByteMap("sequence").Get(t.Context(), []byte("n"), nil); err == nil {
					n, _ = strconv.Atoi(string(e.Value))
				} else if err != ErrNotFound {
					t.Fatal(err)
				}
				if n < c.least {
					t.Errorf("crash %d: %d changes are there, but a checkpoint had %d", i, n, c.least)
				}
				want := map[string]Entry{}
				for _, ch := range history[:n] {
					ch.apply(want)
				}
				checkContents(t, h.NewByteMap("things"), want)
				closeHeap(t, h)
			}
		})
	}
}

// What is wrong with a checkpoint is an error, and never a heap that does not know what it has.
func FuzzCheckpoint(f *testing.F) {
	k := newKeeper(heap.MinSegmentSize, 100)
	h := openKept(f, k, heap.MinLocal, true)
	m := h.NewByteMap("things")
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 300 {
		if err := m.Set(f.Context(), fmt.Append(nil, i), anyEntry(r)); err != nil {
			f.Fatal(err)
		}
	}
	_ = h.Checkpoint(f.Context())
	if err := m.Set(f.Context(), []byte("dirty"), Entry{Value: []byte("yes")}); err != nil {
		f.Fatal(err)
	}
	b, _, _, err := h.maps.Freeze(make([]byte, 1<<20), 0)
	if err != nil {
		f.Fatal(err)
	}
	h.core.Far.Unhold()
	f.Add(append(binary.LittleEndian.AppendUint32(slices.Clone(b), 5), "state"...))
	closeHeap(f, h)
	left := k.copy()
	f.Fuzz(func(t *testing.T, b []byte) {
		k := left.copy()
		k.reopen = map[string]bool{}
		cfg := Config{Local: heap.MinLocal}
		lay, err := layoutFor(k, &cfg)
		if err != nil {
			t.Fatal(err)
		}
		h, err := prepare(k, cfg, lay)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err = h.core.Far.OpenKeeper(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		_ = h.decode(t.Context(), &record.Decoder{B: b})
		if err := h.abandon(); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzRoot(f *testing.F) {
	f.Add((&record.Root{Heap: 1, Epoch: 2, Seed: 3, Length: 4, Parts: []record.Part{{Name: "a", Epoch: 1, Position: 5, Length: 4}}}).Encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := record.DecodeRoot(b)
		if err == nil && !bytes.Equal(r.Encode(), b) {
			t.Fatalf("%+v is not %q", r, b)
		}
	})
}

// A checkpoint that cannot be kept changes nothing: the heap opens as the last one has it, and what that
// refers to is still there.
func TestACheckpointThatFailsIsNone(t *testing.T) {
	k := newKeeper(heap.MinSegmentSize, 200)
	h := openKept(t, k, heap.MinLocal, false)
	m := h.NewByteMap("things")
	set := func(value string) {
		for i := range 2000 {
			if err := m.Set(t.Context(), fmt.Append(nil, i), Entry{Value: []byte(strings.Repeat(value, 1000))}); err != nil {
				t.Fatal(err)
			}
		}
	}
	set("a")
	if err := h.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	k.fails = errors.New("no disk")
	k.mu.Unlock()
	set("b")
	if err := h.Checkpoint(t.Context()); !errors.Is(err, k.fails) {
		t.Errorf("a checkpoint without a root: %v", err)
	}
	set("c")
	left := k.copy()
	if err := h.Close(); !errors.Is(err, k.fails) {
		t.Errorf("closed without a root: %v", err)
	}
	for _, k := range []*keeper{left, k.copy()} {
		want := map[string]Entry{}
		for i := range 2000 {
			want[strconv.Itoa(i)] = Entry{Value: []byte(strings.Repeat("a", 1000))}
		}
		h := openKept(t, k, heap.MinLocal, false)
		checkContents(t, h.NewByteMap("things"), want)
		closeHeap(t, h)
	}
}

// In a store that is full again and again, what waits for a checkpoint to be given back is, in time: nobody is
// told that the store is full.
func TestWhatWaitsForACheckpointIsGivenBack(t *testing.T) {
	k := newKeeper(heap.MinSegmentSize, 150)
	h := openKept(t, k, heap.MinLocal, false)
	m := h.NewByteMap("things")
	r := rand.New(rand.NewPCG(1, 1))
	want := map[string]Entry{}
	n := 30_000
	if invariants.Enabled {
		n = 12_000
	}
	for i := range n { // several times the store, two thirds of which live
		if i == 1000 { // from now on there is something to be kept
			if err := h.Checkpoint(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		key := strconv.Itoa(r.IntN(4000))
		want[key] = Entry{Value: fmt.Appendf(nil, "%0900d", r.Uint32())}
		if err := m.Set(t.Context(), []byte(key), want[key]); err != nil {
			t.Fatal(err)
		}
	}
	left := k.copy()
	closeHeap(t, h)
	for i, k := range []*keeper{k.copy(), left} {
		h := openKept(t, k, heap.MinLocal, false)
		if m := h.NewByteMap("things"); i == 0 {
			checkContents(t, m, want)
		} else if m.Len() < 2000 {
			t.Errorf("the last checkpoint has %d entries: there was none but the first", m.Len())
		}
		closeHeap(t, h)
	}
}

// A map of types is there again for the same types alone.
func TestATypedMapIsOpenedAgain(t *testing.T) {
	k := newKeeper(heap.MinSegmentSize, 100)
	h := openKept(t, k, heap.MinLocal, false)
	m, err := NewMap(h, MapConfig[string, []int]{Name: "numbers"})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Set(t.Context(), "three", []int{1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	closeHeap(t, h)
	h = openKept(t, k.copy(), heap.MinLocal, false)
	defer closeHeap(t, h)
	if _, err := NewMap(h, MapConfig[string, []string]{Name: "numbers"}); err == nil {
		t.Error("a map of numbers was opened as one of strings")
	}
	if m, err = NewMap(h, MapConfig[string, []int]{Name: "numbers"}); err != nil {
		t.Fatal(err)
	}
	if v, ok, err := m.Get(t.Context(), "three"); err != nil || !ok || !slices.Equal(v, []int{1, 2, 3}) {
		t.Errorf("got %v, %v, %v", v, ok, err)
	}
}

// TestEntriesExpireInAHeapThatIsOpenedAgain, also those that only leaves in far memory know, and nobody asks for.
func TestEntriesExpireInAHeapThatIsOpenedAgain(t *testing.T) {
	if invariants.Enabled {
		return // one goroutine does much; "make plain" runs it
	}
	synctest.Test(t, func(t *testing.T) {
		const n = 100_000 // 1.2 MB of words
		k := newKeeper(heap.MinSegmentSize, 3000)
		h := openKept(t, k, heap.MinLocal, false)
		m := h.NewByteMap("things")
		expire := time.Now().Add(5 * time.Minute)
		for i := range n {
			if err := m.Set(t.Context(), fmt.Append(nil, i), Entry{Value: make([]byte, 64), Expire: expire}); err != nil {
				t.Fatal(err)
			}
		}
		if h.Stats().Settled == 0 {
			t.Fatal("all words are in tables")
		}
		if err := h.Checkpoint(t.Context()); err != nil {
			t.Fatal(err)
		}
		k = k.copy()
		closeHeap(t, h)
		h = openKept(t, k, heap.MinLocal, false)
		defer closeHeap(t, h)
		if m = h.NewByteMap("things"); m.Len() != n {
			t.Errorf("%d entries are there again, want %d", m.Len(), n)
		}
		time.Sleep(time.Until(expire))
		for end := time.Now().Add(time.Hour); m.Len() > 0 && time.Now().Before(end); {
			time.Sleep(time.Minute)
		}
		if m.Len() != 0 {
			t.Errorf("%d entries are left when all have expired", m.Len())
		}
	})
}

// TestAHeapIsClosedWhenNoCheckpointRuns: those that are being taken meanwhile end first, and later ones are refused.
func TestAHeapIsClosedWhenNoCheckpointRuns(t *testing.T) {
	for range 20 {
		h, err := Open(t.Context(), newKeeper(256<<10, 200), Config{Local: MinLocal})
		if err != nil {
			t.Fatal(err)
		}
		m := h.NewByteMap("m")
		for i := range 2000 {
			if err := m.Set(t.Context(), []byte(strconv.Itoa(i)), Entry{Value: make([]byte, 500)}); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				var err error
				for err == nil {
					err = h.Checkpoint(t.Context())
				}
				if !errors.Is(err, ErrClosed) {
					t.Errorf("while the heap is being closed a checkpoint says %v", err)
				}
			})
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
}
