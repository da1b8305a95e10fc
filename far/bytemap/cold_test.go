package bytemap

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"polder/far/heap"
	"polder/far/index"
	"polder/far/store/storetest"
	"polder/internal/failpoint"
)

// openEarly makes a heap that the test closes, which settles words as soon as a table of a page is full.
func openEarly(t testing.TB, store heap.Store, local int64) (*testHeap, *Map) {
	t.Helper()
	lay := tiny
	lay.Logs = max(lay.Logs, local)
	lay.early = true
	h, err := newHeap(store, testConfig{Local: lay.Local(), MaxValue: 1 << 20}, lay)
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

// notWithLeaves skips a test that counts reads, or has no memory for leaves, in builds with the tag settle, where every
// map has them.
func notWithLeaves(t *testing.T) {
	t.Helper()
	if SettleEarly {
		t.Skip("leaves are read, too")
	}
}

// Whatever the tables have no room for is found again, all of it and nothing else.
func TestEntriesOfWhichTheWordsWentFarAreFound(t *testing.T) {
	t.Parallel()
	h, m := openEarly(t, heap.NewMemStore(64<<10, 4000), 400<<10)
	ctx := within(t, 2*time.Minute)
	r := rand.New(rand.NewPCG(1, 2))
	want := map[string]string{}
	const keys = 12000
	for i := range 25000 {
		k := fmt.Sprint("key", r.IntN(keys))
		v, there := want[k]
		switch r.IntN(10) {
		case 0, 1, 2, 3:
			v = fmt.Sprint("value", i)
			if err := m.Set(ctx, []byte(k), Entry{Value: []byte(v)}); err != nil {
				t.Fatal(err)
			}
			want[k] = v
		case 4:
			if ok, err := m.Delete(ctx, []byte(k)); err != nil || ok != there {
				t.Fatalf("step %d: deleted %s: %v, %v, want %v", i, k, ok, err, there)
			}
			delete(want, k)
		case 5:
			err := m.Update(ctx, []byte(k), func(old Entry, found bool) (Entry, Verdict, error) {
				if found != there || string(old.Value) != v {
					t.Fatalf("step %d: updates %s from %v %q, want %v %q", i, k, found, old.Value, there, v)
				}
				old.Value = append(old.Value, '+')
				return old, Put, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			want[k] = v + "+"
		case 6:
			_, n, err := m.Stat(ctx, []byte(k))
			if there != (err == nil) || n != len(v) {
				t.Fatalf("step %d: %s is %d bytes, %v, want %d", i, k, n, err, len(v))
			}
		default:
			e, err := m.Get(ctx, []byte(k), nil)
			if there != (err == nil) || string(e.Value) != v || !there && !errors.Is(err, ErrNotFound) {
				t.Fatalf("step %d: %s is %q, %v, want %q, %v", i, k, e.Value, err, v, there)
			}
		}
		if i%5000 == 4999 && i > 10000 {
			settleAll(t, ctx, m)
		}
		if m.Len() != len(want) {
			t.Fatalf("step %d: %d keys, want %d", i, m.Len(), len(want))
		}
	}
	if h.settled.Load() == 0 {
		t.Fatal("nothing was settled")
	}
	sameKeys(t, ctx, m, want)
	t.Logf("%d tables settled, %d leaves read, %d segments cleaned, %d bytes of tables; %d keys", h.settled.Load(), h.leafReads.Load(), h.cleanedPages.Load(), h.core.Logs.Of(heap.Tables), m.Len())
}

// sameKeys compares the keys and values that m says that it has with want.
func sameKeys(t *testing.T, ctx context.Context, m *Map, want map[string]string) {
	t.Helper()
	got := map[string]bool{}
	var all [][]byte
	for k, err := range allKeys(ctx, m) {
		if err != nil {
			t.Fatal(err)
		}
		if got[string(k)] {
			t.Errorf("%s comes twice", k)
		}
		got[string(k)] = true
		if _, ok := want[string(k)]; !ok {
			t.Errorf("%s comes, which is not there", k)
		}
		all = append(all, append([]byte(nil), k...))
	}
	if len(got) != len(want) {
		t.Errorf("%d keys come, want %d", len(got), len(want))
	}
	for i := 0; i < len(all); i += 500 {
		keys := all[i:min(i+500, len(all))]
		m.GetMany(ctx, keys, func(i int, e Entry, err error) {
			if err != nil || string(e.Value) != want[string(keys[i])] {
				t.Errorf("%s is %q, %v, want %q", keys[i], e.Value, err, want[string(keys[i])])
			}
		})
	}
}

// fillEarly sets n keys, and returns what was set.
func fillEarly(t *testing.T, ctx context.Context, m *Map, n int) map[string]string {
	t.Helper()
	want := map[string]string{}
	for i := range n {
		k, v := fmt.Sprint("key", i), fmt.Sprint("value", i)
		if err := m.Set(ctx, []byte(k), Entry{Value: []byte(v)}); err != nil {
			t.Fatal(err)
		}
		want[k] = v
	}
	settleAll(t, ctx, m)
	return want
}

// settleAll has leaves know, and they alone, what they can of m.
func settleAll(t *testing.T, ctx context.Context, m *Map) {
	t.Helper()
	for known := 0; ; {
		m.eachShard(func(sh *shard) {
			if sh.cold == nil {
				sh.cold = new(leafIndex)
			}
			sh.cold.settling = true
		})
		if err := m.h.settler.wait(ctx); err != nil {
			t.Fatal(err)
		}
		known = 0
		m.eachShard(func(sh *shard) {
			if !sh.hasLeaves() {
				return
			}
			for p := range sh.t.All() {
				if w := *sh.t.Word(p); w&index.Settled != 0 && w.Settles() && sh.t.Alone(p) {
					sh.leave(p)
				}
			}
			known += sh.cold.Count()
		})
		if known > 0 {
			return
		}
	}
}

const earlyKeys = 8000

// A transaction that clears a map and is rolled back leaves it as it was, and one that is
// committed gives back all that the leaves referred to.
func TestLeavesOfAClearedMapComeBackOrAreBuried(t *testing.T) {
	t.Parallel()
	h, m := openEarly(t, heap.NewMemStore(64<<10, 4000), 400<<10)
	ctx := within(t, 2*time.Minute)
	want := fillEarly(t, ctx, m, earlyKeys)
	tx := h.NewTxn()
	tx.Clear(m)
	if n := m.Len(); n != 0 {
		t.Errorf("%d keys in the cleared map", n)
	}
	for i := range 500 {
		if err := tx.Set(ctx, m, fmt.Append(nil, "key", i), Entry{Value: []byte("new")}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.Get(ctx, []byte("key5000"), nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("a key that was cleared: %v", err)
	}
	tx.Rollback()
	if n := m.Len(); n != len(want) {
		t.Errorf("%d keys after the rollback, want %d", n, len(want))
	}
	sameKeys(t, ctx, m, want)

	tx.Clear(m)
	if err := tx.Set(ctx, m, []byte("key1"), Entry{Value: []byte("new")}); err != nil {
		t.Fatal(err)
	}
	tx.Commit()
	sameKeys(t, ctx, m, map[string]string{"key1": "new"})
	awaitBurial(t, ctx, h)

	want = fillEarly(t, ctx, m, earlyKeys)
	sameKeys(t, ctx, m, want)
	m.Clear()
	sameKeys(t, ctx, m, nil)
	awaitBurial(t, ctx, h)
	if n := m.Len(); n != 0 {
		t.Errorf("%d keys in the cleared map", n)
	}

	want = fillEarly(t, ctx, m, earlyKeys)
	m.Free()
	if _, err := m.Get(ctx, []byte("key1"), nil); !errors.Is(err, heap.ErrFreed) {
		t.Errorf("a key of a freed map: %v", err)
	}
	other := h.NewByteMap("of the same number")
	awaitBurial(t, ctx, h)
	for k, v := range want {
		if _, err := other.Get(ctx, []byte(k), nil); !errors.Is(err, ErrNotFound) {
			t.Fatalf("%s, which was %s in a freed map: %v", k, v, err)
		}
	}
	if s := h.Stats(); s.Lines[heap.Tables] != 0 || s.LeavesFar != 0 {
		t.Errorf("%d bytes of tables and %d of leaves are left", s.Lines[heap.Tables], s.LeavesFar)
	}
}

// Changes of a transaction to keys that only leaves know are undone, or count, like others.
func TestATransactionChangesWhatOnlyLeavesKnow(t *testing.T) {
	t.Parallel()
	h, m := openEarly(t, heap.NewMemStore(64<<10, 4000), 400<<10)
	ctx := within(t, 2*time.Minute)
	want := fillEarly(t, ctx, m, earlyKeys)
	r := rand.New(rand.NewPCG(3, 4))
	for round := range 100 {
		tx := h.NewTxn()
		after := map[string]string{}
		for range 20 {
			k := fmt.Sprint("key", r.IntN(earlyKeys+1000))
			if r.IntN(2) == 0 {
				if _, err := tx.Delete(ctx, m, []byte(k)); err != nil {
					t.Fatal(err)
				}
				after[k] = ""
				continue
			}
			v := fmt.Sprint("round", round)
			if err := tx.Set(ctx, m, []byte(k), Entry{Value: []byte(v)}); err != nil {
				t.Fatal(err)
			}
			after[k] = v
		}
		if round%2 == 0 {
			tx.Rollback()
			continue
		}
		tx.Commit()
		for k, v := range after {
			if want[k] = v; v == "" {
				delete(want, k)
			}
		}
	}
	sameKeys(t, ctx, m, want)
	if m.Len() != len(want) {
		t.Errorf("%d keys, want %d", m.Len(), len(want))
	}
}

// What a leaf does not know, and was set since, takes one place in a table: that there was nothing is not said any
// more. It would stay for as long as the entry is used, and there would be room for half as many words.
func TestANewEntryTakesOnePlace(t *testing.T) {
	t.Parallel()
	h, m := openEarly(t, heap.NewMemStore(64<<10, 4000), 400<<10)
	ctx := within(t, 2*time.Minute)
	fillEarly(t, ctx, m, earlyKeys)
	set := func(set func(k []byte, e Entry) error, name string) {
		for i := range 500 {
			if err := set(fmt.Append(nil, name, i), Entry{Value: []byte("new")}); err != nil {
				t.Fatal(err)
			}
		}
		untrue := 0
		m.eachShard(func(sh *shard) {
			for p := range sh.t.All() {
				if sh.hasLeaves() && sh.t.Word(p).IsGone() && !sh.t.Alone(p) {
					untrue++
				}
			}
		})
		if untrue > 0 {
			t.Errorf("%s: %d words say that there is no entry with their tags, and there are some", name, untrue)
		}
	}
	set(func(k []byte, e Entry) error { return m.Set(ctx, k, e) }, "new")
	set(func(k []byte, e Entry) error {
		tx := h.NewTxn()
		defer tx.Commit()
		return tx.Set(ctx, m, k, e)
	}, "in a transaction")
}

// A key that was deleted, and that its leaf still knows, stays deleted when a transaction that has set it, and
// then cleared the map, is rolled back.
func TestADeletedKeyStaysDeletedWhenATransactionIsRolledBack(t *testing.T) {
	t.Parallel()
	h, m := openEarly(t, heap.NewMemStore(64<<10, 4000), 400<<10)
	ctx := within(t, 2*time.Minute)
	fillEarly(t, ctx, m, earlyKeys)
	for i := range 100 {
		k := fmt.Append(nil, "key", 7*i)
		if _, err := m.Delete(ctx, k); err != nil {
			t.Fatal(err)
		}
		tx := h.NewTxn()
		if err := tx.Set(ctx, m, k, Entry{Value: []byte("again")}); err != nil {
			t.Fatal(err)
		}
		tx.Clear(m)
		tx.Rollback()
		if e, err := m.Get(ctx, k, nil); !errors.Is(err, ErrNotFound) {
			t.Fatalf("%s was deleted, and is %q, %v", k, e.Value, err)
		}
	}
}

// Goroutines that change and read keys of their own, in a map of which most is known by leaves alone,
// each see what they have written, while others iterate, fetch and clean.
func TestManyUseAMapOfWhichTheWordsAreFar(t *testing.T) {
	t.Parallel()
	h, m := openEarly(t, heap.NewMemStore(64<<10, 4000), 400<<10)
	ctx := within(t, 2*time.Minute)
	fillEarly(t, ctx, m, earlyKeys)
	var wg sync.WaitGroup
	const users = 4
	for u := range users {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(5, uint64(u)))
			mine := map[int]string{}
			for step := range 3000 {
				i := r.IntN(earlyKeys/users)*users + u
				k := fmt.Append(nil, "key", i)
				want, ok := mine[i]
				if !ok {
					want = fmt.Sprint("value", i)
				}
				switch r.IntN(5) {
				case 0, 1:
					v := fmt.Sprint("user", u, "step", step)
					if err := m.Set(ctx, k, Entry{Value: []byte(v)}); err != nil {
						t.Error(err)
						return
					}
					mine[i] = v
				case 2:
					if was, err := m.Delete(ctx, k); err != nil || was != (want != "") {
						t.Errorf("deleted %s: %v, %v, want %v", k, was, err, want != "")
						return
					}
					mine[i] = ""
				default:
					e, err := m.Get(ctx, k, nil)
					if string(e.Value) != want || (err == nil) != (want != "") || want == "" && !errors.Is(err, ErrNotFound) {
						t.Errorf("%s is %q, %v, want %q", k, e.Value, err, want)
						return
					}
				}
			}
		})
	}
	stop := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() {
		for r := rand.New(rand.NewPCG(6, 6)); ; {
			select {
			case <-stop:
				return
			default:
			}
			var keys [][]byte
			for range 30 {
				keys = append(keys, fmt.Append(nil, "key", r.IntN(earlyKeys+500)))
			}
			if err := m.Prefetch(ctx, keys...); err != nil {
				t.Error(err)
				return
			}
			if err := m.FetchHeads(ctx, keys); err != nil {
				t.Error(err)
				return
			}
			if _, err := m.Scan(ctx, uint64(r.IntN(8))<<32|uint64(r.Uint32()), func([]byte, Entry) {}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	wg.Wait()
	close(stop)
	others.Wait()
	n := 0
	for _, err := range allKeys(ctx, m) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != m.Len() {
		t.Errorf("%d keys come, want %d", n, m.Len())
	}
	if s := h.Stats(); s.Settled == 0 || s.LeafReads == 0 || s.LeavesFar == 0 {
		t.Errorf("the test tested nothing: %+v", s)
	}
}

// Calls that must not wait say so where a leaf has to be read, and need not once it was fetched, whether
// there is such a key or not.
func TestWhatOnlyALeafKnowsIsFetchedAndThenNeedNotBeWaitedFor(t *testing.T) {
	t.Parallel()
	_, m := openEarly(t, heap.NewMemStore(64<<10, 4000), 400<<10)
	ctx := within(t, 2*time.Minute)
	fillEarly(t, ctx, m, earlyKeys)
	waited := 0
	for i := range 200 {
		k := fmt.Append(nil, "key", i*61)
		_, err := m.Get(heap.NoWait, k, nil)
		if errors.Is(err, heap.ErrWouldBlock) {
			waited++
			if err := m.Prefetch(ctx, k); err != nil {
				t.Fatal(err)
			}
			_, err = m.Get(heap.NoWait, k, nil)
		}
		if there := i*61 < earlyKeys; there != (err == nil) || !there && !errors.Is(err, ErrNotFound) {
			t.Errorf("%s after it was fetched: %v", k, err)
		}
	}
	if waited == 0 {
		t.Error("no call would have waited")
	}
}

// When far memory with leaves is lost, each key that was in them gives a heap.LostError until it is set or deleted; nothing
// gives other bytes, and the rest is there.
func TestKeysOfLostLeavesAreLostUntilTheyAreSet(t *testing.T) {
	t.Parallel()
	store := storetest.New(64<<10, 4000)
	h, m := openEarly(t, store, 400<<10)
	ctx := within(t, 2*time.Minute)
	want := fillEarly(t, ctx, m, earlyKeys)
	var seg heap.Segment
	most := int64(0) // live in it: a leaf or two may be of no range with keys
	h.core.Far.All(func(s *heap.FarSegment) {
		if live := s.Live.Load(); s.HasPages() && live > most {
			seg, most = s.Seg, live
		}
	})
	store.Lose(func(_ int, s heap.Segment) bool { return s == seg })
	lost, there := 0, 0
	for k, v := range want {
		e, err := m.Get(ctx, []byte(k), nil)
		var gone *heap.LostError
		switch {
		case err == nil && string(e.Value) == v:
			there++
		case errors.As(err, &gone):
			lost++
		default:
			t.Fatalf("%s is %q, %v", k, e.Value, err)
		}
	}
	if lost == 0 || there == 0 {
		t.Fatalf("%d keys are lost, %d are there", lost, there)
	}
	for k := range want {
		if err := m.Set(ctx, []byte(k), Entry{Value: []byte("again")}); err != nil {
			t.Fatal(err)
		}
		want[k] = "again"
	}
	sameKeys(t, ctx, m, want)
	settleAll(t, ctx, m)
	again := 0 // keys that leaves of lost ranges know
	m.eachShard(func(sh *shard) {
		for i := range sh.cold.Len() {
			if r := sh.cold.At(i); r.Lost() {
				again += r.Count()
			}
		}
	})
	if again == 0 {
		t.Error("the ranges that were lost have no leaves again")
	}
	sameKeys(t, ctx, m, want)
	for k := range want {
		if _, err := m.Delete(ctx, []byte(k)); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Get(ctx, []byte(k), nil); !errors.Is(err, ErrNotFound) {
			t.Fatalf("%s was deleted: %v", k, err)
		}
	}
	if err := h.settler.wait(ctx); err != nil {
		t.Fatal(err)
	}
	for k := range want {
		if _, err := m.Get(ctx, []byte(k), nil); !errors.Is(err, ErrNotFound) {
			t.Fatalf("%s was deleted long ago: %v", k, err)
		}
	}
}

// Whoever asks for keys that are not there, in ranges of which the leaves were lost, does not fill the table up: what it
// says of them it may forget.
func TestAbsentKeysOfLostLeavesTakeNoPlace(t *testing.T) {
	t.Parallel()
	store := storetest.New(64<<10, 4000)
	h, m := openEarly(t, store, 400<<10)
	ctx := within(t, 2*time.Minute)
	fillEarly(t, ctx, m, earlyKeys)
	for range 3 { // the settler may write leaves elsewhere meanwhile
		lost := map[heap.Segment]bool{}
		h.core.Far.All(func(s *heap.FarSegment) {
			if s.HasPages() && s.Live.Load() > 0 {
				lost[s.Seg] = true
			}
		})
		store.Lose(func(_ int, s heap.Segment) bool { return lost[s] })
	}
	before := h.core.Logs.Of(heap.Tables)
	const asked = 20_000
	gone := 0
	for i := range asked {
		var l *heap.LostError
		if _, err := m.Get(ctx, fmt.Append(nil, "none", i), nil); errors.As(err, &l) {
			gone++
		} else if !errors.Is(err, ErrNotFound) {
			t.Fatal(err)
		}
	}
	if gone < asked/2 {
		t.Fatalf("%d of %d keys may have been lost, want most", gone, asked)
	}
	if after := h.core.Logs.Of(heap.Tables); after > before+16*asked/4 {
		t.Errorf("tables of %d bytes have become %d", before, after)
	}
}

// A count that is wrong, whatever made it so, is found when the leaf is read, and counted again; nobody
// is told anything wrong, and nothing panics.
func TestAWrongCountOfALeafIsCountedAgain(t *testing.T) {
	t.Parallel()
	for _, off := range []int{-1000, 1000} {
		t.Run(fmt.Sprint(off), func(t *testing.T) {
			h, m := openEarly(t, heap.NewMemStore(64<<10, 4000), 400<<10)
			ctx := within(t, 2*time.Minute)
			want := fillEarly(t, ctx, m, earlyKeys)
			m.eachShard(func(sh *shard) {
				sh.cold.gen++            // what is being settled is so with the right counts
				sh.forget(&h.Maps, 0, 0) // or what is forgotten later might make up for what is missing
				for i := range sh.cold.Len() {
					if r := sh.cold.At(i); r.Addr() != 0 && !r.Shared() {
						sh.cold.Set(i, r.WithCount(r.Count()+off))
					}
				}
			})
			sameKeys(t, ctx, m, want)
			if h.miscounts.Swap(0) == 0 { // the audit would tell of it
				t.Error("no count was found to be wrong")
			}
		})
	}
}

// A leaf that an iteration has read counts for as long as its address means the same segment: that may be another one,
// with another leaf at the same place, when the iteration goes on.
func TestAnIterationReadsALeafAgainWhoseSegmentIsAnother(t *testing.T) {
	t.Parallel()
	h, m := openEarly(t, heap.NewMemStore(64<<10, 4000), 400<<10)
	ctx := within(t, 2*time.Minute)
	fillEarly(t, ctx, m, earlyKeys)
	leafOf := func(sh *shard) (addr uint64, seg *heap.FarSegment) {
		sh.mu.Lock()
		defer sh.mu.Unlock()
		if sh.hasLeaves() && sh.cold.At(0).Addr() != 0 {
			addr = sh.cold.At(0).Addr()
			seg = h.core.Far.Seg(addr)
		}
		return addr, seg
	}
	for i := range m.shards() {
		sh := m.at(i)
		a, seg := leafOf(sh)
		if a == 0 {
			continue
		}
		for _, same := range []bool{true, false} {
			s := scanner{m: m, b: h.core.NewBatch(scanStep), of: index.Word.Committed, leaf: scannedLeaf{a, seg, nil}}
			if !same {
				s.leaf.seg = new(heap.FarSegment)
			}
			s.collect(uint64(i)<<32, 64)
			if err := s.fetch(ctx); err != nil {
				t.Fatal(err)
			}
			s.b.End()
			if now, seg2 := leafOf(sh); now != a || seg2 != seg {
				break // the settler was here
			}
			if s.again == same {
				t.Errorf("the segment is the same one: %v, and the leaf is read again: %v", same, s.again)
			}
			if !same {
				return
			}
		}
	}
	t.Error("no shard has leaves that stay")
}

// A key that only a leaf knows takes two dependent reads, one that is not there takes one, and neither takes more
// the second time than the entry itself.
func TestAColdKeyTakesTwoReadsAndAnAbsentOneTakesOne(t *testing.T) {
	t.Parallel()
	h, m := openEarly(t, heap.NewMemStore(64<<10, 4000), 400<<10)
	ctx := within(t, 2*time.Minute)
	fillEarly(t, ctx, m, earlyKeys)
	reads := func(k string) uint64 {
		before := h.Stats().Fetches
		if _, err := m.Get(ctx, []byte(k), nil); err != nil && !errors.Is(err, ErrNotFound) {
			t.Fatal(err)
		}
		return h.Stats().Fetches - before
	}
	const n = 200
	var present, absent uint64
	more, moved := 0, 0 // keys that took one read more: the settler or the cleaner has moved what was just being read
	for i := range n {
		r := reads(fmt.Sprint("key", i*(earlyKeys/n)))
		if present += r; r > 2 {
			more++
		}
		none := fmt.Sprint("none", i)
		if r = reads(none); r == 2 {
			moved++
			r = reads(none)
		}
		absent += r
	}
	if max(more, moved) > n/50 || present > 2*n || absent > n {
		t.Errorf("%d keys took %d reads, %d of them more than 2, and %d absent ones %d, of which %d were asked for again; want at most 2 and 1 each", n, present, more, n, absent, moved)
	}
	if present < n/2 || absent < n/2 { // some keys are local
		t.Errorf("the test tested nothing: %d reads of %d keys, %d of absent ones", present, n, absent)
	}
}

// When entries have been set at random, far memory is cleaned until it is no more than half as much again as what
// lives in it, leaves included.
func TestLeavesTakeNoMoreFarMemoryThanTheyMay(t *testing.T) {
	t.Parallel()
	const segment = 16 << 10
	h, m := openEarly(t, heap.NewMemStore(segment, 16000), 400<<10)
	ctx := within(t, 2*time.Minute)
	fillEarly(t, ctx, m, earlyKeys)
	r := rand.New(rand.NewPCG(9, 9))
	for i := range ofModel(4 * earlyKeys) {
		if err := m.Set(ctx, fmt.Append(nil, "key", r.IntN(earlyKeys)), Entry{Value: fmt.Append(nil, "value", i)}); err != nil {
			t.Fatal(err)
		}
	}
	for {
		s := h.Stats()
		if s.FarDead <= s.FarLive/2+2*segment { // those that are open are not cleaned
			t.Logf("%d bytes live, %d are dead, %d live in leaves", s.FarLive, s.FarDead, s.LeavesFar)
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("of %d bytes of far memory %d live, want two thirds; %d live in leaves", s.FarLive+s.FarDead, s.FarLive, s.LeavesFar)
		case <-time.After(time.Millisecond):
		}
	}
}

// TestLeavesAreCleanedWhereCheckpointsMakeNoRoom, though nothing is settled meanwhile, and little enough is dead for them to stay otherwise.
func TestLeavesAreCleanedWhereCheckpointsMakeNoRoom(t *testing.T) {
	t.Parallel()
	h, m := openEarly(t, heap.NewMemStore(16<<10, 16000), 400<<10)
	ctx := within(t, time.Minute)
	fillEarly(t, ctx, m, earlyKeys)
	dead := func() float64 {
		_, _, live, filled := h.core.Far.Pages()
		return float64(filled-live) / float64(filled)
	}
	for i := 0; dead() < 2*cleanPagesFull; i++ {
		if err := m.Set(ctx, fmt.Append(nil, "key", i%earlyKeys), Entry{}); err != nil {
			t.Fatal(err)
		}
	}
	for h.CleanLeaves(); dead() > cleanPagesFull; time.Sleep(time.Millisecond) {
		if ctx.Err() != nil {
			t.Fatalf("%.2f of the far memory of leaves are dead, want %.2f at the most", dead(), cleanPagesFull)
		}
	}
}

// awaitBurial returns when what leaves of cleared maps referred to is accounted for as dead.
func awaitBurial(t *testing.T, ctx context.Context, h *testHeap) {
	t.Helper()
	for h.settler.burying() {
		if err := h.settler.wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// While reads and writes fail and bytes come damaged, calls fail, or do what they say; and when that is over, all
// is there.
func TestFaultsOfFarMemoryLoseNoWords(t *testing.T) {
	t.Parallel()
	store := storetest.New(64<<10, 4000)
	_, m := openEarly(t, store, 400<<10)
	ctx := within(t, 2*time.Minute)
	want := fillEarly(t, ctx, m, earlyKeys)
	store.Flaky.Store(20)
	store.Corrupt.Store(20)
	r := rand.New(rand.NewPCG(8, 8))
	failed := 0
	for i := range ofModel(12000) {
		k := fmt.Sprint("key", r.IntN(earlyKeys))
		v, there := want[k]
		var err error
		switch r.IntN(4) {
		case 0, 1:
			if err = m.Set(ctx, []byte(k), Entry{Value: fmt.Append(nil, "v", i)}); err == nil {
				want[k] = fmt.Sprint("v", i)
			}
		case 2:
			var was bool
			if was, err = m.Delete(ctx, []byte(k)); err == nil {
				if was != there {
					t.Fatalf("deleted %s: %v, want %v", k, was, there)
				}
				delete(want, k)
			}
		default:
			var e Entry
			if e, err = m.Get(ctx, []byte(k), nil); errors.Is(err, ErrNotFound) != !there && (err == nil || errors.Is(err, ErrNotFound)) || err == nil && string(e.Value) != v {
				t.Fatalf("%s is %q, %v, want %q, %v", k, e.Value, err, v, there)
			}
			if errors.Is(err, ErrNotFound) {
				err = nil
			}
		}
		var bad *heap.CorruptError
		if err != nil && !errors.Is(err, storetest.ErrInjected) && !errors.As(err, &bad) {
			t.Fatal(err)
		}
		if err != nil {
			failed++
		}
	}
	if failed == 0 {
		t.Error("nothing failed")
	}
	store.Flaky.Store(0)
	store.Corrupt.Store(0)
	sameKeys(t, ctx, m, want)
	if m.Len() != len(want) {
		t.Errorf("%d keys, want %d", m.Len(), len(want))
	}
}

// While a directory is doubled, its leaves are split; what the table forgets while the halves are being written is
// counted for the half that it is of: it would be less than none when it is learned again.
func TestWhatIsForgottenWhileLeavesAreSplitIsCounted(t *testing.T) {
	var h *testHeap
	var forgotten atomic.Int64
	var on atomic.Bool
	changed := map[*shard]bool{}
	audit := func(sh *shard) { // counts again
		if err := h.auditLeaves(sh, func(uint64, int) {}); err != nil {
			t.Error(err)
		}
	}
	forget := func(sh *shard) {
		if !sh.hasLeaves() {
			return
		}
		if changed[sh] {
			delete(changed, sh)
			audit(sh)
		}
		for p := range sh.t.All() {
			w := *sh.t.Word(p)
			i := sh.cold.Of(sh.t.Tag(p))
			if first, n := sh.cold.Group(i); n == 2 && i != first && w&index.Settled != 0 && w.Settles() && sh.t.Alone(p) && !h.cleans(w) {
				sh.leave(p)
				forgotten.Add(1)
				changed[sh] = true
			}
		}
	}
	t.Cleanup(func() { failpoint.Set(nil) }) // after the heap has been closed
	failpoint.Set(func(name string) {
		if name == "far.settling-leaves" && on.Load() {
			for _, m := range *h.maps.Load() {
				m.eachShard(forget)
			}
		}
	})
	h, _ = openEarly(t, heap.NewMemStore(64<<10, 4000), 400<<10)
	ctx := within(t, 2*time.Minute)
	on.Store(true)
	r := rand.New(rand.NewPCG(1, 2))
	// Whether a settled word is in the table while its leaf is split is a matter of luck, which reading helps. Each new
	// map is another try.
	for try := 0; forgotten.Load() == 0 && ctx.Err() == nil; try++ {
		m := h.NewByteMap(fmt.Sprint("split", try))
		for i := range 2 * earlyKeys {
			if err := m.Set(ctx, fmt.Append(nil, "key", i), Entry{Value: fmt.Append(nil, "value", i)}); err != nil {
				t.Fatal(err)
			}
			if _, err := m.Get(ctx, fmt.Append(nil, "key", r.IntN(i+1)), nil); err != nil { // may learn a settled word
				t.Fatal(err)
			}
		}
		settleAll(t, ctx, m)
		m.eachShard(audit)
		m.Free()
	}
	on.Store(false)
	if forgotten.Load() == 0 {
		t.Error("nothing was forgotten")
	}
}
