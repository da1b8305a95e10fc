package bytemap

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"polder/far/heap"
	"polder/far/index"
	"polder/far/store/storetest"
)

// Updates of large values go on while other keys of the shard are set, which
// is all the time.
func TestLargeUpdateAmongOtherWriters(t *testing.T) {
	t.Parallel()
	_, m := newTestHeap(t, heap.NewMemStore(testSegment, 1000), testConfig{Local: 16 << 20})
	k := key(0)
	others := make([][]byte, 0, 4)
	for i := 1; len(others) < cap(others); i++ {
		if m.shard(m.hash(key(i))) == m.shard(m.hash(k)) {
			others = append(others, key(i))
		}
	}
	mustSet(t, m, k, make([]byte, 1<<20))
	stop := make(chan struct{})
	var noise, updates sync.WaitGroup
	defer noise.Wait()
	defer close(stop)
	for _, o := range others {
		noise.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					mustSet(t, m, o, value(uint64(i), 100))
				}
			}
		})
	}
	const workers, each = 2, 5
	var tries atomic.Int64
	ctx := within(t, 2*time.Minute)
	for range workers {
		updates.Go(func() {
			for range each {
				err := m.Update(ctx, k, func(old Entry, found bool) (Entry, Verdict, error) {
					tries.Add(1)
					v := append([]byte(nil), old.Value...)
					binary.LittleEndian.PutUint64(v, binary.LittleEndian.Uint64(v)+1)
					old.Value = v
					return old, Put, nil
				})
				if err != nil {
					t.Errorf("Update: %v", err)
					return
				}
			}
		})
	}
	updates.Wait()
	if got := tries.Load(); got > workers*workers*each {
		t.Errorf("%d updates took %d tries", workers*each, got)
	}
	e, err := m.Get(context.Background(), k, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := binary.LittleEndian.Uint64(e.Value); got != workers*each {
		t.Errorf("after %d updates the value is %d", workers*each, got)
	}
}

// A value that is small before an update and large after it is compared by its
// bytes.
func TestUpdateFromSmallToLargeIsAtomic(t *testing.T) {
	store := storetest.New(tinySegment, 4000)
	h, m := newTinyHeap(t, store, 1<<20)
	const workers, each = 4, 30
	k := key(0)
	mustSet(t, m, k, make([]byte, 8))
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				err := m.Update(context.Background(), k, func(old Entry, found bool) (Entry, Verdict, error) {
					n := 8
					if (w+i)%2 == 0 {
						n = 3 * h.pieces
					}
					v := make([]byte, n)
					binary.LittleEndian.PutUint64(v, binary.LittleEndian.Uint64(old.Value)+1)
					old.Value = v
					return old, Put, nil
				})
				if err != nil {
					t.Errorf("Update: %v", err)
				}
			}
		})
	}
	wg.Wait()
	e, err := m.Get(context.Background(), k, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := binary.LittleEndian.Uint64(e.Value); got != workers*each {
		t.Errorf("after %d updates the value is %d", workers*each, got)
	}
}

// The pieces of a large value go with it even if nobody can read its head any
// more when it is replaced.
func TestPiecesOfAnUnreadableHeadGo(t *testing.T) {
	for _, how := range []string{"lost", "corrupt"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := storetest.New(tinySegment, 4000)
				h, m := newTinyHeap(t, store, 0)
				const n = 30
				for i := range n {
					mustSet(t, m, key(i), value(uint64(i), 30000))
				}
				fillTiny(t, h.NewByteMap("other"), 400)
				bad := map[int]bool{}
				if how == "lost" {
					loseThat(store, m, func(w index.Word) bool { return w&index.Big != 0 })
					for i := range n {
						bad[i] = true
					}
				} else {
					store.Corrupt.Store(1000)
					for i := range n {
						var ce *heap.CorruptError
						if _, err := m.Get(context.Background(), key(i), nil); errors.As(err, &ce) {
							bad[i] = true
						}
					}
				}
				for i := range bad {
					mustSet(t, m, key(i), []byte("small"))
				}
				store.Corrupt.Store(0)
				time.Sleep(5 * time.Second) // the janitor's
				heads, pieces := kinds(m)
				if want := heads * ((30000 + h.pieces - 1) / h.pieces); pieces > want {
					t.Errorf("%d pieces are left of %d values, want at most %d", pieces, heads, want)
				}
			})
		})
	}
}

// A failed write leaves nothing behind that is read as if it had been written.
func TestFailedWriteIsNotCleaned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.New(testSegment, 4000)
		h, m := newTinyHeap(t, store, 0)
		r := rand.New(rand.NewPCG(1, 1))
		for round := 0; round < 500 && h.Stats().CleanedSegments < 20; round++ {
			for range 200 {
				mustSet(t, m, key(r.IntN(1000)), value(r.Uint64(), 1000))
			}
			store.FailWrite.Store(true)
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			for m.Set(ctx, key(r.IntN(1000)), Entry{Value: value(r.Uint64(), 1000)}) == nil {
			}
			cancel()
			store.FailWrite.Store(false)
		}
		if s := h.Stats(); s.CleanedSegments == 0 || s.Corrupt != 0 {
			t.Errorf("%d segments were cleaned, with %d corrupt entries; want some, and none", s.CleanedSegments, s.Corrupt)
		}
	})
}

// GetInto reads a large value into the room that there is for it, and grows nothing.
func TestALargeValueIsReadIntoTheRoomThatThereIs(t *testing.T) {
	h, m := newTinyHeap(t, heap.NewMemStore(tinySegment, 4000), 0)
	size := 5 * h.pieces
	mustSet(t, m, key(0), value(1, size))
	mustSet(t, m, key(1), value(2, 10))
	ctx := context.Background()
	room := make([]byte, 3, 3+size)
	for _, dst := range [][]byte{nil, room[: 3 : len(room)+size-1]} {
		if e, n, err := m.GetInto(ctx, key(0), dst); n != size || e.Value != nil || err != nil {
			t.Errorf("without room: got %d bytes, size %d, %v, want the size %d", len(e.Value), n, err, size)
		}
	}
	e, n, err := m.GetInto(ctx, key(0), room)
	if n != 0 || err != nil || len(e.Value) != 3+size || &e.Value[0] != &room[0] {
		t.Fatalf("with room: got %d bytes, size %d, %v, want %d bytes in it", len(e.Value), n, err, 3+size)
	}
	if !bytes.Equal(e.Value[3:], value(1, size)) {
		t.Error("the value has other bytes than were set")
	}
	if e, n, err := m.GetInto(ctx, key(1), nil); n != 0 || err != nil || !bytes.Equal(e.Value, value(2, 10)) {
		t.Errorf("a small value: got %d bytes, size %d, %v", len(e.Value), n, err)
	}
}
