package bytemap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

// Calls that want more buffers at once than there are must get by with fewer.

// longKey is one of which a header says that it has not been read entirely.
func longKey(i int) []byte { return append(bytes.Repeat([]byte("long "), 20), key(i)...) }

func TestScanOfMoreThanFitsIntoTheBuffers(t *testing.T) {
	store := storetest.New(testSegment, 1000)
	h, m := newTestHeap(t, store, testConfig{})
	n := 20 * h.shards
	want := map[string]bool{}
	for i := range n {
		mustSet(t, m, longKey(i), value(uint64(i), h.pieces))
		want[string(longKey(i))] = true
	}
	ctx := within(t, 30*time.Second)
	steps := 0
	for cursor := uint64(0); ; steps++ {
		next, err := m.Scan(ctx, cursor, func(key []byte, _ Entry) { delete(want, string(key)) })
		if err != nil {
			t.Fatalf("Scan from %#x: %v", cursor, err)
		}
		if cursor = next; cursor == 0 {
			break
		}
	}
	if len(want) > 0 {
		t.Errorf("Scan missed %d of %d keys in %d steps", len(want), n, steps)
	}
}

func TestStrayPiecesGoThoughBuffersAreFew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := storetest.New(testSegment, 1000)
		h, m := newTestHeap(t, store, testConfig{MaxValue: 1 << 20})
		const n = 40
		for i := range n {
			mustSet(t, m, key(i), value(uint64(i), 60*h.pieces))
		}
		other := h.NewByteMap("other")
		for i := range 6000 {
			mustSet(t, other, key(i), value(uint64(i), 1000))
		}
		first := true
		if loseThat(store, m, func(w index.Word) bool {
			ok := first && w&index.Big != 0
			first = first && !ok
			return ok
		}) != 1 {
			t.Fatal("there was nothing to lose")
		}
		time.Sleep(10 * time.Second) // the janitor's
		heads, pieces := kinds(m)
		if want := heads * 60; pieces > want {
			t.Errorf("%d pieces are left of %d values, want %d", pieces, heads, want)
		}
	})
}

// kinds counts the heads of large values that are not lost, and the pieces.
func kinds(m *Map) (heads, pieces int) {
	for i := range m.shards() {
		sh := m.at(i)
		sh.mu.Lock()
		for p := range index.Place(len(sh.t.Buckets) * index.BucketEntries) {
			switch w := *sh.t.Word(p); {
			case w&index.Piece != 0:
				pieces++
			case w&index.Big != 0 && !w.IsLost():
				heads++
			}
		}
		sh.mu.Unlock()
	}
	return heads, pieces
}

func TestRememberedHeadsStaySmall(t *testing.T) {
	store := storetest.New(testSegment, 1000)
	h, m := newTestHeap(t, store, testConfig{})
	n := entry.MostHeads * h.shards
	var keys [][]byte
	for i := range n {
		k := append(key(i), strings.Repeat("k", 10000)...)
		mustSet(t, m, k, nil)
		keys = append(keys, k)
	}
	if err := m.FetchHeads(context.Background(), keys); err != nil {
		t.Fatal(err)
	}
	for i := range m.shards() {
		if m.at(i).heads != nil {
			t.Fatalf("heads with keys of %d bytes are remembered", len(keys[0]))
		}
	}
	if err := m.FetchHeads(context.Background(), keys[:1]); err != nil {
		t.Fatal(err)
	}
	if _, _, err := m.Stat(heap.NoWait, keys[0]); err != nil {
		t.Errorf("Stat after FetchHeads: %v", err)
	}
	for _, k := range keys {
		if _, size, err := m.Stat(context.Background(), k); err != nil || size != 0 {
			t.Fatalf("Stat: %d bytes, %v", size, err)
		}
	}
}

// Who waits for room with all buffers in their hands must not keep the janitor
// from making that room.
func TestWaitersGiveWayToTheJanitor(t *testing.T) {
	calls := map[string]func(m *Map, keys [][]byte) error{
		"Prefetch": func(m *Map, keys [][]byte) error { return m.Prefetch(context.Background(), keys...) },
		"Update": func(m *Map, keys [][]byte) error {
			var wg sync.WaitGroup
			for _, k := range keys {
				wg.Go(func() {
					err := m.Update(context.Background(), k, func(old Entry, _ bool) (Entry, Verdict, error) {
						old.Value = append(bytes.Clone(old.Value), "and more than fits where it was"...)
						return old, Put, nil
					})
					if err != nil && !errors.Is(err, heap.ErrFull) {
						t.Errorf("Update: %v", err)
					}
				})
			}
			wg.Wait()
			return nil
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) { testGivesWay(t, call) })
	}
}

func testGivesWay(t *testing.T, call func(m *Map, keys [][]byte) error) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.New(tinySegment, 4000)
		_, m := newTinyHeap(t, store, 0)
		mustSet(t, m, []byte("large"), value(1, 100000))
		fillTiny(t, m, 1000)
		store.Full.Store(true)
		for i := 0; ; i++ {
			if err := m.Set(context.Background(), fmt.Append(nil, "more", i), Entry{Value: value(uint64(i), 1000)}); errors.Is(err, heap.ErrFull) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		keys := farKeys(t, m, 1000)
		if len(keys) < heap.MaxBatch {
			t.Fatalf("%d keys are far, want %d", len(keys), heap.MaxBatch)
		}
		if err := m.FetchHeads(context.Background(), [][]byte{[]byte("large")}); err != nil && !errors.Is(err, heap.ErrFull) {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		release := store.Hold()
		ended := make(chan error)
		go func() { ended <- call(m, keys[:heap.MaxBatch]) }()
		synctest.Wait() // they have all buffers
		if ok, err := m.Delete(heap.NoWait, []byte("large")); !ok || err != nil {
			t.Fatalf("Delete: %v, %v", ok, err)
		}
		synctest.Wait() // the janitor wants one
		release()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Error("the calls and the janitor wait for each other")
			store.Full.Store(false)
			<-ended
		}
	})
}
