package far

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"polder/far/heap"
	"polder/pool/pooltest"
)

// roomyKeeper is a keeper that says how much room it has.
type roomyKeeper struct {
	*keeper
	room   int
	lent   atomic.Int64
	failed atomic.Int64 // how often it still fails to lend
}

func (k *roomyKeeper) Room() (int, bool) { return k.room, true }

var errNotNow = errors.New("not now")

func (k *roomyKeeper) Alloc(ctx context.Context) (heap.Segment, error) {
	if k.failed.Add(-1) >= 0 {
		return nil, errNotNow
	}
	k.lent.Add(1)
	return k.keeper.Alloc(ctx)
}

// TestNobodyWaitsForAReserveThatCanBeHadLater: if the store has plenty of room the reserve is made when the heap is open, also when that fails at first. If it has less,
// there is a reserve before the heap is open, which cannot be had without one.
func TestNobodyWaitsForAReserveThatCanBeHadLater(t *testing.T) {
	const plenty = 16
	open := func(room, fails int) (h *Heap, lent int64, err error) {
		k := &roomyKeeper{keeper: newKeeper(1<<20, 1024), room: room}
		k.reopen = map[string]bool{}
		k.failed.Store(int64(fails))
		h, err = Open(t.Context(), k, Config{Local: MinLocal})
		return h, k.lent.Load(), err
	}
	h, n, err := open(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if n == 0 || h.core.Far.Reserved() != int(n) {
		t.Fatalf("a heap over a store of which nothing is known has %d segments in reserve, and has borrowed %d", h.core.Far.Reserved(), n)
	}
	closeHeap(t, h)
	if h, got, err := open(plenty*int(n)-1, 0); err != nil || got != n {
		t.Errorf("with room for less than %d reserves %d segments are borrowed, %v, want %d", plenty, got, err, n)
	} else {
		closeHeap(t, h)
	}
	if _, _, err := open(0, 1); !errors.Is(err, errNotNow) {
		t.Errorf("a heap without a reserve is opened: %v", err)
	}
	for _, fails := range []int{0, 3} {
		h, got, err := open(plenty*int(n), fails)
		if err != nil || got != 0 {
			t.Fatalf("with plenty of room %d segments are borrowed before the heap is open, %v, want none", got, err)
		}
		pooltest.Eventually(t, "there is a reserve", func() bool { return h.core.Far.Reserved() == int(n) })
		closeHeap(t, h)
	}
}

// TestAHeapIsHandedOver: what it has to spare stays lent until another process opens it, which has what it had, and as much as if the heap had been closed.
func TestAHeapIsHandedOver(t *testing.T) {
	lent := func(end func(*Heap) error) (gone, opened int) {
		k := newKeeper(1<<20, 64)
		h := openKept(t, k, MinLocal, false)
		if err := h.NewByteMap("map").Set(t.Context(), []byte("key"), Entry{Value: []byte("value")}); err != nil {
			t.Fatal(err)
		}
		if err := end(h); err != nil {
			t.Fatal(err)
		}
		gone, k = k.Lent(), k.copy()
		h = openKept(t, k, MinLocal, false)
		defer closeHeap(t, h)
		checkContents(t, h.NewByteMap("map"), map[string]Entry{"key": {Value: []byte("value")}})
		return gone, k.Lent()
	}
	closed, wantOpened := lent((*Heap).Close)
	left, opened := lent(func(h *Heap) error { return h.HandOver(t.Context()) })
	if left <= closed || opened != wantOpened {
		t.Errorf("of a heap that is handed over %d segments are lent, and %d when it is open again; want more than %d, and %d, as of one that is closed", left, opened, closed, wantOpened)
	}
}
