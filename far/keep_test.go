package far

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"polder/far/heap"
	"polder/far/record"
	"polder/internal/invariants"
	"polder/pool/pooltest"
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

// TestSoakACheckpointFitsIntoAStoreThatGetsFull: what is stored after a checkpoint has written back is in the
// checkpoint itself, and is written back before the next one. There has to be room for both. It takes up to some
// hundred heaps until one is in trouble, so one round says little.
func TestSoakACheckpointFitsIntoAStoreThatGetsFull(t *testing.T) {
	d, _ := time.ParseDuration(os.Getenv("TEST_SOAK"))
	for end := time.Now().Add(d); !t.Failed(); {
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() { fillWhileCheckpointsAreTaken(t) })
		}
		if wg.Wait(); !time.Now().Before(end) {
			break
		}
	}
}

// fillWhileCheckpointsAreTaken stores values in a heap whose store gets full, for the most part with what has died,
// while a checkpoint is taken every 5 ms.
func fillWhileCheckpointsAreTaken(t *testing.T) {
	h := openKept(t, newKeeper(heap.MinSegmentSize, 130), heap.MinLocal, false)
	m := h.NewByteMap("things")
	taking, end := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for taking.Err() == nil {
			if err := h.Checkpoint(taking); errors.Is(err, ErrStoreFull) {
				t.Errorf("a checkpoint in a full store: %v", err)
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	r := rand.New(rand.NewPCG(1, 2))
	value := bytes.Repeat([]byte("v"), 1000)
	for range 60_000 {
		if err := m.Set(t.Context(), fmt.Append(nil, r.IntN(6000)), Entry{Value: value}); err != nil {
			break // the store is full
		}
	}
	end()
	wg.Wait()
	closeHeap(t, h)
}

// TestACheckpointFitsIntoAStoreThatIsFull, however many write meanwhile: they are told that the store is full, and what they then delete is given
// back by the next checkpoint. A heap that is opened again after its process has died can have one, too.
func TestACheckpointFitsIntoAStoreThatIsFull(t *testing.T) {
	k := newKeeper(heap.MinSegmentSize, 150)
	h := openKept(t, k, heap.MinLocal, false)
	m := h.NewByteMap("things")
	value := []byte(strings.Repeat("v", 1500))
	checkpoint := func(h *Heap) {
		t.Helper()
		pooltest.Eventually(t, "a checkpoint while the store is full", func() bool {
			err := h.Checkpoint(t.Context())
			if errors.Is(err, context.DeadlineExceeded) {
				return false // those who write have been faster to take local memory: it is tried again
			}
			if err != nil {
				t.Errorf("a checkpoint while the store is full: %v", err)
			}
			return true
		})
	}
	for i := 0; ; i++ {
		soon, cancel := context.WithTimeout(t.Context(), 4*time.Second) // sooner than a write that waits in vain is refused
		err := m.Set(soon, fmt.Append(nil, i), Entry{Value: value})
		late := soon.Err()
		cancel()
		if errors.Is(err, ErrStoreFull) && late == nil {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if i == 1000 {
			checkpoint(h)
		}
	}
	k.mu.Lock()
	// As many as it takes to find that they give no room.
	if k.roots > 50 {
		t.Errorf("the store was found to be full after %d checkpoints", k.roots)
	}
	k.mu.Unlock()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	full, done := atomic.Int64{}, atomic.Int64{}
	for w := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(7, uint64(w)))
			for {
				select {
				case <-stop:
					return
				default:
				}
				err := m.Set(t.Context(), fmt.Append(nil, r.IntN(20_000)), Entry{Value: value})
				switch {
				case errors.Is(err, ErrStoreFull):
					full.Add(1)
					_, err = m.Delete(t.Context(), fmt.Append(nil, r.IntN(20_000)))
				case err == nil:
					done.Add(1)
				}
				if err != nil && !errors.Is(err, ErrStoreFull) {
					t.Errorf("a write in a full store: %v", err)
					return
				}
			}
		})
	}
	for i := 0; (i < 20 || i < 500 && done.Load() == 0) && !t.Failed(); i++ {
		checkpoint(h)
		time.Sleep(5 * time.Millisecond)
	}
	close(stop)
	wg.Wait()
	if full.Load() == 0 || done.Load() == 0 {
		t.Errorf("%d writes were told that the store is full, and %d succeeded: want some of both", full.Load(), done.Load())
	}
	left := k.copy()
	closeHeap(t, h)
	for _, k := range []*keeper{left, k.copy()} {
		h := openKept(t, k, heap.MinLocal, false)
		checkpoint(h)
		closeHeap(t, h)
	}
}

