package far

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"polder/far/heap"
	"polder/far/store/storetest"
)

// aStructure is a data structure of which most is far. Its use reads and, where
// that is possible, writes a part of it within ctx, and fails with errWrong if it
// is not what was stored.
type aStructure struct {
	name string
	make func(t *testing.T, h *Heap) (use func(ctx context.Context, i int) error)
}

var errWrong = errors.New("wrong bytes")

// right is err, or errWrong if the value is not right.
func right(ok bool, err error) error {
	if err == nil && !ok {
		return errWrong
	}
	return err
}

const structureSize = 3000

// structures are all that objects and entries of a heap are kept in.
var structures = []aStructure{
	{"Ptr", func(t *testing.T, h *Heap) func(context.Context, int) error {
		ps := fillFar(t, h, 4*structureSize)[:structureSize]
		s := h.NewScope()
		t.Cleanup(s.Close)
		return func(ctx context.Context, i int) error {
			if i%2 == 0 {
				v, err := ps[i].Load(ctx)
				return right(v.X == int64(i), err)
			}
			s.SetContext(ctx)
			s.Enter()
			defer s.Leave()
			v := ps[i].DerefMut(s)
			return right(v != nil && v.X == int64(i), s.Err())
		}
	}},
	{"Shared", func(t *testing.T, h *Heap) func(context.Context, int) error {
		var all []Shared[point]
		for _, p := range fillFar(t, h, 4*structureSize)[:structureSize] {
			all = append(all, Share(p))
		}
		return func(ctx context.Context, i int) error {
			clone := all[i].Clone()
			defer clone.Free()
			v, err := clone.Load(ctx)
			return right(v.X == int64(i), err)
		}
	}},
	{"Bytes", func(t *testing.T, h *Heap) func(context.Context, int) error {
		text := func(i int) []byte { return value(uint64(i), i%50*200) }
		all := make([]Bytes, structureSize/50)
		for i := range all {
			all[i] = got(NewBytes(t.Context(), h, text(i)))(t)
		}
		return func(ctx context.Context, i int) error {
			i %= len(all)
			b, err := all[i].Append(ctx, nil)
			if err == nil && bytes.Equal(b, text(i)) {
				err = all[i].Replace(ctx, text(i))
				return err
			}
			return right(bytes.Equal(b, text(i)), err)
		}
	}},
	{"Array", func(t *testing.T, h *Heap) func(context.Context, int) error {
		a := got(NewArray[[8]int64](t.Context(), h, structureSize, StructureConfig{}))(t)
		for i := range structureSize {
			done(t, a.Set(t.Context(), i, [8]int64{int64(i)}))
		}
		s := h.NewScope()
		t.Cleanup(s.Close)
		return func(ctx context.Context, i int) error {
			switch i % 3 {
			case 0:
				return a.Set(ctx, i, [8]int64{int64(i)})
			case 1:
				v, err := a.Get(ctx, i)
				return right(v[0] == int64(i), err)
			}
			s.SetContext(ctx)
			for k, v := range a.All(s) {
				if v[0] != int64(k) {
					return errWrong
				}
			}
			return s.Err()
		}
	}},
	{"Vector", func(t *testing.T, h *Heap) func(context.Context, int) error {
		v := got(NewVector[[8]int64](h, StructureConfig{}))(t)
		for i := range structureSize {
			done(t, v.Append(t.Context(), [8]int64{int64(i)}))
		}
		return func(ctx context.Context, i int) error {
			if i%2 == 0 {
				return v.Set(ctx, i, [8]int64{int64(i)})
			}
			x, err := v.Get(ctx, i)
			return right(x[0] == int64(i), err)
		}
	}},
	{"List", func(t *testing.T, h *Heap) func(context.Context, int) error {
		l := newTestList[[8]int64](t, h, StructureConfig{Group: 8})
		for i := range structureSize {
			done(t, l.PushBack(t.Context(), [8]int64{int64(i)}))
		}
		return func(ctx context.Context, i int) error {
			c := l.Front()
			for range i {
				c.Next()
			}
			if i%2 == 0 {
				return c.Store(ctx, [8]int64{int64(i)})
			}
			v, err := c.Load(ctx)
			return right(v[0] == int64(i), err)
		}
	}},
	{"Stack", func(t *testing.T, h *Heap) func(context.Context, int) error {
		st := got(NewStack[[8]int64](h, StructureConfig{Group: 8}))(t)
		for i := range structureSize {
			done(t, st.Push(t.Context(), [8]int64{int64(i)}))
		}
		return func(ctx context.Context, _ int) error {
			for range 60 { // down to what is far
				n := st.Len()
				v, ok, err := st.Pop(ctx)
				if err != nil && st.Len() != n {
					return fmt.Errorf("%w: an element is missing after %v", errWrong, err)
				}
				if err := right(ok && v[0] == int64(n-1), err); err != nil {
					return err
				}
			}
			return nil
		}
	}},
	{"Queue", func(t *testing.T, h *Heap) func(context.Context, int) error {
		q := got(NewQueue[[8]int64](h, StructureConfig{Group: 8}))(t)
		for i := range structureSize {
			done(t, q.Push(t.Context(), [8]int64{int64(i)}))
		}
		return func(ctx context.Context, _ int) error {
			for range 60 {
				n := q.Len()
				v, ok, err := q.Pop(ctx)
				if err != nil && q.Len() != n {
					return fmt.Errorf("%w: an element is missing after %v", errWrong, err)
				}
				if err := right(ok && v[0] == int64(structureSize-n), err); err != nil {
					return err
				}
			}
			return nil
		}
	}},
	{"Map", func(t *testing.T, h *Heap) func(context.Context, int) error { return makeMap(t, h, false) }},
	{"exclusive Map", func(t *testing.T, h *Heap) func(context.Context, int) error { return makeMap(t, h, true) }},
}

