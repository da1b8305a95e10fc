package bytemap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"polder/far/entry"
	"polder/far/heap"
	"polder/far/index"
	"polder/far/store/storetest"
)

// fillTiny sets n keys of 1000 bytes, far more than a tiny heap has local.
func fillTiny(t testing.TB, m *Map, n int) {
	t.Helper()
	for i := range n {
		mustSet(t, m, key(i), value(uint64(i), 1000))
	}
}

// farKeys returns keys that could not be read without waiting.
func farKeys(t testing.TB, m *Map, n int) (far [][]byte) {
	t.Helper()
	for i := range n {
		if _, err := m.Get(heap.NoWait, key(i), nil); errors.Is(err, heap.ErrWouldBlock) {
			far = append(far, key(i))
		}
	}
	if len(far) == 0 {
		t.Fatal("nothing is far")
	}
	return far
}

func TestOneFetchHoweverManyMissTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.New(tinySegment, 1000)
		_, m := newTinyHeap(t, store, 0)
		fillTiny(t, m, 1000)
		k := farKeys(t, m, 1000)[0]
		release := store.Hold()
		before := store.Ops.Load()
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				e, err := m.Get(context.Background(), k, nil)
				if err != nil || len(e.Value) != 1000 {
					t.Errorf("Get: %d bytes, %v", len(e.Value), err)
				}
			})
		}
		wg.Go(func() {
			if err := m.Prefetch(context.Background(), k, k); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait() // all of them wait for the one read
		release()
		wg.Wait()
		if got := store.Ops.Load() - before; got != 1 {
			t.Errorf("51 misses made %d reads, want 1", got)
		}
	})
}

func TestFetchReadsInOneBatch(t *testing.T) {
	notWithLeaves(t)
	store := storetest.New(tinySegment, 1000)
	_, m := newTinyHeap(t, store, 1<<20)
	fillTiny(t, m, 3000)
	keys := farKeys(t, m, 3000)[:60]
	before := store.Reads.Load()
	if err := m.Prefetch(context.Background(), keys...); err != nil {
		t.Fatal(err)
	}
	if got := store.Reads.Load() - before; got != 1 {
		t.Errorf("fetching 60 keys took %d reads of the store, want 1", got)
	}
	for _, k := range keys {
		if _, err := m.Get(heap.NoWait, k, nil); err != nil {
			t.Errorf("Get(%q) after Fetch: %v", k, err)
		}
	}
}

func TestFetchHeadsReadsNoValues(t *testing.T) {
	notWithLeaves(t)
	store := storetest.New(tinySegment, 1000)
	h, m := newTinyHeap(t, store, 1<<20)
	fillTiny(t, m, 3000)
	keys := farKeys(t, m, 3000)[:entry.MostHeads]
	reads, in := store.Reads.Load(), h.Stats().BytesIn
	if err := m.FetchHeads(context.Background(), keys); err != nil {
		t.Fatal(err)
	}
	if got := store.Reads.Load() - reads; got != 1 {
		t.Errorf("%d heads took %d reads of the store, want 1", len(keys), got)
	}
	if got := h.Stats().BytesIn - in; got > entry.MostHeads*128 {
		t.Errorf("%d heads were %d bytes, want at most 128 each", len(keys), got)
	}
	for i, k := range keys {
		if _, size, err := m.Stat(heap.NoWait, k); err != nil || size != 1000 {
			t.Errorf("Stat(%q) after FetchHeads: %d bytes, %v", k, size, err)
		}
		var err error
		if i%2 == 0 {
			err = m.Set(heap.NoWait, k, Entry{Value: []byte("new")})
		} else {
			_, err = m.Delete(heap.NoWait, k)
		}
		if err != nil {
			t.Errorf("a change of %q after FetchHeads: %v", k, err)
		}
	}
	for i, k := range keys {
		if i%2 == 0 {
			mustGet(t, m, k, []byte("new"))
		} else if _, err := m.Get(context.Background(), k, nil); !errors.Is(err, ErrNotFound) {
			t.Errorf("Get(%q) after Delete: %v, want ErrNotFound", k, err)
		}
	}
}

