package far

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"polder/far/heap"
	"polder/far/objects"
	"polder/far/store/storetest"
	"polder/internal/invariants"
)

// openDrowsy is openObjects of a heap whose words go far as soon as they may.
func openDrowsy(t testing.TB, store heap.Store, segments int) *Heap {
	t.Helper()
	return OpenTiny(t, store, segments, true)
}

// awaitAsleep returns when at least so many words are far.
func awaitAsleep(t *testing.T, h *Heap, n int) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		far := 0
		h.objects.All(func(_ uint64, w objects.Word) {
			if w.Asleep() {
				far++
			}
		})
		if far >= n {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d words are far, want at least %d", far, n)
		}
	}
}

// evictAll has what is local go far.
func evictAll(t *testing.T, h *Heap) {
	t.Helper()
	var ps []Ptr[[1000]byte]
	for range 2000 {
		p, err := New(context.Background(), h, [1000]byte{})
		if err != nil {
			t.Fatal(err)
		}
		ps = append(ps, p)
	}
	for _, p := range ps {
		p.Free()
	}
}

// awaitAllAsleep has at least half of an array's words go far.
func awaitAllAsleep(t *testing.T, h *Heap, words []uint64) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		n := 0
		for i := range words {
			if !objects.Load(&words[i]).Asleep() {
				n++
			}
		}
		if n <= len(words)/2 {
			return
		}
		// Those of objects in segments that are not full would stay, and so would those beside them.
		if err := h.core.WriteBack(context.Background(), true); err != nil {
			t.Fatal(err)
		}
		evictAll(t, h)
		if time.Now().After(end) {
			t.Fatalf("%d of %d words are not far", n, len(words))
		}
	}
}

