package far

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"polder/far/heap"
)

// freeable is a structure of numbers, as these tests use it: all of it is used through add.
type freeable struct {
	add  func(ctx context.Context, i int) error
	len  func() int
	free func()
	// others are the other ways of using elements.
	others map[string]func(ctx context.Context) error
}

// iterated is the error of an iteration over something.
func iterated(s *heap.Scope, all func(yield func() bool)) error {
	all(func() bool { return true })
	return s.Err()
}

// freeables makes structures of every kind on h.
func freeables(t *testing.T, h *Heap) map[string]func() freeable {
	s := h.NewScope()
	t.Cleanup(s.Close)
	fail := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	// inScope is the error of something done in a scope.
	inScope := func(fn func() error) error {
		s.Enter()
		defer s.Leave()
		return fn()
	}
	return map[string]func() freeable{
		"List": func() freeable {
			l, err := NewList[int](h, StructureConfig{})
			fail(err)
			return freeable{l.PushBack, l.Len, l.Free, map[string]func(context.Context) error{
				"PushBackIn":   func(context.Context) error { return inScope(func() error { return l.PushBackIn(s, 1) }) },
				"PopFront":     func(ctx context.Context) error { _, _, err := l.PopFront(ctx); return err },
				"PopBackIn":    func(context.Context) error { return inScope(func() error { _, _, err := l.PopBackIn(s); return err }) },
				"First":        func(ctx context.Context) error { _, _, err := l.First(ctx); return err },
				"InsertBefore": func(ctx context.Context) error { c := l.Front(); return c.InsertBefore(ctx, 1) },
				"All": func(context.Context) error {
					return iterated(s, func(yield func() bool) { l.All(s)(func(*int) bool { return yield() }) })
				},
			}}
		},
		"Stack": func() freeable {
			st, err := NewStack[int](h, StructureConfig{})
			fail(err)
			return freeable{st.Push, st.Len, st.Free, map[string]func(context.Context) error{
				"Pop": func(ctx context.Context) error { _, _, err := st.Pop(ctx); return err },
			}}
		},
		"Queue": func() freeable {
			q, err := NewQueue[int](h, StructureConfig{})
			fail(err)
			return freeable{q.Push, q.Len, q.Free, map[string]func(context.Context) error{
				"Pop": func(ctx context.Context) error { _, _, err := q.Pop(ctx); return err },
			}}
		},
		"Vector": func() freeable {
			v, err := NewVector[int](h, StructureConfig{})
			fail(err)
			return freeable{func(ctx context.Context, i int) error { return v.Append(ctx, i) }, v.Len, v.Free, map[string]func(context.Context) error{
				"AppendIn": func(context.Context) error { return inScope(func() error { return v.AppendIn(s, 1) }) },
				"Pop":      func(ctx context.Context) error { _, _, err := v.Pop(ctx); return err },
				"PopIn":    func(context.Context) error { return inScope(func() error { _, _, err := v.PopIn(s); return err }) },
				"All": func(context.Context) error {
					return iterated(s, func(yield func() bool) { v.All(s)(func(int, *int) bool { return yield() }) })
				},
				"Backward": func(context.Context) error {
					return iterated(s, func(yield func() bool) { v.Backward(s)(func(int, *int) bool { return yield() }) })
				},
			}}
		},
		"Array": func() freeable {
			a, err := NewArray[int](t.Context(), h, 1<<10, StructureConfig{})
			fail(err)
			return freeable{func(ctx context.Context, i int) error { return a.Set(ctx, i%(1<<10), i) }, func() int { return 0 }, a.Free, map[string]func(context.Context) error{
				"All": func(context.Context) error {
					return iterated(s, func(yield func() bool) { a.All(s)(func(int, *int) bool { return yield() }) })
				},
			}}
		},
		"Map": func() freeable {
			m, err := NewMap[int, int](h, MapConfig[int, int]{})
			fail(err)
			return freeable{func(ctx context.Context, i int) error { return m.Set(ctx, i, i) }, m.Len, m.Free, map[string]func(context.Context) error{
				"Get":    func(ctx context.Context) error { _, _, err := m.Get(ctx, 1); return err },
				"Append": func(ctx context.Context) error { _, _, err := m.Append(ctx, 1, nil); return err },
				"Has":    func(ctx context.Context) error { _, err := m.Has(ctx, 1); return err },
				"Delete": func(ctx context.Context) error { _, err := m.Delete(ctx, 1); return err },
				"Update": func(ctx context.Context) error {
					return m.Update(ctx, 1, func(int, bool) (int, bool) { return 1, true })
				},
				"GetMany": func(ctx context.Context) error { return m.GetMany(ctx, []int{1}, []int{0}, []bool{true}) },
				"All": func(context.Context) error {
					return iterated(s, func(yield func() bool) { m.All(s)(func(int, int) bool { return yield() }) })
				},
			}}
		},
		"ByteMap": func() freeable {
			m := h.NewByteMap("test")
			return freeable{
				func(ctx context.Context, i int) error {
					n := 100
					if i%100 == 0 {
						n = 3 * tinyPiece
					}
					return m.Set(ctx, key(i), Entry{Value: value(uint64(i), n)})
				}, m.Len, m.Free, map[string]func(context.Context) error{
					"Get":    func(ctx context.Context) error { _, err := m.Get(ctx, key(1), nil); return err },
					"Stat":   func(ctx context.Context) error { _, _, err := m.Stat(ctx, key(1)); return err },
					"large":  func(ctx context.Context) error { return m.Set(ctx, key(1), Entry{Value: make([]byte, 3*tinyPiece)}) },
					"Scan":   func(ctx context.Context) error { _, err := m.Scan(ctx, 0, func([]byte, Entry) {}); return err },
					"Random": func(ctx context.Context) error { _, err := m.Random(ctx, nil); return err },
					"Txn.Set": func(ctx context.Context) error {
						txn := h.NewTxn()
						defer txn.Rollback()
						return txn.Set(ctx, m, key(1), Entry{})
					},
					"Txn.DeleteMany": func(ctx context.Context) error {
						txn := h.NewTxn()
						defer txn.Rollback()
						return txn.DeleteMany(ctx, m, [][]byte{key(1)}, []bool{false})
					},
				}}
		},
	}
}