// fillKept stores values under n keys in a heap that is kept, until one is refused because far memory is full, and returns how many it has
// stored.
func fillKept(t *testing.T, h *Heap, name string, most int) int {
	t.Helper()
	m := h.NewByteMap("things")
	for i := range most {
		if err := m.Set(t.Context(), fmt.Append(nil, name, i), Entry{Value: bytes.Repeat([]byte("v"), 1500)}); errors.Is(err, ErrStoreFull) {
			return i
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return most
}

// TestTheFirstCheckpointOfAHeapThatIsOpenedAgainFits, also if the store was full and more is stored before it, whether those who write wait for
// checkpoints or not. Otherwise there would never be another. What is replayed of a journal is not refused.
func TestTheFirstCheckpointOfAHeapThatIsOpenedAgainFits(t *testing.T) {
	full := newKeeper(heap.MinSegmentSize, 150)
	h := openKept(t, full, heap.MinLocal, false)
	fillKept(t, h, "old", math.MaxInt)
	closeHeap(t, h)
	for _, waits := range []bool{true, false} {
		h := openKept(t, full.copy(), heap.MinLocal, false)
		if !waits {
			h.KeepState(func() State { return State{} })
		}
		stored := fillKept(t, h, "new", math.MaxInt)
		if err := h.Checkpoint(t.Context()); err != nil {
			t.Errorf("the first checkpoint after %d values, where those who write wait: %v: %v", stored, waits, err)
		}
		_ = h.Close() // it says the same
	}
	h = openKept(t, full.copy(), heap.MinLocal, false)
	h.KeepState(func() State { return State{} })
	h.Replays(true)
	const replayed = 600
	if n := fillKept(t, h, "replayed", replayed); n < replayed {
		t.Errorf("%d of %d values were replayed, and the next was refused", n, replayed)
	}
	if h.Replays(false); fillKept(t, h, "new", 1) > 0 {
		t.Error("after more was replayed than the next checkpoint has room for, another value is stored")
	}
	_ = h.Close() // no checkpoint fits
}

// TestACheckpointHasWhatCannotBeWrittenBack, when segments that late copies have closed, or cleaning, have taken what of the reserve was for that. It gives
// back what is dead, so that there is room again.
func TestACheckpointHasWhatCannotBeWrittenBack(t *testing.T) {
	k := newKeeper(heap.MinSegmentSize, 150)
	h := openKept(t, k, heap.MinLocal, false)
	fillKept(t, h, "old", math.MaxInt)
	closeHeap(t, h)
	h = openKept(t, k.copy(), heap.MinLocal, false)
	m := h.NewByteMap("things")
	if err := m.Set(t.Context(), []byte("new"), Entry{Value: []byte("value")}); err != nil {
		t.Fatal(err)
	}
	for h.core.Far.TakeReserved(2) != nil {
	}
	if err := h.Checkpoint(t.Context()); err != nil {
		t.Errorf("a checkpoint for which only two segments are left: %v", err)
	}
	k = h.core.Far.Store.(*keeper).copy()
	_ = h.Close()
	h = openKept(t, k, heap.MinLocal, false)
	defer func() { _ = h.Close() }() // the reserve is gone
	if e, err := h.NewByteMap("things").Get(t.Context(), []byte("new"), nil); err != nil || string(e.Value) != "value" {
		t.Errorf("what the checkpoint had is %q, %v", e.Value, err)
	}
}

// TestNothingIsStoredWhileIndexesLackSegments, since the words of what is stored could not go far; when a checkpoint has given some back, all goes on.
func TestNothingIsStoredWhileIndexesLackSegments(t *testing.T) {
	const segments = 40
	h := openKept(t, newKeeper(1<<20, segments), heap.MinLocal, false)
	defer closeHeap(t, h)
	h.KeepState(func() State { return State{} }) // whoever finds no room is told at once
	m := h.NewByteMap("things")
	set := func() error { return m.Set(t.Context(), []byte("key"), Entry{Value: []byte("value")}) }
	if err := set(); err != nil {
		t.Fatal(err)
	}
	h.core.Far.KeepForPages(segments, segments/2)
	var borrowed []heap.Segment
	for {
		s, err := h.core.BorrowForPages(t.Context(), heap.SettlePages)
		if errors.Is(err, ErrStoreFull) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		borrowed = append(borrowed, s)
	}
	if err := set(); !errors.Is(err, ErrStoreFull) {
		t.Errorf("while indexes lack segments something is stored: %v", err)
	}
	for _, s := range borrowed {
		h.core.Far.GiveBack(t.Context(), s)
	}
	h.core.Far.KeepForPages(1, 0)
	if err := h.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := set(); err != nil {
		t.Errorf("when indexes have segments again: %v", err)
	}
}

// TestIndexesHaveSegmentsAsSoonAsAHeapIsOpenedAgain, before somebody else takes what room the store has left.
func TestIndexesHaveSegmentsAsSoonAsAHeapIsOpenedAgain(t *testing.T) {
	k := newKeeper(heap.MinSegmentSize, 3000)
	h := openKept(t, k, heap.MinLocal, false)
	m := h.NewByteMap("things")
	for i := 0; i%1000 > 0 || h.Stats().Lines[heap.Leaves] == 0; i++ {
		if err := m.Set(t.Context(), fmt.Append(nil, i), Entry{}); err != nil {
			t.Fatal(err)
		}
	}
	closeHeap(t, h)
	k = k.copy()
	h = openKept(t, k, heap.MinLocal, false)
	defer closeHeap(t, h)
	for err := error(nil); err == nil; {
		_, err = k.MemStore.Alloc(t.Context())
	}
	if _, err := h.core.BorrowForPages(t.Context(), heap.UrgentPages); err != nil {
		t.Errorf("when others have taken all that was left: %v", err)
	}
}

// TestACheckpointFitsBesideTablesThatAreFull: with the least budget and many small entries the tables have all that they may have, and more while
// entries come faster than their words go far.
func TestACheckpointFitsBesideTablesThatAreFull(t *testing.T) {
	if !invariants.Enabled { // "make plain" has both
		t.Run("for ever", func(t *testing.T) { checkpointFits(t, time.Time{}) })
	}
	t.Run("for an hour", func(t *testing.T) { checkpointFits(t, time.Now().Add(time.Hour)) })
}

func checkpointFits(t *testing.T, expire time.Time) {
	k := newKeeper(heap.MinSegmentSize, 3000)
	h := openKept(t, k, heap.MinLocal, false)
	defer closeHeap(t, h)
	m := h.NewByteMap("things")
	const writers, each = 4, 25_000
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if err := m.Set(t.Context(), fmt.Append(nil, w, i), Entry{Value: make([]byte, 64), Expire: expire}); err != nil {
					t.Errorf("set %d: %v", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	for range 3 {
		tables := h.Stats().Lines[heap.Tables]
		if err := h.Checkpoint(t.Context()); err != nil {
			t.Errorf("a checkpoint beside tables of %d bytes: %v", tables, err)
		}
		for i := range each { // words come back
			if _, err := m.Get(t.Context(), fmt.Append(nil, 0, i), nil); err != nil {
				t.Fatal(err)
			}
		}
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

// TestACheckpointHasRoomHoweverManyKeysThereAre: with the least budget, entries as small as can be have more words than a checkpoint leaves room for, and
// a directory that went on being doubled would have left none, either.
func TestACheckpointHasRoomHoweverManyKeysThereAre(t *testing.T) {
	k := newKeeper(1<<20, 4000)
	h := openKept(t, k, heap.MinLocal, false)
	defer func() { closeHeap(t, h) }()
	m := h.NewByteMap("things")
	const writers, each = 4, 40_000
	rounds := 18
	if invariants.Enabled { // "make plain" has them all
		rounds = 2
	}
	key := func(b []byte, i int) []byte { return strconv.AppendInt(b, int64(i), 10) }
	for round := range rounds {
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for i := range each {
					if err := m.Set(t.Context(), key(nil, (round*writers+w)*each+i), Entry{}); err != nil {
						t.Errorf("set %d: %v", i, err)
						return
					}
				}
			})
		}
		wg.Wait()
		if err := h.Checkpoint(t.Context()); err != nil {
			t.Fatalf("after %d keys, with lines %d: %v", (round+1)*writers*each, h.Stats().Lines, err)
		}
	}
	closeHeap(t, h)
	h = openKept(t, k.copy(), heap.MinLocal, false)
	m = h.NewByteMap("things")
	if n := m.Len(); n != rounds*writers*each {
		t.Errorf("%d keys are there when the heap is opened again, want %d", n, rounds*writers*each)
	}
	for i := 0; i < rounds*writers*each; i += 97 {
		if _, err := m.Get(t.Context(), key(nil, i), nil); err != nil {
			t.Fatalf("key %d: %v", i, err)
		}
	}
}

// TestWhoWritesToAFullStoreWaitsForRoom that cleaning and a checkpoint make of what was deleted, and of what only a snapshot keeps.
func TestWhoWritesToAFullStoreWaitsForRoom(t *testing.T) {
	k := newKeeper(heap.MinSegmentSize, 150)
	h := openKept(t, k, heap.MinLocal, false)
	defer closeHeap(t, h)
	m := h.NewByteMap("things")
	set := func(i int) error {
		return m.Set(t.Context(), fmt.Append(nil, i), Entry{Value: fmt.Appendf(nil, "%01500d", i)})
	}
	for _, pinned := range []bool{false, true} {
		n := 0
		for err := error(nil); !errors.Is(err, ErrStoreFull); n++ {
			if err = set(n); err != nil && !errors.Is(err, ErrStoreFull) {
				t.Fatal(err)
			}
		}
		if pinned {
			defer snapshotOf(t, h, nil).Close()
		}
		for i := range n {
			if i%8 == 0 {
				if _, err := m.Delete(t.Context(), fmt.Append(nil, i)); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i := range n / 2 {
			if i%16 == 0 {
				if err := set(i); err != nil {
					t.Fatalf("a write after much was deleted, with a snapshot: %v: %v", pinned, err)
				}
			}
		}
	}
}

// TestWhoHoldsWhatACheckpointTakesDoesNotWaitForOne in a full store.
func TestWhoHoldsWhatACheckpointTakesDoesNotWaitForOne(t *testing.T) {
	h := openKept(t, newKeeper(heap.MinSegmentSize, 150), heap.MinLocal, false)
	defer closeHeap(t, h)
	var mu sync.Mutex
	h.KeepState(func() State {
		mu.Lock()
		return State{Thaw: mu.Unlock}
	})
	m, value := h.NewByteMap("things"), []byte(strings.Repeat("v", 1500))
	soon, cancel := context.WithTimeout(t.Context(), 4*time.Second) // sooner than a write that waits in vain is refused
	defer cancel()
	for i, full := 0, 0; full < 20; i++ {
		mu.Lock()
		err := m.Set(soon, fmt.Append(nil, i), Entry{Value: value})
		mu.Unlock()
		if errors.Is(err, ErrStoreFull) && soon.Err() == nil {
			full++
		} else if err != nil {
			t.Fatal(err)
		}
		if i == 1000 {
			if err := h.Checkpoint(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
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

// TestAStoreFullOfTheSmallestEntries: with the least budget, a store is filled with entries as small as can be until it refuses them. Indexes
// have room in it nevertheless: all is there when the heap is opened again, and what is deleted makes room.
func TestAStoreFullOfTheSmallestEntries(t *testing.T) {
	sizes := []int{22, 64}
	if invariants.Enabled { // "make plain" has both
		sizes = sizes[:1]
	}
	for _, segments := range sizes {
		t.Run(strconv.Itoa(segments), func(t *testing.T) { storeFullOfTheSmallest(t, segments) })
	}
}

func storeFullOfTheSmallest(t *testing.T, segments int) {
	k := newKeeper(1<<20, segments)
	h := openKept(t, k, heap.MinLocal, false)
	defer func() { closeHeap(t, h) }()
	m := h.NewByteMap("things")
	const writers, short = 4, 97
	key := func(b []byte, i int) []byte { return strconv.AppendInt(b, int64(i), 10) }
	var next atomic.Int64
	lives := map[int]bool{}
	for round := range 2 {
		from := int(next.Load())
		refused := make([]int, writers)
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for {
					i := int(next.Add(1)) - 1
					err := m.Set(t.Context(), key(nil, i), Entry{})
					if err != nil {
						if refused[w] = i; !errors.Is(err, ErrStoreFull) {
							t.Errorf("set %d: %v", i, err)
						}
						return
					}
				}
			})
		}
		wg.Wait()
		for i := from; i < int(next.Load()); i++ {
			if !slices.Contains(refused, i) {
				lives[i] = true
			}
		}
		t.Logf("%d keys, %d of them new, with lines %d", len(lives), int(next.Load())-from-writers, h.Stats().Lines)
		if err := h.Checkpoint(t.Context()); err != nil {
			t.Fatalf("with %d keys, and lines %d: %v", len(lives), h.Stats().Lines, err)
		}
		closeHeap(t, h)
		k = k.copy()
		h = openKept(t, k, heap.MinLocal, false)
		if m = h.NewByteMap("things"); m.Len() != len(lives) {
			t.Errorf("%d keys are there when the heap is opened again, want %d", m.Len(), len(lives))
		}
		for i := range int(next.Load()) {
			if i%short != 0 {
				continue
			}
			if _, err := m.Get(t.Context(), key(nil, i), nil); (err == nil) != lives[i] || err != nil && !errors.Is(err, ErrNotFound) {
				t.Fatalf("key %d, which should be there: %v: %v", i, lives[i], err)
			}
		}
		if round > 0 && int(next.Load())-from < len(lives)/8 {
			t.Errorf("when half of all was deleted, %d keys had room", int(next.Load())-from)
		}
		for i := range int(next.Load()) {
			if i%2 == round%2 && lives[i] {
				if found, err := m.Delete(t.Context(), key(nil, i)); err != nil || !found {
					t.Fatalf("key %d is deleted: %v, %v", i, found, err)
				}
				delete(lives, i)
			}
		}
	}
}