func makeMap(t *testing.T, h *Heap, exclusive bool) func(context.Context, int) error {
	m := newMap(t, h, MapConfig[int, [100]byte]{Exclusive: exclusive})
	for i := range structureSize {
		done(t, m.Set(t.Context(), i, [100]byte{byte(i)}))
	}
	return func(ctx context.Context, i int) error {
		switch i % 4 {
		case 0:
			return m.Set(ctx, i, [100]byte{byte(i)})
		case 1:
			return m.Update(ctx, i, func(old [100]byte, ok bool) ([100]byte, bool) { return [100]byte{byte(i)}, true })
		}
		v, ok, err := m.Get(ctx, i)
		return right(ok && v[0] == byte(i), err)
	}
}

func got[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		done(t, err)
		return v
	}
}

func done(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What is read of a node that is bad in whichever way is right, or there is an
// error of the right type, and within its deadline.
func TestEveryStructureOnABadNode(t *testing.T) {
	t.Parallel()
	const deadline = 50 * time.Millisecond
	for _, bad := range []struct {
		name string
		make func(store *storetest.Store)
		is   func(err error) bool
	}{
		{
			"dies",
			func(store *storetest.Store) { store.Lose(func(int, heap.Segment) bool { return true }) },
			func(err error) bool { var lost *heap.LostError; return errors.As(err, &lost) },
		}, {
			"is gone for a while",
			func(store *storetest.Store) { store.FailRead.Store(true); store.FailWrite.Store(true) },
			func(err error) bool { return errors.Is(err, storetest.ErrInjected) },
		}, {
			"does not answer",
			func(store *storetest.Store) { store.Delay.Store(int64(time.Hour)) },
			func(err error) bool { return errors.Is(err, context.DeadlineExceeded) },
		}, {
			"takes 100 ms",
			func(store *storetest.Store) { store.Delay.Store(int64(100 * time.Millisecond)) },
			func(err error) bool { return errors.Is(err, context.DeadlineExceeded) },
		}, {
			"answers wrongly",
			func(store *storetest.Store) { store.Corrupt.Store(1000) },
			func(err error) bool { var corrupt *heap.CorruptError; return errors.As(err, &corrupt) },
		},
	} {
		t.Run(bad.name, func(t *testing.T) {
			for _, st := range structures {
				t.Run(st.name, func(t *testing.T) {
					if strings.Contains(st.name, "Map") {
						notWithLeaves(t)
					}
					synctest.Test(t, func(t *testing.T) {
						store := storetest.New(tinySegment, 1<<10)
						use := st.make(t, openObjects(t, store, 16))
						bad.make(store)
						failed := 0
						for i := 0; i < structureSize; i += 61 {
							ctx, cancel := context.WithTimeout(t.Context(), deadline)
							begin := time.Now()
							err := use(ctx, i)
							cancel()
							if took := time.Since(begin); took > deadline {
								t.Errorf("access %d took %v, with %v left", i, took, deadline)
							}
							if err != nil && !bad.is(err) {
								t.Errorf("access %d: got %v", i, err)
							}
							if err != nil {
								failed++
							}
						}
						if failed == 0 {
							t.Error("the test tested nothing: nothing failed")
						}
					})
				})
			}
		})
	}
}

// Of a slow node everything comes in the end if there is time.
func TestEveryStructureOnASlowNode(t *testing.T) {
	notWithLeaves(t)
	t.Parallel()
	for _, st := range structures {
		t.Run(st.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := storetest.New(tinySegment, 1<<10)
				use := st.make(t, openObjects(t, store, 16))
				store.Delay.Store(int64(100 * time.Millisecond))
				reads := store.Reads.Load()
				for i := 0; i < structureSize; i += 61 {
					if err := use(t.Context(), i); err != nil {
						t.Errorf("access %d: %v", i, err)
					}
				}
				if store.Reads.Load() == reads {
					t.Error("the test tested nothing: nothing was fetched")
				}
			})
		})
	}
}