// TestRememberedHeadsDieWithTheirSegment: an address that means another
// segment by now must not be taken for what it was.
func TestRememberedHeadsDieWithTheirSegment(t *testing.T) {
	h, m := newTinyHeap(t, storetest.New(tinySegment, 1000), 0)
	fillTiny(t, m, 1000)
	k := farKeys(t, m, 1000)[0]
	if err := m.FetchHeads(context.Background(), [][]byte{k}); err != nil {
		t.Fatal(err)
	}
	sh := m.shard(m.hash(k))
	sh.mu.Lock()
	defer sh.mu.Unlock()
	var addr uint64
	for p := range sh.t.Matches(m.hash(k).Tag()) {
		addr = sh.t.Word(p).Addr()
	}
	if e := sh.heads.Of(addr, h.core.Far.Seg(addr)); e == nil || string(e.Key()) != string(k) {
		t.Fatalf("the head of %q is not remembered", k)
	}
	at := &(*h.core.Far.Segs.Load())[addr/h.core.Far.Units]
	was := at.Load()
	at.Store(&heap.FarSegment{Seg: was.Seg, ID: was.ID})
	if e := sh.heads.Of(addr, h.core.Far.Seg(addr)); e != nil {
		t.Errorf("the head of %q outlives its segment", e.Key())
	}
	at.Store(was)
}

func TestNoWaitChangesNothing(t *testing.T) {
	_, m := newTinyHeap(t, storetest.New(tinySegment, 1000), 0)
	fillTiny(t, m, 1000)
	k := farKeys(t, m, 1000)[0]
	would := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, heap.ErrWouldBlock) {
			t.Errorf("%s: got %v, want heap.ErrWouldBlock", what, err)
		}
	}
	would("Set", m.Set(heap.NoWait, k, Entry{Value: []byte("new")}))
	_, err := m.Delete(heap.NoWait, k)
	would("Delete", err)
	_, _, err = m.Stat(heap.NoWait, k)
	would("Stat", err)
	would("Prefetch", m.Prefetch(heap.NoWait, k))
	would("FetchHeads", m.FetchHeads(heap.NoWait, [][]byte{k}))
	would("Update", m.Update(heap.NoWait, k, func(Entry, bool) (Entry, Verdict, error) {
		t.Error("Update called its function")
		return Entry{}, Remove, nil
	}))
	for i := range 1000 {
		mustGet(t, m, key(i), value(uint64(i), 1000))
	}
	derived, cancel := context.WithCancel(heap.NoWait)
	defer cancel()
	_, err = m.Get(derived, farKeys(t, m, 1000)[0], nil)
	would("Get with a derived context", err)
}

func TestCancelledCallThatNeedNotWaitSucceeds(t *testing.T) {
	_, m := newTinyHeap(t, storetest.New(tinySegment, 100), 0)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := m.Set(ctx, []byte("k"), Entry{Value: []byte("v")}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Get(ctx, []byte("k"), nil); err != nil {
		t.Fatal(err)
	}
	for name, fetch := range map[string]func(context.Context, [][]byte) error{
		"Prefetch":   func(ctx context.Context, keys [][]byte) error { return m.Prefetch(ctx, keys...) },
		"FetchHeads": m.FetchHeads,
	} {
		if err := fetch(ctx, [][]byte{[]byte("k"), []byte("missing")}); err != nil {
			t.Errorf("%s of what is local: %v", name, err)
		}
	}
}

func TestLeaderThatGivesUpDoesNotFailTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.New(tinySegment, 1000)
		_, m := newTinyHeap(t, store, 0)
		fillTiny(t, m, 1000)
		k := farKeys(t, m, 1000)[0]
		release := store.Hold()
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := m.Get(ctx, k, nil); !errors.Is(err, context.Canceled) {
				t.Errorf("the leader: got %v, want context.Canceled", err)
			}
		})
		synctest.Wait()
		wg.Go(func() {
			if _, err := m.Get(context.Background(), k, nil); err != nil {
				t.Errorf("the other: %v", err)
			}
		})
		synctest.Wait()
		cancel()
		synctest.Wait()
		release()
		wg.Wait()
	})
}

