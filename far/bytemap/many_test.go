package bytemap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"polder/far/heap"
	"polder/far/store"
	"polder/far/store/storetest"
)

// cold makes n entries of size bytes of which few are local.
func cold(t testing.TB, m *Map, n, size int) (keys [][]byte) {
	t.Helper()
	for i := range n {
		mustSet(t, m, key(i), value(uint64(i), size))
		keys = append(keys, key(i))
	}
	return keys
}

func TestGetManyTakesOneReadForABatch(t *testing.T) {
	notWithLeaves(t)
	s := storetest.New(tinySegment, 400)
	h, m := newTinyHeap(t, s, 0)
	keys := cold(t, m, 4000, 100)[:200]
	reads, fetches := s.Reads.Load(), h.Stats().Fetches
	m.GetMany(t.Context(), keys, func(i int, e Entry, err error) {
		if err != nil || !bytes.Equal(e.Value, value(uint64(i), 100)) {
			t.Errorf("key %d: got %d bytes, %v", i, len(e.Value), err)
		}
	})
	if reads, fetches := s.Reads.Load()-reads, h.Stats().Fetches-fetches; reads != 1 || fetches < 150 {
		t.Errorf("%d entries were read in %d reads of the store, want nearly 200 in 1", fetches, reads)
	}
}

// TestNeighborsAreReadInOneOperation: what lies side by side in far memory is read in pieces of 64 KiB, whichever entries those are,
// though more is read of each than it has, since its size is not known exactly.
func TestNeighborsAreReadInOneOperation(t *testing.T) {
	notWithLeaves(t)
	s := storetest.New(tinySegment, 400)
	h, m := newTinyHeap(t, s, 0)
	const size, n = 1000, 60
	keys := cold(t, m, 1000, size)[:n]
	before, ops := h.Stats(), s.Ops.Load()
	m.GetMany(t.Context(), keys, func(i int, e Entry, err error) {
		if err != nil || !bytes.Equal(e.Value, value(uint64(i), size)) {
			t.Errorf("key %d: got %d bytes, %v", i, len(e.Value), err)
		}
	})
	after := h.Stats()
	fetches, read := after.Fetches-before.Fetches, after.BytesIn-before.BytesIn
	if ops = s.Ops.Load() - ops; fetches < n*3/4 || ops > n/6 || read > n*(size+100) {
		t.Errorf("%d entries of %d bytes were read in %d operations of %d bytes in all, want one for a row", fetches, size, ops, read)
	}
}

// damagedTwice damages an entry in the first read, and the one behind it when the first one is read again.
type damagedTwice struct {
	heap.Store
	reads int
}

func (s *damagedTwice) Read(ctx context.Context, ops []store.ReadOp) {
	s.Store.Read(ctx, ops)
	switch s.reads++; s.reads {
	case 1: // of both
		ops[0].Buf[500] ^= 1
	case 2: // of what is read of the first one, the end of which is the beginning of the second
		ops[0].Buf[len(ops[0].Buf)-1] ^= 1
	}
}

// TestWhatIsReadAgainLeavesItsNeighborsAlone: an entry that was damaged on its way is read again, and what comes with it of the
// next one, which has been checked, is not taken.
func TestWhatIsReadAgainLeavesItsNeighborsAlone(t *testing.T) {
	notWithLeaves(t)
	s := &damagedTwice{Store: storetest.New(tinySegment, 400), reads: 2}
	_, m := newTinyHeap(t, s, 0)
	const size = 1030 // of which 1152 bytes are read: the next one begins there, and its value, too
	keys := cold(t, m, 1000, size)[:2]
	s.reads = 0
	m.GetMany(t.Context(), keys, func(i int, e Entry, err error) {
		if err != nil || !bytes.Equal(e.Value, value(uint64(i), size)) {
			t.Errorf("key %d: got %d bytes, %v", i, len(e.Value), err)
		}
	})
	if s.reads != 2 {
		t.Errorf("the test tested nothing: there were %d reads, want 2", s.reads)
	}
}

