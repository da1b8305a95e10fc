package far

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"polder/far/heap"
)

// panics calls fn, which is expected to panic, as net/http does with a handler: the
// program goes on.
func panics(t *testing.T, fn func()) (value any) {
	t.Helper()
	defer func() {
		if value = recover(); value == nil {
			t.Error("nothing panicked")
		}
	}()
	fn()
	return nil
}

// soon fails the test if fn does not return. A call that hangs would leave it
// without a name.
func soon(t *testing.T, what string, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s does not return", what)
	}
}

func TestAPanicInUpdateLeavesTheMapAsItWas(t *testing.T) {
	h, m := newTestHeap(t, heap.NewMemStore(testSegment, 100), Config{})
	typed := newMap(t, h, MapConfig[int, int]{})
	small, large := value(1, 100), value(2, 200<<10)
	for name, v := range map[string][]byte{"small": small, "large": large, "absent": nil} {
		k := []byte(name)
		if v != nil {
			mustSet(t, m, k, v)
		}
		panics(t, func() {
			_ = m.Update(t.Context(), k, func(Entry, bool) (Entry, Verdict, error) { panic("a bug of the program's") })
		})
		soon(t, "Get of what a panicking Update was for", func() {
			e, err := m.Get(t.Context(), k, nil)
			if v == nil && !errors.Is(err, ErrNotFound) || v != nil && (err != nil || !bytes.Equal(e.Value, v)) {
				t.Errorf("%s: got %d bytes, %v, want the %d that were there", name, len(e.Value), err, len(v))
			}
		})
	}
	panics(t, func() {
		_ = typed.Update(t.Context(), 1, func(int, bool) (int, bool) { panic("another") })
	})
	soon(t, "Set after a panic", func() {
		if err := typed.Set(t.Context(), 1, 5); err != nil {
			t.Error(err)
		}
	})
	soon(t, "Stats after a panic", func() { h.Stats() })
}

