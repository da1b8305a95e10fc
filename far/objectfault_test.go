package far

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"polder/far/heap"
	"polder/far/store/storetest"
	"polder/internal/invariants"
)

// fillFar makes objects of which most are far.
func fillFar(t *testing.T, h *Heap, n int) []Ptr[point] {
	t.Helper()
	ps := make([]Ptr[point], n)
	for i := range ps {
		var err error
		if ps[i], err = New(context.Background(), h, point{int64(i), -int64(i)}); err != nil {
			t.Fatal(err)
		}
	}
	return ps
}

func TestLostObjectsAreReported(t *testing.T) {
	store := storetest.New(tinySegment, 1<<10)
	h := openObjects(t, store, 16)
	ps := fillFar(t, h, 8000)
	if store.Lose(func(i int, _ heap.Segment) bool { return i%2 == 0 }) == 0 {
		t.Fatal("there was nothing to lose")
	}
	s := h.NewScope()
	defer s.Close()
	lost := 0
	for i, p := range ps {
		s.Enter()
		v := p.Deref(s)
		err := s.Err()
		for errors.Is(err, ErrScopeFull) { // while writes fail, scopes are let in without memory
			s.Leave()
			s.Enter()
			v, err = p.Deref(s), s.Err()
		}
		var le *heap.LostError
		switch {
		case v != nil && *v != (point{int64(i), -int64(i)}):
			t.Fatalf("object %d: got %v", i, *v)
		case v == nil && !errors.As(err, &le):
			t.Fatalf("object %d: got %v, want a LostError", i, err)
		case v == nil:
			lost++
		}
		s.Leave()
		p.Free()
	}
	if lost == 0 {
		t.Error("nothing was lost")
	}
	if n := h.Stats().Pointers; n != 0 {
		t.Errorf("%d pointers are left", n)
	}
}

func TestCorruptObjectsAreNeverReturned(t *testing.T) {
	store := storetest.New(tinySegment, 1<<10)
	h := openObjects(t, store, 16)
	ps := fillFar(t, h, 8000)
	store.Corrupt.Store(300)
	corrupt := 0
	for i, p := range ps {
		v, err := p.Load(context.Background())
		var ce *heap.CorruptError
		switch {
		case err == nil && v != (point{int64(i), -int64(i)}):
			t.Fatalf("object %d: got %v", i, v)
		case err != nil && !errors.As(err, &ce):
			t.Fatalf("object %d: got %v, want a CorruptError", i, err)
		case err != nil:
			corrupt++
		}
	}
	if corrupt == 0 {
		t.Error("nothing was corrupt")
	}
	store.Corrupt.Store(0)
	for i, p := range ps {
		if v, err := p.Load(context.Background()); err != nil || v.X != int64(i) {
			t.Fatalf("object %d, read again: got %v, %v", i, v, err)
		}
	}
}

func TestFlakyStoresLoseNoObjects(t *testing.T) {
	store := storetest.New(tinySegment, 1<<10)
	h := openObjects(t, store, 16)
	store.Flaky.Store(100)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i := range 8000 {
		p, err := New(ctx, h, point{int64(i), 0})
		if err != nil {
			t.Fatal(err)
		}
		for {
			v, err := p.Load(ctx)
			if err != nil && errors.Is(err, storetest.ErrInjected) {
				continue
			}
			if err != nil || v.X != int64(i) {
				t.Fatalf("object %d: got %v, %v", i, v, err)
			}
			break
		}
	}
}

