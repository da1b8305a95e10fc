package far

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"polder/far/heap"
	"polder/far/store/storetest"
)

// brick is 512 bytes with its header, of which a scope of openBricks may take 16.
type brick [496]byte

// wordCost is what the word of a new pointer takes of what a scope may take: see Config.ScopeBytes.
const wordCost = 9

const bricksBytes = 8<<10 + 16*wordCost

// openBricks opens a heap of so many segments, for bricks. Who calls it closes it.
func openBricks(t *testing.T, segments int) (*Heap, *Class[brick]) {
	t.Helper()
	return openBricksOn(t, heap.NewMemStore(tinySegment, 1<<13), segments)
}

func openBricksOn(t *testing.T, store heap.Store, segments int) (*Heap, *Class[brick]) {
	t.Helper()
	lay := tiny
	lay.Logs = int64(segments) * int64(lay.SegSize)
	local := lay.Local()
	h, err := newHeap(store,
		Config{Local: local, MaxLocal: local, ScopeBytes: bricksBytes, HeldTooLong: time.Minute}, lay)
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewClass[brick](h, ClassConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return h, c
}

// However many goroutines hold scopes and allocate in them as fast as they can,
// each gets its ScopeBytes, and local memory stays within its budget.
func TestAHundredScopesAllocate(t *testing.T) {
	aHundredScopesAllocate(t, heap.NewMemStore(tinySegment, 1<<13), func() {}, false)
}

// What scopes were promised when they were let in, nobody takes who has none.
func TestAHundredScopesAllocateBesideOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aHundredScopesAllocate(t, &distantStore{MemStore: heap.NewMemStore(tinySegment, 1<<13), latency: 5 * time.Millisecond, bandwidth: 1e9}, func() { time.Sleep(20 * time.Millisecond) }, true)
	})
}

// Writes that take long make the window wider, but not by memory that scopes were promised.
func TestAHundredScopesAllocateBesideAWideWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aHundredScopesAllocate(t, &distantStore{MemStore: heap.NewMemStore(tinySegment, 1<<13), latency: 5 * time.Millisecond, bandwidth: 1e9}, func() { time.Sleep(20 * time.Millisecond) }, false)
	})
}

// aHundredScopesAllocate calls pause in each scope, before it has taken all that it may take. With beside set, objects are made without a scope
// all the time, too.
func aHundredScopesAllocate(t *testing.T, store heap.Store, pause func(), beside bool) {
	h, c := openBricksOn(t, store, 64)
	defer h.Close()
	ctx, cancel := context.WithCancel(context.Background())
	var others sync.WaitGroup
	defer others.Wait()
	defer cancel()
	others.Go(func() {
		for beside && ctx.Err() == nil {
			p, err := c.New(ctx, brick{})
			if err != nil {
				continue
			}
			p.Free()
			time.Sleep(50 * time.Microsecond)
		}
	})
	scopes := make([]*heap.Scope, 100)
	for i := range scopes {
		scopes[i] = h.NewScope()
		defer scopes[i].Close()
	}
	var wg sync.WaitGroup
	for id, s := range scopes {
		wg.Go(func() {
			for round := range 6 {
				s.Enter()
				var made []Ptr[brick]
				var objects []*brick
				for i := range bricksBytes / 512 {
					if i == 2 {
						pause()
					}
					p, o, err := c.NewIn(s)
					if err != nil {
						t.Errorf("goroutine %d, round %d: %v", id, round, err)
						break
					}
					o[0], o[495] = byte(id), byte(round)
					made, objects = append(made, p), append(objects, o)
				}
				for _, o := range objects {
					if o[0] != byte(id) || o[495] != byte(round) {
						t.Errorf("goroutine %d: an object in an open scope has changed", id)
					}
				}
				s.Leave()
				if st := h.Stats(); st.Resident > st.Budget {
					t.Errorf("%d bytes are resident with a budget of %d", st.Resident, st.Budget)
				}
				for _, p := range made[:len(made)/2] {
					p.Free()
				}
			}
		})
	}
	wg.Wait()
	if h.Stats().Evacuated == 0 {
		t.Error("nothing was evacuated")
	}
}

// records passes on what is logged.
type records struct {
	slog.Handler
	got chan slog.Record
}

func (r records) Handle(_ context.Context, rec slog.Record) error {
	select {
	case r.got <- rec:
	default:
	}
	return nil
}

func (r records) Enabled(context.Context, slog.Level) bool { return true }

