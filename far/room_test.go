package far

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"polder/far/heap"
	"polder/internal/invariants"
	"polder/pool/pooltest"
)

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