// An object that nobody uses takes less than a byte of local memory, and is there when somebody does. The test is not parallel
// to others, for which the goroutine that puts words to sleep would wait.
func TestAnObjectThatNobodyUsesTakesLessThanAByte(t *testing.T) {
	if invariants.Enabled {
		return // one goroutine does much; "make plain" runs it
	}
	const n = 200_000
	h, err := NewHeap(heap.NewMemStore(1<<20, 64), Config{Local: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	ctx := context.Background()
	refs := make([]Ref[point], n)
	for i := range refs {
		p, err := New(ctx, h, point{int64(i), int64(-i)})
		if err != nil {
			t.Fatalf("object %d: %v", i, err)
		}
		refs[i] = p.Ref()
	}
	words := func() int64 { return h.Stats().Lines[heap.Words] }
	m := h.NewByteMap("others")
	for i := 0; words() >= n; i++ {
		if i == 1<<16 {
			t.Fatalf("words of %d objects that nobody uses take %d bytes", n, words())
		}
		if err := m.Set(ctx, key(i%4000), Entry{Value: value(uint64(i), 1000)}); err != nil {
			t.Fatal(err)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for k := range n / 4 {
		i := k
		if k%2 == 0 {
			i = r.IntN(n)
		}
		if v, err := refs[i].Ptr(h).Load(ctx); err != nil || v != (point{int64(i), int64(-i)}) {
			t.Fatalf("object %d: got %v, %v", i, v, err)
		}
	}
	for _, ref := range refs {
		ref.Ptr(h).Free()
	}
	if st := h.Stats(); st.Pointers != 0 {
		t.Errorf("%d pointers are left", st.Pointers)
	}
}

// No index grows to where words that are far could not come back.
func TestWordsThatAreFarHaveRoomToComeBack(t *testing.T) {
	t.Parallel()
	h := openDrowsy(t, heap.NewMemStore(tinySegment, 1<<12), 24)
	ctx := context.Background()
	ps := fillFar(t, h, 16000)
	awaitAsleep(t, h, 8000)
	l, err := NewList[int64](h, StructureConfig{Group: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Free()
	for i := int64(0); err == nil; i++ {
		err = l.PushBack(ctx, i)
	}
	if !errors.Is(err, ErrMetadataFull) && !errors.Is(err, ErrFull) {
		t.Fatalf("got %v, want ErrMetadataFull", err)
	}
	for range 3 {
		for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(len(ps)) {
			if v, err := ps[i].Load(ctx); err != nil || v != (point{int64(i), -int64(i)}) {
				t.Fatalf("object %d: got %v, %v", i, v, err)
			}
		}
	}
}

// Whoever frees an object, or makes it zero, of which the word is far does not wait; whoever uses it then finds that.
func TestWhatIsFreedWhileItsWordIsFar(t *testing.T) {
	t.Parallel()
	h := openDrowsy(t, heap.NewMemStore(tinySegment, 1<<10), 24)
	ctx := context.Background()
	const n = 4 * 512
	a, err := NewArray[point](ctx, h, n, StructureConfig{Group: 1})
	if err != nil {
		t.Fatal(err)
	}
	fill := func() {
		for i := range n {
			if err := a.Set(ctx, i, point{int64(i), 1}); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill()
	awaitAllAsleep(t, h, a.words)
	a.Clear()
	for i := range n {
		if v, err := a.Get(ctx, i); err != nil || v != (point{}) {
			t.Fatalf("element %d after Clear: got %v, %v", i, v, err)
		}
	}
	fill()
	awaitAllAsleep(t, h, a.words)
	before := h.Stats().Pointers
	a.Free()
	if got := h.Stats().Pointers; got != before-n {
		t.Errorf("%d pointers are left, want %d", got, before-n)
	}
}

// What lives is found by the cleaner, though its word is far.
func TestObjectsAreCleanedWhoseWordsAreFar(t *testing.T) {
	t.Parallel()
	const n = 6000
	h := openDrowsy(t, heap.NewMemStore(tinySegment, 32), 24)
	ctx := context.Background()
	c, err := NewClass[[96]byte](h, ClassConfig{})
	if err != nil {
		t.Fatal(err)
	}
	val := func(i int) (v [96]byte) {
		for j := range v {
			v[j] = byte(i>>(8*(j%3)) + j)
		}
		return v
	}
	var kept, older []Ptr[[96]byte]
	var numbers []int
	for i := range 6 * n {
		p, err := c.New(ctx, val(i))
		if err != nil {
			t.Fatalf("object %d: %v", i, err)
		}
		if i%7 == 0 && len(kept) < n/2 {
			kept, numbers = append(kept, p), append(numbers, i)
		} else if older = append(older, p); len(older) == n/2 {
			for _, p := range older { // which are far by now
				p.Free()
			}
			older = older[:0]
		}
	}
	if st := h.Stats(); st.CleanedSegments == 0 {
		t.Error("nothing was cleaned")
	}
	for k, p := range kept {
		if v, err := p.Load(ctx); err != nil || v != val(numbers[k]) {
			t.Fatalf("object %d: wrong, or %v", numbers[k], err)
		}
	}
}

// Objects whose words are lost are, and can be freed.
func TestWordsThatAreLostAreReported(t *testing.T) {
	t.Parallel()
	store := storetest.New(tinySegment, 1<<10)
	h := openDrowsy(t, store, 16)
	ps := fillFar(t, h, 8000)
	awaitAsleep(t, h, 4000)
	evictAll(t, h) // what words are in, too
	if store.Lose(func(i int, _ heap.Segment) bool { return true }) == 0 {
		t.Fatal("there was nothing to lose")
	}
	lost := 0
	for i, p := range ps {
		v, err := p.Load(context.Background())
		var le *heap.LostError
		switch {
		case err == nil && v != (point{int64(i), -int64(i)}):
			t.Fatalf("object %d: got %v", i, v)
		case err != nil && !errors.As(err, &le):
			t.Fatalf("object %d: got %v, want a LostError", i, err)
		case err != nil:
			lost++
		}
		p.Free()
	}
	if lost < 4000 {
		t.Errorf("%d objects are lost, want at least 4000", lost)
	}
	if n := h.Stats().Pointers; n != 0 {
		t.Errorf("%d pointers are left", n)
	}
}

// A heap that is closed, or a store that does not answer, is told to who needs a word that is far.
func TestAWordThatIsFarIsWaitedFor(t *testing.T) {
	t.Parallel()
	store := storetest.New(tinySegment, 1<<10)
	h := openDrowsy(t, store, 16)
	ps := fillFar(t, h, 8000)
	awaitAsleep(t, h, 4000)
	far := 0
	for !objects.Load(ps[far].word()).Asleep() {
		far++
	}
	release := store.Hold()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := ps[far].Load(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want DeadlineExceeded", err)
	}
	release()
	if v, err := ps[far].Load(context.Background()); err != nil || v != (point{int64(far), -int64(far)}) {
		t.Errorf("got %v, %v", v, err)
	}
}
