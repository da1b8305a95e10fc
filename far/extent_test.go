package far

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"polder/codec"
	"polder/far/farlog"
	"polder/far/heap"
	"polder/far/object"
	"polder/far/objects"
)

// extentStore counts what is asked of a MemStore, and damages what it answers.
type extentStore struct {
	*heap.MemStore
	allocs, reads atomic.Int64
	damage        func(op *heap.ReadOp) // if not nil, of every read
}

func (s *extentStore) Alloc(ctx context.Context) (heap.Segment, error) {
	s.allocs.Add(1)
	return s.MemStore.Alloc(ctx)
}

func (s *extentStore) Read(ctx context.Context, ops []heap.ReadOp) {
	s.reads.Add(int64(len(ops)))
	s.MemStore.Read(ctx, ops)
	for i := range ops {
		if s.damage != nil {
			s.damage(&ops[i])
		}
	}
}

// sequence makes an array of so many elements, each of which is its number.
func sequence(t *testing.T, h *Heap, n int) *Array[int64] {
	t.Helper()
	a := newArray[int64](t, h, n, StructureConfig{Group: 128})
	s := h.NewScope()
	defer s.Close()
	for i, b := range a.StreamMutChunks(s, 0, n) {
		for k := range b {
			b[k] = int64(i + k)
		}
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	return a
}

// What was evacuated side by side is read together: there is a read for everything
// in a row, and another one where a segment of the logs is full.
func TestObjectsSideBySideAreReadTogether(t *testing.T) {
	store := &extentStore{MemStore: heap.NewMemStore(tinySegment, 1<<10)}
	h := openObjects(t, store, 24)
	const groups, few = 800, 10 // of which no more than two segments are filled
	a := sequence(t, h, groups*128)
	fetched := uint64(0)
	for first := 0; first < groups; first += few {
		var refs []AnyRef
		most, next := 1, uint64(0)
		for i := range few {
			p := &a.words[first+i]
			w := objects.Load(p)
			if !w.Far() {
				next = 0
				continue
			}
			if w.FarAddr() != next || w.FarAddr()%h.core.Far.Units == 0 {
				most++
			}
			next = w.FarAddr() + uint64(object.FarSize(1<<10)/heap.Unit)
			refs = append(refs, AnyRef{h.objects.Number(p)})
		}
		before, objects := store.reads.Load(), h.Stats().Fetches
		done(t, h.Prefetch(t.Context(), refs...))
		if n := int(store.reads.Load() - before); n > most {
			t.Errorf("%d objects from %d on took %d reads, want %d at the most", len(refs), first, n, most)
		}
		fetched += h.Stats().Fetches - objects
	}
	reads := uint64(store.reads.Load())
	if reads == 0 || reads > fetched/2 {
		t.Errorf("%d objects took %d reads", fetched, reads)
	}
}

// Elements lie in local memory as if they had come alone, when they have come
// together, forwards and backwards: they are evacuated again, and changed, and
// counted.
func TestElementsInSequenceAreReadTogether(t *testing.T) {
	store := &extentStore{MemStore: heap.NewMemStore(tinySegment, 1<<10)}
	h := openObjects(t, store, 64)
	const groups = 4000
	a := sequence(t, h, groups*128)
	s := h.NewScope()
	defer s.Close()
	for round := range 3 {
		for i, b := range a.StreamMutChunks(s, 0, a.Len()) {
			for k := range b {
				if want := int64(i + k + round/2); b[k] != want {
					t.Fatalf("round %d: element %d is %d, want %d", round, i+k, b[k], want)
				}
				b[k] += int64(round % 2)
			}
		}
		if err := s.Err(); err != nil {
			t.Fatal(err)
		}
	}
	if fetched := h.Stats().Fetches; uint64(store.reads.Load()) >= fetched {
		t.Errorf("%d groups were fetched in %d reads", fetched, store.reads.Load())
	}
	next := a.Len() - 1
	for i, v := range a.Backward(s) {
		if i != next || *v != int64(i)+1 {
			t.Fatalf("element %d, backwards: got element %d, which is %d", next, i, *v)
		}
		next--
	}
	if next != -1 {
		t.Errorf("backwards it ended at element %d (%v)", next+1, s.Err())
	}
	if st := a.Stats(); st.Prefetched == 0 || st.BytesIn == 0 {
		t.Errorf("the statistics are %+v", st)
	}
}

// Of entries that come together, one that is damaged harms none of the others.
func TestDamageInAnExtentIsOfOneObject(t *testing.T) {
	store := &extentStore{MemStore: heap.NewMemStore(tinySegment, 1<<10)}
	h := openObjects(t, store, 16)
	const groups = 200
	a := sequence(t, h, groups*128)
	store.damage = func(op *heap.ReadOp) {
		if each := object.FarSize(1 << 10); len(op.Buf) >= 3*each {
			op.Buf[each+100] ^= 4 // in the data of the second one
		}
	}
	s := h.NewScope()
	defer s.Close()
	for i := range groups {
		s.Enter()
		refs := make([]AnyRef, 0, 8)
		for k := i; k < min(i+8, groups); k++ {
			refs = append(refs, AnyRef{h.objects.Number(&a.words[k])})
		}
		s.Leave()
		if err := h.Prefetch(t.Context(), refs...); err != nil {
			t.Fatal(err)
		}
		v, err := a.Get(t.Context(), i*128+7)
		var corrupt *heap.CorruptError
		if err == nil && v != int64(i*128+7) || err != nil && !errors.As(err, &corrupt) {
			t.Fatalf("group %d: got %d, %v", i, v, err)
		}
	}
	if h.Stats().Corrupt == 0 {
		t.Error("nothing was damaged")
	}
	store.damage = nil
	for i, v := range a.All(s) {
		if *v != int64(i) {
			t.Fatalf("element %d is %d", i, *v)
		}
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
}

// extentLeast is the size from which on objects are read together to where they stay: see package objects.
const extentLeast = 1 << 10

// Objects of every size come together whole: however much of an entry is left over
// behind its object, laying it out harms no other.
func TestObjectsOfEverySizeComeTogether(t *testing.T) {
	t.Parallel()
	together[[extentLeast]byte](t)
	together[[extentLeast + 1]byte](t)
	together[[extentLeast + 12]byte](t)
	together[[extentLeast + 13]byte](t)
	together[[extentLeast + 15]byte](t)
}

// together makes objects, of which most become far, and prefetches some that are.
func together[T any](t *testing.T) {
	t.Helper()
	store := &extentStore{MemStore: heap.NewMemStore(tinySegment, 1<<10)}
	h := openObjects(t, store, 24)
	c := got(NewClass[T](h, ClassConfig{}))(t)
	run := got(c.NewRun(t.Context(), 600))(t)
	for i := range run.Len() {
		var v T
		for k := range codec.Bytes(&v) {
			codec.Bytes(&v)[k] = byte(i + k)
		}
		done(t, run.At(i).Store(t.Context(), v))
	}
	const few = 10
	var refs []AnyRef
	for i := range few {
		refs = append(refs, run.At(i).Any())
	}
	before := store.reads.Load()
	done(t, h.Prefetch(t.Context(), refs...))
	if n := store.reads.Load() - before; n == 0 || n >= few {
		t.Errorf("%d objects of %d bytes took %d reads", few, c.c.Size, n)
	}
	for i := range run.Len() {
		v := got(run.At(i).Load(t.Context()))(t)
		for k, b := range codec.Bytes(&v) {
			if b != byte(i+k) {
				t.Fatalf("byte %d of object %d of %d bytes is %d, want %d", k, i, c.c.Size, b, byte(i+k))
			}
		}
	}
	if n := h.Stats().Corrupt; n != 0 {
		t.Errorf("%d objects of %d bytes were taken for corrupt", n, c.c.Size)
	}
}

// What an iteration fetches by itself is counted when it has come, and not as
// something that was prefetched when it has not.
func TestWhatDoesNotComeIsNotCounted(t *testing.T) {
	store := &extentStore{MemStore: heap.NewMemStore(tinySegment, 1<<10)}
	h := openObjects(t, store, 24)
	a := sequence(t, h, 800*128)
	before := a.Stats().ClassStats
	store.damage = func(op *heap.ReadOp) { clear(op.Buf) }
	s := h.NewScope()
	defer s.Close()
	for range a.Stream(s) {
	}
	var corrupt *heap.CorruptError
	if err := s.Err(); !errors.As(err, &corrupt) {
		t.Errorf("got %v, want a CorruptError", err)
	}
	if st := a.Stats().ClassStats; st.Prefetched != before.Prefetched || st.Misses != before.Misses {
		t.Errorf("nothing came, but there were %d misses and %d objects prefetched, before %d and %d",
			st.Misses, st.Prefetched, before.Misses, before.Prefetched)
	}
}

// What is wholly overwritten is not read before; of what is overwritten in part,
// the rest stays.
func TestWriteReadsOnlyWhatItLeaves(t *testing.T) {
	store := &extentStore{MemStore: heap.NewMemStore(tinySegment, 1<<10)}
	h := openObjects(t, store, 16)
	const n = 300*128 + 50
	a := sequence(t, h, n)
	src := make([]int64, n)
	for i := range src {
		src[i] = -int64(i)
	}
	if err := a.Write(t.Context(), src, 0); err != nil {
		t.Fatal(err)
	}
	if got := h.Stats().Fetches; got != 0 {
		t.Errorf("overwriting all fetched %d groups", got)
	}
	for i := range src {
		src[i] = int64(i)
	}
	const from, to = 128 + 100, n - 20
	if err := a.Write(t.Context(), src[from:to], from); err != nil {
		t.Fatal(err)
	}
	got := make([]int64, n)
	if err := a.Read(t.Context(), got, 0); err != nil {
		t.Fatal(err)
	}
	for i, v := range got {
		want := int64(i)
		if i < from || i >= to {
			want = -want
		}
		if v != want {
			t.Fatalf("element %d is %d, want %d", i, v, want)
		}
	}
}

func TestElementsOfNoSizeAreWritten(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	a := newArray[struct{}](t, h, 5, StructureConfig{Group: 4})
	done(t, a.Write(t.Context(), make([]struct{}, 5), 0))
	done(t, a.Read(t.Context(), make([]struct{}, 5), 0))
}

// Far segments that die are written to again, for a while, and then given back.
func TestDeadSegmentsAreUsedAgainOrGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &extentStore{MemStore: heap.NewMemStore(tinySegment, 1<<10)}
		h := openObjects(t, store, 16)
		const n = 600 * 128
		keep, a := sequence(t, h, n), sequence(t, h, n)
		lent := store.Lent()
		src := make([]int64, n)
		before := store.allocs.Load()
		for range 3 {
			a.Clear()
			if err := a.Write(t.Context(), src, 0); err != nil {
				t.Fatal(err)
			}
		}
		if got := int(store.allocs.Load() - before); got >= 3*lent/2 {
			t.Errorf("overwriting half of %d segments 3 times borrowed %d", lent, got)
		}
		a.Clear()
		keep.Clear()
		time.Sleep(2 * farlog.IdleFor)
		// The open segment and the spare one are all that is kept.
		if got := store.Lent(); got > 3 {
			t.Errorf("%d segments are still lent, want at most 3", got)
		}
	})
}

// What an iteration fetches by itself takes only memory that is there, or soon: whoever
// has the rest may wait for the iteration.
func TestAnImpatientFetchHardlyWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
		a := sequence(t, h, 400*128)
		s := h.NewScope()
		defer s.Close()
		s.Enter() // no pass of the evacuator ends
		defer s.Leave()
		for {
			if _, err := New(NoWait, h, [1000]byte{}); err != nil {
				break
			}
		}
		var refs []uint64
		for i := range 40 {
			refs = append(refs, h.objects.Number(&a.words[i]))
		}
		began := time.Now()
		read, err := h.objects.Fetch(t.Context(), refs, 0, 0, false)
		if took := time.Since(began); err != heap.ErrNoRoom || read == len(refs) || took > heap.MaxPoll {
			t.Errorf("with no room for them, %d of %d objects were read after %v (%v)", read, len(refs), took, err)
		}
	})
}