// A callback of Update may use the heap, and its own map: it runs under no lock.
func TestUpdateCallbacksMayUseTheHeap(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 24)
	m := h.NewByteMap("test")
	ctx := t.Context()
	mustSet(t, m, []byte("n"), []byte{1})
	soon(t, "an Update whose callback uses the heap", func() {
		err := m.Update(ctx, []byte("n"), func(old Entry, found bool) (Entry, Verdict, error) {
			for i := range 4000 { // more than local memory holds
				if _, err := New(ctx, h, [200]byte{byte(i)}); err != nil {
					return Entry{}, Keep, err
				}
			}
			for i := range 64 { // some are of the same shard
				if err := m.Set(ctx, key(i), Entry{Value: old.Value}); err != nil {
					return Entry{}, Keep, err
				}
			}
			if e, err := m.Get(ctx, []byte("n"), nil); err != nil || e.Value[0] != 1 {
				t.Errorf("Get in a callback: got %v, %v", e.Value, err)
			}
			h.Stats()
			old.Value[0]++ // the caller's copy
			return old, Put, nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	mustGet(t, m, []byte("n"), []byte{2})
}

// Whoever changes the key while a callback runs makes it run again, with what is
// there then; and a context bounds how long that goes on.
func TestUpdateRunsAgainIfTheKeyHasChanged(t *testing.T) {
	_, m := newTestHeap(t, heap.NewMemStore(testSegment, 100), Config{})
	k := []byte("k")
	mustSet(t, m, k, []byte("a"))
	calls := 0
	err := m.Update(t.Context(), k, func(old Entry, found bool) (Entry, Verdict, error) {
		if calls++; calls == 1 {
			mustSet(t, m, k, []byte("b"))
		}
		return Entry{Value: append(old.Value, '!')}, Put, nil
	})
	if err != nil || calls != 2 {
		t.Errorf("got %v after %d calls, want none after 2", err, calls)
	}
	mustGet(t, m, k, []byte("b!"))
	err = m.Update(t.Context(), k, func(old Entry, found bool) (Entry, Verdict, error) {
		if calls++; calls == 3 {
			if _, err := m.Delete(t.Context(), k); err != nil {
				t.Error(err)
			}
		}
		return Entry{}, Remove, nil
	})
	if err != nil || calls != 4 || m.Len() != 0 {
		t.Errorf("got %v after %d calls, and %d entries, want none after 4, and none", err, calls-2, m.Len())
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = m.Update(ctx, k, func(old Entry, found bool) (Entry, Verdict, error) {
		if calls++; calls == 10 {
			cancel()
		}
		mustSet(t, m, k, append(old.Value, 'x'))
		return Entry{Value: []byte("never")}, Put, nil
	})
	if !errors.Is(err, context.Canceled) || calls != 10 {
		t.Errorf("an Update that never comes to its turn: got %v after %d calls, want context.Canceled after 6", err, calls-4)
	}
}

func TestAPanicInGetManyGivesEverythingBack(t *testing.T) {
	store := heap.NewMemStore(tinySegment, 1<<10)
	h := openObjects(t, store, 16)
	m := h.NewByteMap("test")
	var keys [][]byte
	for i := range 600 {
		keys = append(keys, key(i))
		mustSet(t, m, key(i), value(uint64(i), 500))
	}
	for at := range 100 {
		n := 0
		panics(t, func() {
			m.GetMany(t.Context(), keys[at:], func(int, Entry, error) {
				if n++; n > at {
					panic("a bug of the program's")
				}
			})
		})
	}
	inUse := h.core.Bufs.InUse()
	if inUse != 0 {
		t.Errorf("%d bytes of buffers were not given back", inUse)
	}
	h.core.Far.All(func(s *heap.FarSegment) {
		soon(t, "the end of what is under way to "+s.Seg.Name(), func() { // the evacuator may be writing
			for s.Pinned() != 0 {
				runtime.Gosched()
			}
		})
	})
	for i := range keys { // nobody waits for a flight that has not landed
		mustGet(t, m, key(i), value(uint64(i), 500))
	}
	soon(t, "Close after a panic", func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A panic in a class's Fetched is the program's; the object stays far, and can be
// dereferenced by others.
func TestAPanicInFetchedLeavesTheObjectFar(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
	bad := false
	fetched := func([]byte) {
		if bad {
			panic("a bug of the program's")
		}
	}
	small, err := NewClass[point](h, ClassConfig{Fetched: fetched})
	if err != nil {
		t.Fatal(err)
	}
	large, err := NewClass[[2 << 10]byte](h, ClassConfig{Fetched: fetched})
	if err != nil {
		t.Fatal(err)
	}
	var ps []Ptr[point]
	var qs []Ptr[[2 << 10]byte]
	var refs []AnyRef
	for i := range 400 {
		p, err := small.New(t.Context(), point{X: int64(i)})
		if err != nil {
			t.Fatal(err)
		}
		q, err := large.New(t.Context(), [2 << 10]byte{7: byte(i)})
		if err != nil {
			t.Fatal(err)
		}
		ps, qs, refs = append(ps, p), append(qs, q), append(refs, q.Any())
	}
	bad = true
	tried := 0
	for _, p := range ps {
		if !p.IsLocal() && tried < 8 {
			panics(t, func() { _, _ = p.Load(t.Context()) })
			tried++
		}
	}
	panics(t, func() { _ = h.Prefetch(t.Context(), refs...) })
	bad = false
	soon(t, "dereferencing what a panic has left", func() {
		for i := range ps {
			if v, err := ps[i].Load(t.Context()); err != nil || v.X != int64(i) {
				t.Errorf("object %d: got %v, %v", i, v, err)
			}
			if v, err := qs[i].Load(t.Context()); err != nil || v[7] != byte(i) {
				t.Errorf("large object %d: got %v, %v", i, v[7], err)
			}
		}
	})
	if tried == 0 {
		t.Error("nothing was far")
	}
	h.core.Far.All(func(s *heap.FarSegment) {
		if n := s.Pinned(); n != 0 {
			t.Errorf("%s has %d reads under way that nobody makes", s.Seg.Name(), n)
		}
	})
	for i := range ps {
		ps[i].Free()
		qs[i].Free()
	}
	soon(t, "waiting until nothing lives in local memory", func() { // the evacuator may be moving one
		for h.Stats().LocalLive != 0 {
			runtime.Gosched()
		}
	})
}

// A pointer that is used after it was freed panics, and leaves no scope open that
// the evacuator would wait for.
func TestAPanicInACallLeavesItsScope(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	p, err := New(t.Context(), h, point{})
	if err != nil {
		t.Fatal(err)
	}
	a, err := NewArray[int](t.Context(), h, 1000, StructureConfig{})
	if err != nil {
		t.Fatal(err)
	}
	gone := a
	for i := range a.words {
		h.objects.Free(&a.words[i]) // and not the array, which would say so without a panic
	}
	p.Free()
	s := h.NewScope()
	defer s.Close()
	for name, fn := range map[string]func(){
		"Load":         func() { _, _ = p.Load(t.Context()) },
		"Store":        func() { _ = p.Store(t.Context(), point{}) },
		"Array.Read":   func() { _ = gone.Read(t.Context(), make([]int, 10), 5) },
		"Array.Write":  func() { _ = gone.Write(t.Context(), make([]int, 1000), 0) },
		"Array.Chunks": func() { gone.Chunks(s, 0, 10)(func(int, []int) bool { return true }) },
		"Do": func() {
			_ = h.Do(t.Context(), func(*heap.Scope) error { panic("a bug of the program's") })
		},
	} {
		panics(t, fn)
		if !h.core.Scopes.Passed(h.core.Scopes.Advance()) {
			t.Errorf("%s has left a scope open", name)
		}
	}
}

// asking is a Prefetcher that asks its list something.
type asking struct{ l *List[int] }

func (a asking) Access(i, window int, dst []int) []int {
	a.l.Len()
	a.l.Front()
	return append(dst, i+1)
}

func TestPrefetchersMayUseTheirList(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
	var l *List[int]
	l, err := NewList[int](h, StructureConfig{Group: 8, NewPrefetcher: func() Prefetcher { return asking{l} }})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		if err := l.PushBack(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	soon(t, "an iteration", func() {
		s := h.NewScope()
		defer s.Close()
		n := 0
		for v := range l.All(s) {
			if *v != n {
				t.Errorf("element %d: got %d", n, *v)
			}
			n++
		}
		if n != 1000 || s.Err() != nil {
			t.Errorf("got %d elements, %v, want 1000", n, s.Err())
		}
	})
}

// vectorAsking is a Prefetcher that takes the lock of its vector.
type vectorAsking struct{ v *Vector[int] }

func (a vectorAsking) Access(i, window int, dst []int) []int {
	a.v.Truncate(a.v.Len())
	return append(dst, i-1)
}

func TestPrefetchersMayUseTheirVector(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
	var v *Vector[int]
	v, err := NewVector[int](h, StructureConfig{Group: 8, NewPrefetcher: func() Prefetcher { return vectorAsking{v} }})
	if err != nil {
		t.Fatal(err)
	}
	const n = 60000 // more than local memory holds
	for i := range n {
		if err := v.Append(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	soon(t, "popping", func() {
		s := h.NewScope()
		defer s.Close()
		for i := n - 1; i >= 0; i-- {
			var got int
			var ok bool
			var err error
			if i%2 == 0 {
				got, ok, err = v.Pop(t.Context())
			} else {
				s.Enter()
				got, ok, err = v.PopIn(s)
				s.Leave()
			}
			if got != i || !ok || err != nil {
				t.Errorf("got %d, %v, %v, want %d", got, ok, err, i)
				return
			}
		}
	})
}

// fillUp makes objects until that fails, and returns why.
func fillUp(ctx context.Context, h *Heap) (err error) {
	for i := 0; err == nil; i++ {
		_, err = New(ctx, h, point{X: int64(i)})
	}
	return err
}

// Who is called by the evacuator and would wait for what the evacuator makes is told so at once.
func TestWaitingForTheEvacuatorInItsCallbackFailsAtOnce(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
	m := h.NewByteMap("test")
	ctx := context.Background()
	var once sync.Once
	told := make(chan error, 2)
	c, err := NewClass[point](h, ClassConfig{Evacuated: func(AnyRef) {
		once.Do(func() {
			told <- fillUp(ctx, h)
			told <- m.Set(ctx, key(1), Entry{Value: value(1, 64<<10)})
		})
	}})
	if err != nil {
		t.Fatal(err)
	}
	soon(t, "a callback that waits", func() {
		for i := range 8000 {
			if _, err := c.New(ctx, point{X: int64(i)}); err != nil {
				t.Error(err)
				return
			}
		}
		for range 2 {
			if err := <-told; err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "another goroutine") {
				t.Errorf("got %v, want an error that says what to do", err)
			}
		}
	})
}

// lookingUp is a codec that reads a map to decode a value.
type lookingUp struct{ m *Map[int, [300]byte] }

func (c lookingUp) Append(b []byte, v int) []byte { return append(b, make([]byte, 500)...) }

func (c lookingUp) Decode(b []byte) (int, error) {
	sum := 0
	for i := range 40 { // some are far
		v, _, err := c.m.Get(context.Background(), i*50)
		if err != nil {
			return 0, err
		}
		sum += int(v[0])
	}
	return sum, nil
}

func TestCodecsMayUseTheHeap(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
	ctx := t.Context()
	other := newMap(t, h, MapConfig[int, [300]byte]{})
	m, err := NewMap(h, MapConfig[int, int]{Values: lookingUp{other}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2000 {
		if err := other.Set(ctx, i, [300]byte{1}); err != nil {
			t.Fatal(err)
		}
	}
	keys, vs, ok := make([]int, 1000), make([]int, 1000), make([]bool, 1000)
	for i := range keys {
		keys[i] = i
		if err := m.Set(ctx, i, i); err != nil {
			t.Fatal(err)
		}
	}
	soon(t, "reading with a codec that reads", func() {
		if err := m.GetMany(ctx, keys, vs, ok); err != nil {
			t.Error(err)
		}
		for i := range keys {
			if vs[i] != 40 || !ok[i] {
				t.Errorf("key %d: got %d, %v, want 40", i, vs[i], ok[i])
				return
			}
		}
		if err := m.Update(ctx, 5, func(old int, ok bool) (int, bool) { return old, ok && old == 40 }); err != nil || m.Len() != len(keys) {
			t.Errorf("Update: %v, and %d entries, want %d", err, m.Len(), len(keys))
		}
	})
}

// Dereferencing without Enter is found where the object is not simply there, and
// the panic says what to do.
func TestDerefOutsideOfAScopePanics(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
	other := openObjects(t, heap.NewMemStore(tinySegment, 16), 16)
	ps := fillFar(t, h, 8000)
	a, err := NewArray[int](t.Context(), h, 1<<15, StructureConfig{})
	if err != nil {
		t.Fatal(err)
	}
	s := h.NewScope()
	defer s.Close()
	tried := 0
	for _, p := range ps {
		if p.IsLocal() {
			continue
		}
		for name, fn := range map[string]func(){
			"Deref":       func() { p.Deref(s) },
			"DerefMut":    func() { p.DerefMut(s) },
			"DerefStream": func() { p.DerefStream(s) },
			"Elem.Deref":  func() { a.At(3).Deref(s) },
			"NewIn":       func() { _, _, _ = NewIn[point](s) },
		} {
			got, _ := panics(t, fn).(string)
			if !strings.HasPrefix(got, "BUG: ") || !strings.Contains(got, "Enter") {
				t.Fatalf("%s panics with %q, want a BUG that says what to do", name, got)
			}
		}
		if tried++; tried == 10 {
			break
		}
	}
	if tried == 0 {
		t.Fatal("everything is local")
	}
	so := other.NewScope()
	defer so.Close()
	so.Enter()
	defer so.Leave()
	for _, p := range ps {
		if !p.IsLocal() {
			if got, _ := panics(t, func() { p.Deref(so) }).(string); !strings.Contains(got, "another heap") {
				t.Errorf("a scope of another heap: panics with %q", got)
			}
			break
		}
	}
}

// Who would wait for local memory in a scope of its own, for which the evacuator
// waits, is told so at once.
func TestWaitingForRoomInAScopeFailsAtOnce(t *testing.T) {
	for name, in := range map[string]func(h *Heap, fn func() error) error{
		"NewScope": func(h *Heap, fn func() error) error {
			s := h.NewScope()
			defer s.Close()
			s.Enter()
			defer s.Leave()
			return fn()
		},
		"Do": func(h *Heap, fn func() error) error {
			return h.Do(context.Background(), func(*heap.Scope) error { return fn() })
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
			m := h.NewByteMap("test")
			soon(t, "waiting for room in a scope", func() {
				err := in(h, func() error {
					for i := range 1 << 20 {
						if _, err := New(t.Context(), h, point{X: int64(i)}); err != nil {
							return err
						}
					}
					return nil
				})
				if !errors.Is(err, heap.ErrScopeOpen) || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "NewIn") {
					t.Errorf("New: got %v, want ErrScopeOpen, and what to do", err)
				}
				err = in(h, func() error {
					for i := range 1 << 20 {
						_, full := New(NoWait, h, point{X: int64(i)})
						if full == nil {
							continue
						}
						if err := m.Set(t.Context(), key(i), Entry{Value: value(1, 8<<10)}); err != nil {
							return err
						}
					}
					return nil
				})
				if !errors.Is(err, heap.ErrScopeOpen) {
					t.Errorf("Set: got %v, want ErrScopeOpen", err)
				}
			})
			// And not after it has been left.
			for i := range 2000 {
				if _, err := New(t.Context(), h, point{X: int64(i)}); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// A scope that another goroutine holds is waited for, whoever made it.
func TestAScopeThatWasHandedOverIsNotTheMakers(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
	s := h.NewScope()
	defer s.Close()
	entered, leave, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		s.Enter()
		close(entered)
		<-leave
		s.Leave()
		close(left)
	}()
	<-entered
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err := fillUp(ctx, h)
	if errors.Is(err, heap.ErrScopeOpen) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "callback_test.go") {
		t.Errorf("got %v, want the end of the context, and where the scope was made that is open", err)
	}
	close(leave)
	<-left
	if _, err := New(t.Context(), h, point{}); err != nil {
		t.Error(err)
	}
}

// Do holds no scope while it waits for memory to call its function again, so it waits for scopes of others, too.
func TestDoWaitsForAScopeThatAnotherCallOfDoHolds(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
	entered, leave, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(left)
		_ = h.Do(context.Background(), func(*heap.Scope) error {
			close(entered)
			<-leave
			return nil
		})
	}()
	<-entered
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := fillUp(ctx, h); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want the end of the context", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err := h.Do(ctx, func(*heap.Scope) error { return ErrScopeFull })
	if errors.Is(err, ErrScopeOpen) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the end of the context", err)
	}
	close(leave)
	<-left
}

// An iteration that cannot have memory for an object, and then waits in vain for some, says what it has waited for.
func TestAnIterationSaysWhyItWaitedInVain(t *testing.T) {
	h, bricks := openBricks(t, 32)
	defer h.Close()
	a, err := NewArray[[12 << 10]byte](t.Context(), h, 8, StructureConfig{}) // more than a scope is certain to get
	if err != nil {
		t.Fatal(err)
	}
	open := h.NewScope()
	defer open.Close()
	open.Enter()
	defer open.Leave()
	ended := make(chan error)
	go func() { // the holder of open must not wait
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		for err := error(nil); err == nil; {
			_, err = bricks.New(ctx, brick{})
		}
		ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		s := h.NewScope()
		defer s.Close()
		s.SetContext(ctx)
		for range a.MutChunks(s, 0, a.Len()) {
		}
		ended <- s.Err()
	}()
	if err := <-ended; errors.Is(err, ErrScopeFull) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the end of the context", err)
	}
}