func TestFullStore(t *testing.T) {
	store := storetest.New(tinySegment, 16)
	_, m := newTinyHeap(t, store, 0)
	ctx := within(t, 30*time.Second)
	n := 0
	for {
		err := m.Set(ctx, key(n), Entry{Value: value(uint64(n), 1000)})
		if errors.Is(err, heap.ErrFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if least := 15 * tinySegment / 1100; n < least {
		t.Errorf("%d entries fitted, want at least %d", n, least)
	}
	for range 100 { // it stays so, and says so at once
		if err := m.Set(ctx, key(n), Entry{Value: value(0, 1000)}); !errors.Is(err, heap.ErrFull) {
			t.Fatalf("Set: got %v, want ErrFull", err)
		}
	}
	for i := range n {
		mustGet(t, m, key(i), value(uint64(i), 1000))
	}
	if got := m.Len(); got != n {
		t.Errorf("Len: got %d, want %d", got, n)
	}
	// Room that is made is found, wherever it lies.
	for round := range 5 {
		for i := round; i < n; i += 5 {
			if _, err := m.Delete(ctx, key(i)); err != nil {
				t.Fatal(err)
			}
		}
		for i := round; i < n; i += 5 {
			if err := m.Set(ctx, key(i), Entry{Value: value(uint64(i+round), 500)}); err != nil {
				t.Fatalf("round %d: Set after deleting a fifth: %v", round, err)
			}
		}
	}
	for i := range n {
		mustGet(t, m, key(i), value(uint64(i+i%5), 500))
	}
}

func TestOverwritingForEverNeedsNoMoreFarMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.New(tinySegment, 40)
		h, m := newTinyHeap(t, store, 0)
		for i := range 20000 {
			mustSet(t, m, key(rand.IntN(600)), value(uint64(i), 1000))
		}
		if h.Stats().CleanedSegments == 0 {
			t.Error("nothing was cleaned")
		}
		m.Clear()
		synctest.Wait()
		if s := h.Stats(); s.FarLive != 0 || s.LocalLive != 0 || s.FarSegments > 1 {
			t.Errorf("after Clear: %d bytes live in %d segments, %d local", s.FarLive, s.FarSegments, s.LocalLive)
		}
		for range 3 { // and they can all be used again
			for i := range 600 {
				mustSet(t, m, key(i), value(uint64(i), 1000))
			}
		}
	})
}

func TestLostSegments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.New(tinySegment, 1000)
		h, m := newTinyHeap(t, store, 0)
		const n = 1000
		fillTiny(t, m, n)
		mustSet(t, m, []byte("large"), value(1, 100000))
		if store.Lose(func(i int, _ heap.Segment) bool { return i%2 == 0 }) == 0 {
			t.Fatal("there was nothing to lose")
		}
		var lost, kept [][]byte
		for i := range n {
			e, err := m.Get(context.Background(), key(i), nil)
			var le *heap.LostError
			switch {
			case err == nil && bytes.Equal(e.Value, value(uint64(i), 1000)):
				kept = append(kept, key(i))
			case errors.As(err, &le) && le.Segment != "":
				lost = append(lost, key(i))
			default:
				t.Fatalf("Get(%d): %d bytes, %v", i, len(e.Value), err)
			}
		}
		if len(lost) == 0 || len(kept) == 0 {
			t.Fatalf("%d lost, %d kept", len(lost), len(kept))
		}
		synctest.Wait() // for the janitor
		large := 1
		if _, _, err := m.Stat(context.Background(), []byte("large")); err != nil {
			large = 0
		}
		if got := m.Len(); got != len(kept)+large {
			t.Errorf("Len: got %d, want %d", got, len(kept)+large)
		}
		if s := h.Stats(); int(s.Lost) < len(lost) || s.Maps[0].LostNow < len(lost) {
			t.Errorf("Stats: %d lost, %d now, want at least %d", s.Lost, s.Maps[0].LostNow, len(lost))
		}
		for range allKeys(context.Background(), m) { // does not stumble
		}
		var le *heap.LostError
		err := m.Update(context.Background(), lost[0], func(Entry, bool) (Entry, Verdict, error) { return Entry{}, Remove, nil })
		if !errors.As(err, &le) {
			t.Errorf("Update of a lost entry: got %v", err)
		}
		for i, k := range lost {
			if i%2 == 0 {
				mustSet(t, m, k, []byte("new"))
				mustGet(t, m, k, []byte("new"))
				continue
			}
			if ok, err := m.Delete(context.Background(), k); !ok || err != nil {
				t.Errorf("Delete of a lost entry: %v, %v", ok, err)
			}
			if _, err := m.Get(context.Background(), k, nil); !errors.Is(err, ErrNotFound) {
				t.Errorf("Get after that: %v", err)
			}
		}
		if got, want := m.Len(), len(kept)+large+(len(lost)+1)/2; got != want {
			t.Errorf("Len: got %d, want %d", got, want)
		}
		mustSet(t, m, []byte("large"), value(2, 100000))
		mustGet(t, m, []byte("large"), value(2, 100000))
	})
}

