package far

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"polder/far/heap"
	"polder/far/objects"
	"polder/far/record"
	"polder/far/saved"
	"polder/internal/invariants"
	"polder/pool/pooltest"
)

// saveTo copies a snapshot to w, as far as it comes.
func saveTo(t *testing.T, s *saved.Snapshot, w *saved.Writer) error {
	t.Helper()
	for {
		b, err := s.Next(t.Context())
		if errors.Is(err, io.EOF) {
			return w.End()
		}
		if err != nil {
			return err
		}
		if err := w.Add(b); err != nil {
			t.Fatal(err)
		}
	}
}

func snapshotOf(t *testing.T, h *Heap, have map[uint64]uint64) *saved.Snapshot {
	t.Helper()
	s, err := h.Snapshot(t.Context(), have)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// restoredHeap opens what was restored from a file.
func restoredHeap(t *testing.T, file []byte, early bool) *Heap {
	t.Helper()
	c, err := saved.Check(t.Context(), bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	// What the checkpoint does not need, which an earlier snapshot has left in the file, takes no memory, not even for a moment.
	most := c.Segments + 1 + int(c.Checkpoint)/heap.MinSegmentSize*2
	if err := saved.Restore(t.Context(), newKeeper(heap.MinSegmentSize, most), bytes.NewReader(file), c); err != nil {
		t.Errorf("%d segments are too few for a checkpoint that needs %d, and %d bytes: %v", most, c.Segments, c.Checkpoint, err)
	}
	k := newKeeper(heap.MinSegmentSize, 600)
	if err := saved.Restore(t.Context(), k, bytes.NewReader(file), c); err != nil {
		t.Fatal(err)
	}
	if err := saved.Restore(t.Context(), k, bytes.NewReader(file), nil); !errors.Is(err, saved.ErrKept) {
		t.Errorf("a second one over the first: %v", err)
	}
	return openKept(t, k, 4<<20, early)
}

// churn makes n changes of so many keys of a map, and returns what it has then.
func churn(t *testing.T, m *ByteMap, r *rand.Rand, want map[string]Entry, keys, n int) map[string]Entry {
	t.Helper()
	if want = maps.Clone(want); want == nil {
		want = map[string]Entry{}
	}
	for range n {
		key := fmt.Sprintf("key %d", r.IntN(keys))
		if r.IntN(5) == 0 {
			delete(want, key)
			if _, err := m.Delete(t.Context(), []byte(key)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want[key] = anyEntry(r)
		if err := m.Set(t.Context(), []byte(key), want[key]); err != nil {
			t.Fatal(err)
		}
	}
	return want
}

// What was saved is the heap as it was when the snapshot was taken, although all of it was written anew, cleaned away, and followed
// by other checkpoints before the first byte was read; and the heap that was loaded goes on as any other.
func TestASnapshotIsOfTheMomentWhenItWasTaken(t *testing.T) {
	for _, early := range []bool{false, true} {
		if invariants.Enabled && !early {
			continue // "make plain" has both
		}
		t.Run(fmt.Sprintf("early=%v", early), func(t *testing.T) {
			k := newKeeper(heap.MinSegmentSize, 1200)
			h := openKept(t, k, 4<<20, early)
			h.KeepState(func() State { return State{Bytes: []byte("a state")} })
			m, r := h.NewByteMap("things"), rand.New(rand.NewPCG(1, 2))
			want := churn(t, m, r, nil, 4000, 6000)
			s := snapshotOf(t, h, nil)
			later := want
			for range 4 {
				later = churn(t, m, r, later, 4000, 6000)
				if err := h.Checkpoint(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if cleaned := h.Stats().CleanedSegments; cleaned == 0 {
				t.Fatal("nothing was cleaned meanwhile")
			}
			var file bytes.Buffer
			left := s.Left()
			if err := saveTo(t, s, saved.NewWriter(&file)); err != nil {
				t.Fatal(err)
			}
			if s.Left() != 0 || int64(file.Len()) < left {
				t.Errorf("of %d bytes %d are left, and %d were written", left, s.Left(), file.Len())
			}
			s.Close()
			checkContents(t, m, later)
			closeHeap(t, h)
			lent := k.copy()
			checkLent(t, lent, later, early)

			loaded := restoredHeap(t, file.Bytes(), early)
			if got := string(loaded.State()); got != "a state" {
				t.Errorf("the state is %q", got)
			}
			m = loaded.NewByteMap("things")
			checkContents(t, m, want)
			want = churn(t, m, r, want, 4000, 6000)
			checkContents(t, m, want)
			closeHeap(t, loaded)
		})
	}
}

// gone is a segment that was lost.
type gone struct{ heap.Segment }

func (gone) Lost() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// What was saved has the objects that are kept, too, and where objects were lost nothing is saved.
func TestASnapshotHasObjects(t *testing.T) {
	k := newKeeper(heap.MinSegmentSize, 1200)
	h := openKept(t, k, 4<<20, false)
	p, m, r := openThings(t, h), &thingsModel{array: map[int]uint64{}}, rand.New(rand.NewPCG(1, 2))
	p.churn(t, m, r, 40_000)
	s := snapshotOf(t, h, nil)
	later := m.clone()
	for range 3 {
		p.churn(t, later, r, 20_000)
		if err := h.Checkpoint(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var file bytes.Buffer
	if err := saveTo(t, s, saved.NewWriter(&file)); err != nil {
		t.Fatal(err)
	}
	s.Close()
	loaded := restoredHeap(t, file.Bytes(), false)
	openThings(t, loaded).check(t, m)
	closeHeap(t, loaded)

	p.check(t, later)
	head, _ := p.nodes.Named("head")
	for i := 0; i < len(later.list) && head.IsLocal(); i++ {
		n, err := head.Load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		head = n.Next.Ptr(h)
	}
	if head.IsLocal() {
		t.Fatal("nothing of the list is far")
	}
	if invariants.Enabled {
		closeHeap(t, h)
		return // to have a segment be lost is a race with those who look at it
	}
	seg := h.core.Far.Seg(objects.Load(head.word()).FarAddr())
	seg.Seg = gone{seg.Seg}
	pooltest.Eventually(t, "what was lost is missed", func() bool {
		_, err := h.Snapshot(t.Context(), nil)
		var lacking *LackingError
		return errors.As(err, &lacking) && lacking.Entries > 0
	})
	closeHeap(t, h)
}

// checkLent opens a heap of which a snapshot was read, closes it, and fails if it goes on having what the snapshot needed.
func checkLent(t *testing.T, k *keeper, want map[string]Entry, early bool) {
	t.Helper()
	h := openKept(t, k, 4<<20, early)
	checkContents(t, h.NewByteMap("things"), want)
	closeHeap(t, h)
	bytes := 0
	for _, e := range want {
		bytes += len(e.Value)
	}
	if got := k.copy().Lent() * heap.MinSegmentSize; got > 4*bytes+8<<20 {
		t.Errorf("%d bytes are lent for values of %d", got, bytes)
	}
}

// When far memory is full, those who write get what the snapshot needs. The next one goes on with what there is of the first.
func TestASnapshotGivesWayToWrites(t *testing.T) {
	k := newKeeper(heap.MinSegmentSize, 110)
	h := openKept(t, k, heap.MinLocal, false)
	m, r := h.NewByteMap("things"), rand.New(rand.NewPCG(3, 4))
	want := map[string]Entry{}
	set := func(n int) {
		t.Helper()
		for range n {
			key := fmt.Sprint(r.IntN(4000))
			want[key] = Entry{Value: fmt.Appendf(nil, "%0900d", r.Uint32())}
			if err := m.Set(t.Context(), []byte(key), want[key]); err != nil {
				t.Fatal(err)
			}
		}
	}
	set(10_000)
	s := snapshotOf(t, h, nil)
	var file bytes.Buffer
	w := saved.NewWriter(&file)
	for range 20 {
		b, err := s.Next(t.Context())
		if err == nil {
			err = w.Add(b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	set(40_000) // none is refused
	if err := saveTo(t, s, w); !errors.Is(err, saved.ErrOvertaken) {
		t.Fatalf("after writes to a full memory: %v, want %v", err, saved.ErrOvertaken)
	}
	s.Close()
	if len(w.Have()) == 0 {
		t.Fatal("nothing was saved before")
	}
	pooltest.Eventually(t, "a snapshot when the cleaner is done", func() bool {
		s, err := h.Snapshot(t.Context(), maps.Clone(w.Have()))
		if err == nil {
			err = saveTo(t, s, w)
			s.Close()
		}
		if err != nil && !errors.Is(err, saved.ErrOvertaken) {
			t.Fatal(err)
		}
		return err == nil
	})
	closeHeap(t, h)
	loaded := restoredHeap(t, file.Bytes(), false)
	checkContents(t, loaded.NewByteMap("things"), want)
	closeHeap(t, loaded)
}

// A file that was cut anywhere is continued behind its last whole part, also by a later snapshot, and nothing that it has is read again.
func TestAPartialFileIsContinued(t *testing.T) {
	if invariants.Enabled {
		return // one goroutine does much; "make plain" runs it
	}
	k := newKeeper(heap.MinSegmentSize, 600)
	h := openKept(t, k, heap.MinLocal, false)
	m, r := h.NewByteMap("things"), rand.New(rand.NewPCG(5, 6))
	want := churn(t, m, r, nil, 4000, 3000)
	var file bytes.Buffer
	s := snapshotOf(t, h, nil)
	if err := saveTo(t, s, saved.NewWriter(&file)); err != nil {
		t.Fatal(err)
	}
	s.Close()
	all := file.Bytes()
	for i, cut := range []int{len(all), len(all) - 1, len(all) - 90, len(all) * 2 / 3, len(all) / 3, 60, 20, 5, 0} {
		want = churn(t, m, r, want, 4000, 200)
		next := bytes.NewBuffer(slices.Clone(all[:cut]))
		w, err := saved.Continue(bytes.NewReader(all[:cut]), next)
		if err != nil {
			t.Fatal(err)
		}
		if w.Offset() > int64(cut) || i > 0 && cut > 300<<10 && w.Offset() < int64(cut)-300<<10 {
			t.Errorf("cut at %d, it goes on at %d", cut, w.Offset())
		}
		next.Truncate(int(w.Offset()))
		s := snapshotOf(t, h, maps.Clone(w.Have()))
		left := s.Left()
		if err := saveTo(t, s, w); err != nil {
			t.Fatal(err)
		}
		s.Close()
		if i == 0 && left > int64(len(all))/2 {
			t.Errorf("after a few changes %d bytes are read again, of %d", left, len(all))
		}
		loaded := restoredHeap(t, next.Bytes(), false)
		checkContents(t, loaded.NewByteMap("things"), want)
		closeHeap(t, loaded)
	}
	if _, err := saved.Continue(bytes.NewReader([]byte("something else")), io.Discard); err == nil {
		t.Error("something else is continued")
	}
	other := openKept(t, newKeeper(heap.MinSegmentSize, 600), heap.MinLocal, false)
	w, err := saved.Continue(bytes.NewReader(all), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	b, err := snapshotOf(t, other, nil).Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add(b); !errors.Is(err, saved.ErrAnother) {
		t.Errorf("with another heap: %v", err)
	}
	closeHeap(t, other)
	closeHeap(t, h)
}

// Of a file with one wrong byte, or that ends early, nothing is loaded, and it is said where it is wrong.
func TestNothingOfADamagedSnapshotIsLoaded(t *testing.T) {
	k := newKeeper(heap.MinSegmentSize, 600)
	h := openKept(t, k, heap.MinLocal, false)
	churn(t, h.NewByteMap("things"), rand.New(rand.NewPCG(7, 8)), nil, 4000, 1000)
	var file bytes.Buffer
	s := snapshotOf(t, h, nil)
	if err := saveTo(t, s, saved.NewWriter(&file)); err != nil {
		t.Fatal(err)
	}
	s.Close()
	closeHeap(t, h)
	all := file.Bytes()
	bad := func(what string, b []byte, at int) {
		t.Helper()
		_, err := saved.Check(t.Context(), bytes.NewReader(b))
		var damaged *saved.DamagedError
		if at >= 8 && (!errors.As(err, &damaged) || damaged.Off > int64(at) || damaged.Off < int64(at)-600<<10) || err == nil {
			t.Fatalf("%s at byte %d of %d: %v", what, at, len(all), err)
		}
		k := newKeeper(heap.MinSegmentSize, 600)
		if err := saved.Restore(t.Context(), k, bytes.NewReader(b), nil); err == nil {
			t.Fatalf("%s at byte %d of %d: it is loaded", what, at, len(all))
		}
		if root, _ := k.Root(t.Context()); root != nil || k.Lent() != 0 {
			t.Fatalf("%s at byte %d of %d: there is a root %v, and %d segments are lent", what, at, len(all), root != nil, k.Lent())
		}
	}
	places := []int{0, 1, 7, 8, 20, 39, 47, len(all) - 1, len(all) - 50, len(all) - 100, len(all) - 200}
	for at := 100; at < len(all); at += len(all)/40 + 1 {
		places = append(places, at)
	}
	for _, at := range places {
		b := slices.Clone(all)
		b[at] ^= 1
		bad("a wrong bit", b, at)
		bad("an end", all[:at], at)
	}
	bad("more", append(slices.Clone(all), 0), len(all))
	b := slices.Clone(all)
	b[0]++
	if _, err := saved.Check(t.Context(), bytes.NewReader(b)); !errors.Is(err, saved.ErrNewer) {
		t.Errorf("of a newer format: %v", err)
	}
	var size *saved.SegmentSizeError
	if err := saved.Restore(t.Context(), newKeeper(2*heap.MinSegmentSize, 600), bytes.NewReader(all), nil); !errors.As(err, &size) {
		t.Errorf("to other segments: %v", err)
	}
	few := newKeeper(heap.MinSegmentSize, 2)
	if err := saved.Restore(t.Context(), few, bytes.NewReader(all), nil); !errors.Is(err, ErrFull) || few.Lent() != 0 {
		t.Errorf("to a store that is too small: %v, and %d segments are lent", err, few.Lent())
	}
}

// Damage in far memory is not saved.
func TestNoDamageIsSaved(t *testing.T) {
	k := newKeeper(heap.MinSegmentSize, 600)
	h := openKept(t, k, heap.MinLocal, false)
	churn(t, h.NewByteMap("things"), rand.New(rand.NewPCG(9, 10)), nil, 4000, 3000)
	s := snapshotOf(t, h, nil)
	parts := map[string]bool{} // of the checkpoint, which are not damaged
	b, err := k.Root(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	root, err := record.DecodeRoot(b)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range root.Parts {
		parts[p.Name] = true
	}
	k.mu.Lock()
	segs := maps.Clone(k.segs)
	k.mu.Unlock()
	flip := func() {
		for name, seg := range segs {
			seg.Mu.Lock()
			if len(seg.Mem) > 0 && !parts[name] {
				seg.Mem[5000] ^= 4
			}
			seg.Mu.Unlock()
		}
	}
	flip()
	var corrupt *CorruptError
	if err := saveTo(t, s, saved.NewWriter(io.Discard)); !errors.As(err, &corrupt) {
		t.Errorf("with wrong bytes in far memory: %v", err)
	}
	s.Close()
	flip() // and it is as it was
	closeHeap(t, h)
}