func TestEmptyStructuresCostLessThanAKiB(t *testing.T) {
	type structure interface{ Free() }
	for name, make := range map[string]func(h *Heap) (structure, error){
		"List":    func(h *Heap) (structure, error) { return NewList[int](h, StructureConfig{}) },
		"Stack":   func(h *Heap) (structure, error) { return NewStack[int](h, StructureConfig{}) },
		"Queue":   func(h *Heap) (structure, error) { return NewQueue[int](h, StructureConfig{}) },
		"Vector":  func(h *Heap) (structure, error) { return NewVector[int](h, StructureConfig{}) },
		"Array":   func(h *Heap) (structure, error) { return NewArray[int](t.Context(), h, 0, StructureConfig{}) },
		"Map":     func(h *Heap) (structure, error) { return NewMap[string, []int](h, MapConfig[string, []int]{}) },
		"ByteMap": func(h *Heap) (structure, error) { return h.NewByteMap("test"), nil },
	} {
		t.Run(name, func(t *testing.T) {
			h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
			const n = 1000
			kept := [n]structure{}
			before, index := inUse(), h.Stats().Index
			for i := range kept {
				var err error
				if kept[i], err = make(h); err != nil {
					t.Fatal(err)
				}
			}
			if each := (inUse() - before) / n; each >= 1<<10 {
				t.Errorf("an empty one takes %d bytes, want less than a KiB", each)
			} else {
				t.Logf("%d bytes", each)
			}
			if got := h.Stats().Index; got != index {
				t.Errorf("%d empty ones take %d bytes of the budget, want none", n, got-index)
			}
			runtime.KeepAlive(kept)
		})
	}
}

// inUse is the bytes of the Go heap that are in use.
func inUse() int64 {
	var ms runtime.MemStats
	runtime.GC()
	runtime.GC() // and what finalizers have let go
	runtime.ReadMemStats(&ms)
	return int64(ms.HeapAlloc)
}