func TestGetManySaysWhatIsWrongWithEachKey(t *testing.T) {
	notWithLeaves(t)
	s := storetest.New(tinySegment, 400)
	h, m := newTinyHeap(t, s, 0)
	keys := cold(t, m, 4000, 100)
	answers := func(ctx context.Context, keys [][]byte) (errs []error) {
		errs = make([]error, len(keys))
		n := 0
		m.GetMany(ctx, keys, func(i int, e Entry, err error) {
			errs[i] = err
			n++
		})
		if n != len(keys) {
			t.Errorf("%d answers to %d keys", n, len(keys))
		}
		return errs
	}
	errs := answers(t.Context(), [][]byte{keys[0], []byte("none"), keys[3999]})
	if errs[0] != nil || !errors.Is(errs[1], ErrNotFound) || errs[2] != nil {
		t.Errorf("got %v, want only that the second is not found", errs)
	}
	if errs := answers(heap.NoWait, [][]byte{keys[1], keys[3999]}); !errors.Is(errs[0], heap.ErrWouldBlock) || errs[1] != nil {
		t.Errorf("without waiting: got %v, want that the first would wait", errs)
	}
	s.FailRead.Store(true)
	if errs := answers(t.Context(), keys[2:4]); !errors.Is(errs[0], storetest.ErrInjected) || !errors.Is(errs[1], storetest.ErrInjected) {
		t.Errorf("while the store fails: got %v, want %v twice", errs, storetest.ErrInjected)
	}
	s.FailRead.Store(false)
	s.Corrupt.Store(1000)
	var ce *heap.CorruptError
	if errs := answers(t.Context(), keys[4:5]); !errors.As(errs[0], &ce) {
		t.Errorf("other bytes: got %v, want a CorruptError", errs)
	}
	s.Corrupt.Store(0)
	release := s.Hold()
	ctx, cancel := context.WithCancelCause(t.Context())
	late := errors.New("too late")
	cancel(late)
	if errs := answers(ctx, keys[5:7]); !errors.Is(errs[0], late) || !errors.Is(errs[1], late) {
		t.Errorf("with a context that has ended: got %v, want %v", errs, late)
	}
	release()
	s.Lose(func(int, heap.Segment) bool { return true })
	var le *heap.LostError
	if errs := answers(t.Context(), keys[7:9]); !errors.As(errs[0], &le) || !errors.As(errs[1], &le) {
		t.Errorf("lost: got %v, want LostErrors", errs)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if errs := answers(t.Context(), keys[:2]); !errors.Is(errs[0], heap.ErrClosed) || !errors.Is(errs[1], heap.ErrClosed) {
		t.Errorf("closed: got %v, want %v", errs, heap.ErrClosed)
	}
}

func TestGetManyReadsLargeValuesToo(t *testing.T) {
	_, m := newTinyHeap(t, storetest.New(tinySegment, 400), 0)
	keys := cold(t, m, 40, 30_000)
	n := 0
	m.GetMany(t.Context(), keys, func(i int, e Entry, err error) {
		if n++; err != nil || !bytes.Equal(e.Value, value(uint64(i), 30_000)) {
			t.Errorf("key %d: got %d bytes, %v", i, len(e.Value), err)
		}
	})
	if n != len(keys) {
		t.Errorf("%d answers to %d keys", n, len(keys))
	}
}

// However many keys there are for the buffers, and though two calls wait for each
// other's reads.
func TestGetManyNeedsNoMoreBuffersThanThereAre(t *testing.T) {
	s := storetest.New(tinySegment, 4000)
	h, m := newTinyHeap(t, s, 0)
	keys := cold(t, m, 1500, 2000)
	backward := make([][]byte, len(keys))
	for i := range keys {
		backward[len(keys)-1-i] = keys[i]
	}
	done := make(chan int)
	for _, ks := range [][][]byte{keys, backward, keys} {
		go func() {
			n := 0
			m.GetMany(t.Context(), ks, func(i int, e Entry, err error) {
				if err == nil && len(e.Value) == 2000 {
					n++
				}
			})
			done <- n
		}()
	}
	for range 3 {
		if n := <-done; n != len(keys) {
			t.Errorf("got %d of %d", n, len(keys))
		}
	}
	if c := h.Stats().Fetches; c < uint64(len(keys))/2 {
		t.Errorf("%d fetches: the test needs more that is far", c)
	}
}

func TestWhoAsksForTheSameByGetManySharesTheRead(t *testing.T) {
	notWithLeaves(t)
	s := storetest.New(tinySegment, 400)
	h, m := newTinyHeap(t, s, 0)
	keys := cold(t, m, 4000, 100)[:50]
	fetches := h.Stats().Fetches
	release := s.Hold()
	done := make(chan error)
	const callers = 4
	for range callers {
		go func() {
			var failed error
			m.GetMany(t.Context(), keys, func(i int, e Entry, err error) {
				if err != nil || !bytes.Equal(e.Value, value(uint64(i), 100)) {
					failed = fmt.Errorf("key %d: got %d bytes, %w", i, len(e.Value), err)
				}
			})
			done <- failed
		}()
	}
	for h.Stats().Maps[0].Coalesced < (callers-2)*uint64(len(keys)) {
		select {
		case err := <-done:
			t.Fatalf("one has not waited: %v", err)
		default:
		}
	}
	release()
	for range callers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if got := h.Stats().Fetches - fetches; got != 2*uint64(len(keys)) {
		t.Errorf("%d entries were read for %d keys that %d callers asked for, want each to be read twice", got, len(keys), callers)
	}
}