// A value whose head is lost leaves no pieces behind, and one of which a piece
// is lost is lost.
func TestLostPartsOfLargeValues(t *testing.T) {
	for _, part := range []struct {
		name string
		flag index.Word
	}{{"heads", index.Big}, {"pieces", index.Piece}} {
		t.Run(part.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := storetest.New(tinySegment, 4000)
				h, m := newTinyHeap(t, store, 0)
				const n = 30
				for i := range n {
					mustSet(t, m, key(i), value(uint64(i), 30000))
				}
				fillTiny(t, h.NewByteMap("other"), 400)
				first := true
				if loseThat(store, m, func(w index.Word) bool {
					ok := first && w&part.flag != 0
					first = first && !ok
					return ok
				}) != 1 {
					t.Fatal("there was nothing to lose")
				}
				time.Sleep(time.Second) // the janitor's
				lost := 0
				for i := range n {
					e, err := m.Get(context.Background(), key(i), nil)
					var le *heap.LostError
					switch {
					case errors.As(err, &le):
						lost++
						if _, err := m.Delete(context.Background(), key(i)); err != nil {
							t.Error(err)
						}
					case err != nil || !bytes.Equal(e.Value, value(uint64(i), 30000)):
						t.Errorf("Get(%d): %d bytes, %v", i, len(e.Value), err)
					}
				}
				if lost == 0 || lost == n {
					t.Errorf("%d of %d values are lost", lost, n)
				}
				time.Sleep(time.Second)
				words := 0
				for i := range m.shards() {
					words += m.at(i).t.Used
				}
				if want := (n - lost) * (1 + (30000+h.pieces-1)/h.pieces); words != want {
					t.Errorf("%d entries are left, heads and pieces, want %d", words, want)
				}
			})
		})
	}
}

func TestCorruptBytesAreNeverReturned(t *testing.T) {
	store := storetest.New(tinySegment, 1000)
	h, m := newTinyHeap(t, store, 0)
	const n = 1000
	fillTiny(t, m, n)
	store.Corrupt.Store(1000)
	bad := farKeys(t, m, n)
	for _, k := range bad {
		var ce *heap.CorruptError
		if _, err := m.Get(context.Background(), k, nil); !errors.As(err, &ce) {
			t.Fatalf("Get(%q): got %v, want a CorruptError", k, err)
		}
	}
	if h.Stats().Corrupt < uint64(len(bad)) {
		t.Errorf("counted %d corrupt reads of %d", h.Stats().Corrupt, len(bad))
	}
	mustSet(t, m, bad[0], []byte("new"))
	if ok, err := m.Delete(context.Background(), bad[1]); !ok || err != nil {
		t.Errorf("Delete of a corrupt entry: %v, %v", ok, err)
	}
	store.Corrupt.Store(0) // it was the wire, after all
	mustGet(t, m, bad[0], []byte("new"))
	for _, k := range bad[2:] {
		if e, err := m.Get(context.Background(), k, nil); err != nil || len(e.Value) != 1000 {
			t.Errorf("Get(%q): %d bytes, %v", k, len(e.Value), err)
		}
	}
	if got := m.Len(); got != n-1 {
		t.Errorf("Len: got %d, want %d", got, n-1)
	}
}

func TestStoreThatFailsForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.New(tinySegment, 1000)
		_, m := newTinyHeap(t, store, 0)
		const n = 1000
		fillTiny(t, m, n)
		gone := farKeys(t, m, n)
		store.FailRead.Store(true)
		store.FailWrite.Store(true)
		store.FailAlloc.Store(true)
		_, err := m.Get(context.Background(), gone[0], nil)
		if !errors.Is(err, storetest.ErrInjected) || !strings.HasPrefix(err.Error(), "cannot fetch ") {
			t.Errorf("Get: got %v", err)
		}
		// Writers go on while there is room, and then fail by their deadlines
		// and with the reason.
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		i := n
		for ; err == nil || i == n; i++ {
			err = m.Set(ctx, key(i), Entry{Value: value(uint64(i), 1000)})
		}
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, storetest.ErrInjected) {
			t.Errorf("Set: got %v", err)
		}
		for k := range n {
			if _, err := m.Get(heap.NoWait, key(k), nil); err != nil && !errors.Is(err, heap.ErrWouldBlock) {
				t.Errorf("Get(%d): %v", k, err)
			}
		}
		store.FailRead.Store(false)
		store.FailWrite.Store(false)
		store.FailAlloc.Store(false)
		for k := range i - 1 {
			mustGet(t, m, key(k), value(uint64(k), 1000))
		}
		for k := range n {
			mustSet(t, m, key(k), value(uint64(k+1), 1000))
		}
		for k := range n {
			mustGet(t, m, key(k), value(uint64(k+1), 1000))
		}
	})
}

func TestExpiredEntriesComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, m := newTinyHeap(t, storetest.New(tinySegment, 1000), 0)
		const n = 1000
		for i := range n {
			k := key(i)
			if i%2 == 0 {
				k = append(k, bytes.Repeat([]byte("long"), 100)...)
			}
			e := Entry{Value: value(uint64(i), 1000), Expire: time.Now().Add(time.Minute)}
			if err := m.Set(context.Background(), k, e); err != nil {
				t.Fatal(err)
			}
		}
		mustSet(t, m, []byte("stays"), []byte("for ever"))
		e := Entry{Value: value(1, 100000), Expire: time.Now().Add(time.Minute)}
		if err := m.Set(context.Background(), []byte("large"), e); err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Second)
		if got := m.Len(); got != n+2 {
			t.Fatalf("Len before: got %d, want %d", got, n+2)
		}
		time.Sleep(2 * time.Second)
		for i := range n {
			if _, err := m.Get(context.Background(), key(i), nil); !errors.Is(err, ErrNotFound) {
				t.Fatalf("Get of an expired entry: %v", err)
			}
		}
		time.Sleep(time.Minute) // nobody asks any more
		if got := m.Len(); got != 1 {
			t.Errorf("Len: got %d, want 1", got)
		}
		if s := h.Stats(); s.FarLive > 0 || s.LocalLive > 100 || s.Index > 8*4096 {
			t.Errorf("still live: %d bytes far, %d local, %d of index", s.FarLive, s.LocalLive, s.Index)
		}
	})
}

func TestCloseEndsTheWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.New(tinySegment, 1000)
		h, m := openTiny(t, store, 0)
		store.FailAlloc.Store(true)
		errs := make(chan error, 1)
		go func() {
			for i := 0; ; i++ {
				if err := m.Set(context.Background(), key(i), Entry{Value: value(0, 1000)}); err != nil {
					errs <- err
					return
				}
			}
		}()
		synctest.Wait()
		for range 2 {
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := <-errs; !errors.Is(err, heap.ErrClosed) {
			t.Errorf("the waiting Set: got %v, want ErrClosed", err)
		}
		if _, err := m.Get(context.Background(), key(0), nil); !errors.Is(err, heap.ErrClosed) {
			t.Errorf("Get: got %v, want ErrClosed", err)
		}
		if err := m.Set(context.Background(), key(0), Entry{}); !errors.Is(err, heap.ErrClosed) {
			t.Errorf("Set: got %v, want ErrClosed", err)
		}
		if err := h.NewByteMap("late").Set(context.Background(), key(0), Entry{}); !errors.Is(err, heap.ErrClosed) {
			t.Errorf("Set on a new map: got %v, want ErrClosed", err)
		}
		if got := store.Lent(); got != 0 {
			t.Errorf("%d segments were not given back", got)
		}
	})
}

func TestTooLarge(t *testing.T) {
	_, m := newTestHeap(t, heap.NewMemStore(testSegment, 100), testConfig{MaxValue: 1000})
	for _, c := range []struct{ k, v int }{{MaxKeySize + 1, 1}, {1, 1001}} {
		err := m.Set(context.Background(), make([]byte, c.k), Entry{Value: make([]byte, c.v)})
		if !errors.Is(err, heap.ErrTooLarge) {
			t.Errorf("key of %d, value of %d: got %v", c.k, c.v, err)
		}
	}
	long := bytes.Repeat([]byte("k"), MaxKeySize)
	mustSet(t, m, long, value(1, 1000))
	for i := range 10000 {
		mustSet(t, m, key(i), value(uint64(i), 1000))
	}
	mustGet(t, m, long, value(1, 1000))
}

func TestIndexThatOutgrowsTheBudget(t *testing.T) {
	h, m := newTinyHeap(t, storetest.New(tinySegment, 100000), 0)
	var err error
	n := 0
	for ; err == nil && n < 100000; n++ {
		err = m.Set(within(t, 30*time.Second), fmt.Append(nil, n), Entry{})
	}
	if !errors.Is(err, heap.ErrFull) || !strings.Contains(err.Error(), "index") {
		t.Fatalf("after %d entries: got %v", n, err)
	}
	for i := range n - 1 {
		mustGet(t, m, fmt.Append(nil, i), nil)
	}
	if s := h.Stats(); s.Resident > s.Budget {
		t.Errorf("resident %d of %d bytes", s.Resident, s.Budget)
	}
}