// Prefetch of what somebody else is fetching returns when it is there, and not before; and if the
// other gives up, it fetches.
func TestPrefetchWaitsForWhatOthersFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.New(tinySegment, 1<<10)
		h := openObjects(t, store, 16)
		ps := slices.DeleteFunc(fillFar(t, h, 8000), Ptr[point].IsLocal)
		for i, givesUp := range []bool{false, true} {
			p := ps[i*len(ps)/2]
			release := store.Hold()
			ctx, cancel := context.WithCancel(context.Background())
			var wg sync.WaitGroup
			wg.Go(func() {
				if _, err := p.Load(ctx); (err != nil) != givesUp {
					t.Errorf("the first: got %v", err)
				}
			})
			synctest.Wait()
			returned := make(chan struct{})
			wg.Go(func() {
				defer close(returned)
				if err := h.Prefetch(context.Background(), p.Any()); err != nil {
					t.Error(err)
				}
				if !p.IsLocal() {
					t.Error("Prefetch has returned, and the object is far")
				}
			})
			synctest.Wait()
			select {
			case <-returned:
				t.Error("Prefetch has not waited")
			default:
			}
			if givesUp {
				cancel()
				synctest.Wait()
			}
			release()
			wg.Wait()
			cancel()
		}
		late, cancel := context.WithCancel(context.Background())
		cancel()
		if err := h.Prefetch(late, ps[len(ps)/4].Any()); !errors.Is(err, context.Canceled) {
			t.Errorf("Prefetch, canceled: got %v", err)
		}
	})
}

// A dereference of a far object ends with its context, and another one shares
// the same fetch.
func TestDerefEndsWithItsDeadline(t *testing.T) {
	store := storetest.New(tinySegment, 1<<10)
	h := openObjects(t, store, 16)
	ps := fillFar(t, h, 8000)
	far := -1
	for i, p := range ps {
		if !p.IsLocal() {
			far = i
			break
		}
	}
	release := store.Hold()
	ctx, cancel := context.WithCancel(context.Background())
	s := h.NewScope()
	defer s.Close()
	s.SetContext(ctx)
	first := make(chan error)
	go func() {
		v, err := ps[far].Load(context.Background())
		if err == nil && v.X != int64(far) {
			err = errors.New("wrong bytes")
		}
		first <- err
	}()
	cancel()
	s.Enter()
	if v := ps[far].Deref(s); v != nil {
		t.Errorf("got %v, want an error", v)
	}
	if err := s.Err(); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	s.Leave()
	release()
	if err := <-first; err != nil {
		t.Error(err)
	}
}

func TestHotPathsDoNotAllocate(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	c, err := NewClass[point](h, ClassConfig{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.New(context.Background(), point{})
	if err != nil {
		t.Fatal(err)
	}
	s := h.NewScope()
	defer s.Close()
	ctx := context.Background()
	for name, fn := range map[string]func(){
		"Deref": func() {
			s.Enter()
			p.Deref(s).X++
			s.Leave()
		},
		"DerefMut": func() {
			s.Enter()
			p.DerefMut(s).X++
			s.Leave()
		},
		"Load": func() {
			if _, err := p.Load(ctx); err != nil {
				t.Error(err)
			}
		},
		"Store": func() {
			if err := p.Store(ctx, point{}); err != nil {
				t.Error(err)
			}
		},
		"New and Free": func() {
			p, err := c.New(ctx, point{})
			if err != nil {
				t.Fatal(err)
			}
			p.Free()
		},
	} {
		if n := testing.AllocsPerRun(100, fn); n >= 1 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

// Builds with invariants find what must not be done.
func TestMisuseIsFound(t *testing.T) {
	if !invariants.Enabled {
		return
	}
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	other := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	p, err := New(context.Background(), h, point{})
	if err != nil {
		t.Fatal(err)
	}
	freed, err := New(context.Background(), h, point{})
	if err != nil {
		t.Fatal(err)
	}
	freed.Free()
	s, so := h.NewScope(), other.NewScope()
	defer s.Close()
	defer so.Close()
	for name, fn := range map[string]func(){
		"Deref in a closed scope":  func() { p.Deref(s) },
		"Deref in a foreign scope": func() { so.Enter(); defer so.Leave(); p.Deref(so) },
		"Deref after Free":         func() { s.Enter(); defer s.Leave(); freed.Deref(s) },
		"Free twice":               func() { freed.Free() },
		"Leave without Enter":      func() { s.Leave() },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s is not found", name)
				}
			}()
			fn()
		}()
	}
}