// idle waits until nothing lives in h.
func idle(t *testing.T, h *Heap) {
	t.Helper()
	soon(t, "waiting until nothing lives in local and far memory", func() { // the evacuator may be moving some
		for s := h.Stats(); s.LocalLive != 0 || s.FarLive != 0; s = h.Stats() {
			runtime.Gosched()
		}
	})
}

// What a structure has of local and far memory is there for others when it is freed,
// again and again.
func TestFreeGivesLocalAndFarMemoryBack(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 32)
	ctx := t.Context()
	for name, make := range freeables(t, h) {
		var index int64
		for round := range 3 {
			st := make()
			for i := range 6000 {
				if err := st.add(ctx, i); err != nil {
					t.Fatalf("%s, round %d: element %d: %v", name, round, i, err)
				}
			}
			st.free()
			st.free() // does nothing
			if n := st.len(); n != 0 {
				t.Errorf("%s: %d elements are left", name, n)
			}
			idle(t, h)
			s := h.Stats()
			if round == 0 {
				index = s.Index // words of pointers are used again, and not given back
			}
			if s.Index > index {
				t.Errorf("%s, round %d: the index takes %d bytes, want the %d of the first round", name, round, s.Index, index)
			}
		}
	}
	if h.maps.Owner(2) != nil {
		t.Error("more than two numbers of maps were used where one at a time was needed")
	}
}

func TestWhatWasFreedSaysSo(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 32)
	ctx := t.Context()
	for name, make := range freeables(t, h) {
		for _, used := range []bool{false, true} {
			st := make()
			if used {
				for i := range 3000 {
					if err := st.add(ctx, i); err != nil {
						t.Fatal(err)
					}
				}
			}
			st.free()
			other := make() // which may have its number
			if name != "Array" {
				if err := st.add(ctx, 1); !errors.Is(err, ErrFreed) {
					t.Errorf("%s: got %v, want ErrFreed", name, err)
				}
			}
			for way, use := range st.others {
				if err := use(ctx); !errors.Is(err, ErrFreed) {
					t.Errorf("%s.%s: got %v, want ErrFreed", name, way, err)
				}
			}
			if err := other.add(ctx, 1); err != nil {
				t.Errorf("%s: one made afterwards: %v", name, err)
			}
			other.free()
		}
	}
}

// Those who use what others free either have done what they wanted or are told.
func TestFreeBesideOtherCalls(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 32)
	ctx := t.Context()
	for name, make := range freeables(t, h) {
		if name == "Array" {
			continue // nobody may use it meanwhile
		}
		for range 3 {
			st := make()
			var begun, done sync.WaitGroup
			begun.Add(4)
			for g := range 4 {
				done.Go(func() {
					for i := range 1500 {
						if i == 200 {
							begun.Done()
						}
						if err := st.add(ctx, g<<20|i); err != nil {
							if i < 200 || !errors.Is(err, ErrFreed) {
								t.Errorf("%s: element %d: %v", name, i, err)
							}
							if i < 200 {
								begun.Done()
							}
							return
						}
					}
				})
			}
			begun.Wait()
			st.free()
			done.Wait()
			if n := st.len(); n != 0 {
				t.Errorf("%s: %d elements are left", name, n)
			}
		}
		idle(t, h)
	}
}

// A map that was freed is in the sums of its name still, and another one of its number
// is another map.
func TestAFreedMapsNumberIsUsedAgain(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 32)
	ctx := t.Context()
	sets := uint64(0)
	for round := range 5 {
		m := h.NewByteMap(fmt.Sprint("maps ", round%2))
		for i := range 2000 {
			if _, err := m.Get(ctx, key(i), nil); !errors.Is(err, ErrNotFound) {
				t.Fatalf("round %d: key %d of a new map: %v", round, i, err)
			}
			mustSet(t, m, key(i), value(uint64(round*10000+i), 100))
			sets++
		}
		for i := range 2000 {
			mustGet(t, m, key(i), value(uint64(round*10000+i), 100))
		}
		m.Free()
	}
	var got uint64
	for _, m := range h.Stats().Maps {
		got += m.Sets
	}
	if got != sets || len(h.Stats().Maps) != 2 {
		t.Errorf("got %d sets of %d names, want %d of 2", got, len(h.Stats().Maps), sets)
	}
}