func TestScopesHeldTooLongAreNamed(t *testing.T) {
	was := slog.Default()
	defer slog.SetDefault(was)
	r := records{was.Handler(), make(chan slog.Record, 16)}
	slog.SetDefault(slog.New(r))
	h, err := NewHeap(heap.NewMemStore(1<<20, 4), Config{Local: heap.MinLocal, HeldTooLong: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	s := h.NewScope()
	defer s.Close()
	stack := func() string {
		text := ""
		rec := <-r.got
		rec.Attrs(func(a slog.Attr) bool {
			text += a.Key + "=" + a.Value.String() + "\n"
			return true
		})
		return text
	}
	s.Enter()
	if got := stack(); !strings.Contains(got, "TestScopesHeldTooLongAreNamed") || !strings.Contains(got, "scope_test.go") {
		t.Errorf("the record of a scope that is held does not say by whom:\n%s", got)
	}
	s.Leave()
	if got := stack(); !strings.Contains(got, "TestScopesHeldTooLongAreNamed") {
		t.Errorf("the record of a scope that was held does not say by whom:\n%s", got)
	}
}

func TestScopesNest(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	p, err := New(context.Background(), h, point{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	s := h.NewScope()
	defer s.Close()
	s.Enter()
	s.Enter()
	v := p.Deref(s)
	s.Leave()
	epoch := h.core.Scopes.Advance()
	if h.core.Scopes.Passed(epoch) {
		t.Error("the outer scope is taken for left when the inner one is")
	}
	if v.X != 1 {
		t.Errorf("got %v", *v)
	}
	s.Leave()
	if !h.core.Scopes.Passed(epoch) {
		t.Error("a scope that was left is taken for open")
	}
}

func TestDoTriesAgain(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	calls := 0
	err := h.Do(context.Background(), func(s *heap.Scope) error {
		if calls++; calls < 3 {
			return h.core.NoRoom(s, heap.ErrNoRoom, 1)
		}
		return nil
	})
	if err != nil || calls != 3 {
		t.Errorf("got %v after %d calls, want none after 3", err, calls)
	}
	if err := h.Do(context.Background(), func(*heap.Scope) error { return storetest.ErrInjected }); !errors.Is(err, storetest.ErrInjected) {
		t.Errorf("got %v, want the error of the function", err)
	}
}

// Without membarrier(2), entering a scope takes the slow path, which fences.
func TestScopesWithoutMembarrier(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
	h.core.Scopes.Fenced = false
	h.core.Logs.Mu.Lock()
	h.core.Scopes.Flag()
	h.core.Logs.Mu.Unlock()
	s := h.NewScope()
	defer s.Close()
	var ps []Ptr[point]
	for i := range 8000 {
		p, err := New(context.Background(), h, point{X: int64(i)})
		if err != nil {
			t.Fatal(err)
		}
		ps = append(ps, p)
	}
	for i, p := range ps {
		s.Enter()
		if v := p.Deref(s); v == nil || v.X != int64(i) {
			t.Fatalf("object %d: got %v, %v", i, v, s.Err())
		}
		s.Leave()
	}
}

func TestBudgetsThatCannotBe(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	ctx := context.Background()
	for _, n := range []int64{0, h.Local() / 10, h.core.Cfg.MaxLocal + 1} {
		if err := h.SetLocal(ctx, n); err == nil || !strings.Contains(err.Error(), fmt.Sprint(n, " bytes")) {
			t.Errorf("a budget of %d bytes: %v", n, err)
		}
	}
	for _, cfg := range []Config{{Local: heap.MinLocal, MaxLocal: 1}, {Local: heap.MinLocal, ScopeBytes: -1}} {
		if h, err := NewHeap(heap.NewMemStore(1<<20, 1), cfg); err == nil {
			h.Close()
			t.Errorf("%+v is taken", cfg)
		}
	}
	if err := h.SetLocal(ctx, h.core.Cfg.MaxLocal); err != nil {
		t.Error(err)
	}
}

// Close waits for scopes; afterwards a pointer gives an error.
func TestPointersOfAClosedHeap(t *testing.T) {
	h, err := NewHeap(heap.NewMemStore(1<<20, 4), Config{Local: heap.MinLocal})
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(context.Background(), h, point{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewClass[point](h, ClassConfig{})
	if err != nil {
		t.Fatal(err)
	}
	s := h.NewScope()
	s.Enter()
	v := p.Deref(s)
	closed := make(chan error)
	go func() { closed <- h.Close() }()
	for !h.core.Shut.Load() {
		if v.X != 1 {
			t.Error("the object is gone before its scope is left")
		}
	}
	if v.Y != 2 {
		t.Error("the object is gone before its scope is left")
	}
	s.Leave()
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	s.Enter()
	if v := p.Deref(s); v != nil {
		t.Errorf("got %v, want none", v)
	}
	if err := s.Err(); !errors.Is(err, heap.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
	s.Leave()
	if _, err := p.Load(context.Background()); !errors.Is(err, heap.ErrClosed) {
		t.Errorf("Load: got %v, want ErrClosed", err)
	}
	p.Free() // does nothing
	if _, err := c.New(context.Background(), point{}); !errors.Is(err, heap.ErrClosed) {
		t.Errorf("New: got %v, want ErrClosed", err)
	}
}
