package soft

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"polder/internal/invariants"
)

func newPool[K comparable, V any](t testing.TB, h *Heap, cfg PoolConfig[K, V]) *Pool[K, V] {
	t.Helper()
	p, err := NewPool(h, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.flights.Close)
	return p
}

func TestGetOrRebuildBuildsOnceHoweverManyAsk(t *testing.T) {
	h := open(t, 8)
	var built atomic.Int32
	started, release := make(chan struct{}), make(chan struct{})
	p := newPool(t, h, PoolConfig[string, string]{Rebuild: func(_ context.Context, k string) (string, error) {
		if built.Add(1) == 1 {
			close(started)
		}
		<-release
		return "value of " + k, nil
	}})
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			if v, err := p.GetOrRebuild(t.Context(), "k"); v != "value of k" || err != nil {
				t.Errorf("got %q, %v", v, err)
			}
		})
	}
	<-started
	close(release)
	wg.Wait()
	if n := built.Load(); n != 1 {
		t.Errorf("built %d times, want once", n)
	}
}

// TestReadingAPoolOfPlainValuesAllocatesNothing: garbage of the size of each value that is
// read makes the process's own memory swing, for which a coordinator near the limit takes
// segments and gives them back all the time.
func TestReadingAPoolOfPlainValuesAllocatesNothing(t *testing.T) {
	type val [4000]byte
	h := open(t, 16)
	p := newPool(t, h, PoolConfig[int, val]{Rebuild: func(_ context.Context, k int) (val, error) { return val{byte(k)}, nil }})
	ctx := t.Context()
	if _, err := p.GetOrRebuild(ctx, 7); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(1000, func() {
		if v, err := p.GetOrRebuild(ctx, 7); v[0] != 7 || err != nil {
			t.Fatalf("got %d, %v", v[0], err)
		}
	}); n != 0 {
		t.Errorf("GetOrRebuild allocates %v times", n)
	}
	if n := testing.AllocsPerRun(1000, func() {
		if v, ok := p.Get(7); v[0] != 7 || !ok {
			t.Fatalf("got %d, %v", v[0], ok)
		}
	}); n != 0 {
		t.Errorf("Get allocates %v times", n)
	}
}

// TestAMissIsCountedOnce: who is about to rebuild a value looks for it again.
func TestAMissIsCountedOnce(t *testing.T) {
	for name, miss := range map[string]func(t *testing.T, h *Heap){
		"of a pool": func(t *testing.T, h *Heap) {
			p := newPool(t, h, PoolConfig[int, int]{Rebuild: func(context.Context, int) (int, error) { return 1, nil }})
			if _, err := p.GetOrRebuild(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
		},
		"of a batch": func(t *testing.T, h *Heap) {
			p := newPool(t, h, PoolConfig[int, int]{
				Rebuild:      func(context.Context, int) (int, error) { return 1, nil },
				RebuildBatch: func(context.Context, []int) ([]int, []error, error) { return []int{1}, nil, nil },
			})
			if _, errs := p.GetOrRebuildBatch(t.Context(), []int{1}); errs != nil {
				t.Fatal(errs)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := open(t, 8)
			miss(t, h)
			if s := h.Stats(); s.Misses != 1 || s.Hits != 0 {
				t.Errorf("got %d misses and %d hits, want one miss", s.Misses, s.Hits)
			}
		})
	}
}

func TestRebuildIsCancelledWhenNobodyWaits(t *testing.T) {
	h := open(t, 8)
	started, ended := make(chan struct{}), make(chan error, 1)
	p := newPool(t, h, PoolConfig[int, int]{Rebuild: func(ctx context.Context, k int) (int, error) {
		close(started)
		<-ctx.Done()
		ended <- ctx.Err()
		return 0, ctx.Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-started; cancel() }()
	if _, err := p.GetOrRebuild(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the reconstructor saw %v, want %v", err, context.Canceled)
	}
}

func TestInvalidationDuringARebuildIsNotOvertaken(t *testing.T) {
	for name, invalidate := range map[string]func(*Pool[int, int32]){
		"one key":  func(p *Pool[int, int32]) { p.Invalidate(1) },
		"all keys": (*Pool[int, int32]).InvalidateAll,
	} {
		t.Run(name, func(t *testing.T) {
			h := open(t, 8)
			var version atomic.Int32
			started, release := make(chan struct{}, 1), make(chan struct{})
			p := newPool(t, h, PoolConfig[int, int32]{Rebuild: func(context.Context, int) (int32, error) {
				v := version.Load()
				started <- struct{}{}
				<-release
				return v, nil
			}})
			got := make(chan int32)
			go func() {
				v, _ := p.GetOrRebuild(context.Background(), 1)
				got <- v
			}()
			<-started
			version.Store(1)
			invalidate(p)
			close(release)
			if v := <-got; v != 0 {
				t.Errorf("who asked before the invalidation got %d", v)
			}
			if _, ok := p.Get(1); ok {
				t.Error("what was built before the invalidation is kept")
			}
			if v, err := p.GetOrRebuild(t.Context(), 1); v != 1 || err != nil {
				t.Errorf("got %d, %v, want 1", v, err)
			}
		})
	}
}

func TestErrorsArePassedOnAndOnlyAbsenceIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, err := Open(Config{Budget: 8 * SegmentSize})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		boom := errors.New("boom")
		calls := map[string]int{}
		p, err := NewPool(h, PoolConfig[string, int]{
			NegativeTTL: time.Minute,
			Rebuild: func(_ context.Context, k string) (int, error) {
				calls[k]++
				if k == "broken" {
					return 0, boom
				}
				return 0, fmt.Errorf("no row: %w", ErrNotFound)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		for range 3 {
			if _, err := p.GetOrRebuild(t.Context(), "broken"); !errors.Is(err, boom) {
				t.Errorf("got %v, want %v", err, boom)
			}
			if _, err := p.GetOrRebuild(t.Context(), "absent"); !errors.Is(err, ErrNotFound) {
				t.Errorf("got %v, want %v", err, ErrNotFound)
			}
		}
		if calls["broken"] != 3 || calls["absent"] != 1 {
			t.Errorf("calls: %v, want 3 for broken and 1 for absent", calls)
		}
		time.Sleep(time.Minute)
		if _, err := p.GetOrRebuild(t.Context(), "absent"); !errors.Is(err, ErrNotFound) || calls["absent"] != 2 {
			t.Errorf("after NegativeTTL: got %v after %d calls", err, calls["absent"])
		}
	})
}

func TestRefreshAheadAnswersTheOldValueMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, err := Open(Config{Budget: 8 * SegmentSize})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		n := 0
		p, err := NewPool(h, PoolConfig[int, int]{
			TTL: time.Minute, RefreshAhead: 10 * time.Second,
			Rebuild: func(context.Context, int) (int, error) { n++; return n, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		get := func() int {
			v, err := p.GetOrRebuild(t.Context(), 1)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		if v := get(); v != 1 {
			t.Fatalf("got %d, want 1", v)
		}
		time.Sleep(49 * time.Second)
		if get(); n != 1 {
			t.Fatal("refreshed too early")
		}
		time.Sleep(2 * time.Second)
		if v := get(); v != 1 {
			t.Fatalf("got %d, want the old value", v)
		}
		synctest.Wait()
		if v := get(); v != 2 || n != 2 {
			t.Fatalf("got %d after %d rebuilds, want the new value", v, n)
		}
		time.Sleep(2 * time.Minute)
		if v := get(); v != 3 {
			t.Fatalf("got %d after the TTL, want 3", v)
		}
	})
}

func TestBatchRebuildsWhatIsMissingTogether(t *testing.T) {
	h := open(t, 8)
	var asked [][]int
	p := newPool(t, h, PoolConfig[int, string]{
		Rebuild: func(context.Context, int) (string, error) { return "", errors.New("want the batch") },
		RebuildBatch: func(_ context.Context, keys []int) ([]string, []error, error) {
			asked = append(asked, keys)
			vals, errs := make([]string, len(keys)), make([]error, len(keys))
			for i, k := range keys {
				if vals[i] = fmt.Sprint(k); k == 4 {
					errs[i] = ErrNotFound
				}
			}
			return vals, errs, nil
		},
	})
	if err := p.Put(2, "two"); err != nil {
		t.Fatal(err)
	}
	vals, errs := p.GetOrRebuildBatch(t.Context(), []int{1, 2, 3, 1, 4})
	if want := []string{"1", "two", "3", "1"}; fmt.Sprint(vals[:4]) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", vals, want)
	}
	if errs == nil || errs[0] != nil || !errors.Is(errs[4], ErrNotFound) {
		t.Errorf("errors: %v", errs)
	}
	if fmt.Sprint(asked) != "[[1 3 4]]" {
		t.Errorf("asked for %v, want [[1 3 4]]", asked)
	}
	if vals, errs = p.GetOrRebuildBatch(t.Context(), []int{1, 3}); errs != nil || vals[1] != "3" || len(asked) != 1 {
		t.Errorf("got %q, %v after %d calls", vals, errs, len(asked))
	}
}

func TestAPanickingReconstructorIsAnError(t *testing.T) {
	h := open(t, 8)
	p := newPool(t, h, PoolConfig[int, int]{Rebuild: func(context.Context, int) (int, error) { panic("ouch") }})
	var pe *PanicError
	if _, err := p.GetOrRebuild(t.Context(), 1); !errors.As(err, &pe) || pe.Value != "ouch" {
		t.Errorf("got %v, want the panic", err)
	}
}

func TestVerifyReportsAReconstructorThatDisagrees(t *testing.T) {
	h := open(t, 8)
	answer, wrong := 1, 0
	p := newPool(t, h, PoolConfig[int, int]{
		Rebuild:    func(context.Context, int) (int, error) { return answer, nil },
		Verify:     1,
		OnMismatch: func(key, cached, rebuilt int) { wrong++ },
	})
	for range 3 {
		if _, err := p.GetOrRebuild(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
	}
	if wrong != 0 {
		t.Fatalf("%d mismatches of a faithful reconstructor", wrong)
	}
	answer = 2
	if _, err := p.GetOrRebuild(t.Context(), 1); err != nil || wrong != 1 {
		t.Fatalf("%d mismatches, want 1 (%v)", wrong, err)
	}
}

func TestProfilerWarnsOfWhatIsDearAndSeldomUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, err := Open(Config{Budget: 8 * SegmentSize})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		slow := func(context.Context, int) (int, error) { time.Sleep(5 * time.Millisecond); return 0, nil }
		p, err := NewPool(h, PoolConfig[int, int]{Name: "dear", Rebuild: slow})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		for i := range 200 {
			if _, err := p.GetOrRebuild(t.Context(), i); err != nil {
				t.Fatal(err)
			}
		}
		if a := h.Profiles(); len(a) != 1 || !a[0].Unsuitable || a[0].MeanRebuild != 5*time.Millisecond {
			t.Errorf("profiles: %+v", a)
		}
		for i := range 400 {
			p.Get(i % 200)
		}
		if a := h.Profiles(); a[0].Unsuitable {
			t.Errorf("used again and still unsuitable: %+v", a)
		}
	})
}

func TestPriorityKeepsWhatMatters(t *testing.T) {
	if invariants.Enabled {
		return // one goroutine does much; "make plain" runs it
	}
	h := open(t, 16)
	build := func(_ context.Context, k int) ([1000]byte, error) { return [1000]byte{byte(k)}, nil }
	high := newPool(t, h, PoolConfig[int, [1000]byte]{Rebuild: build, Priority: HighestPriority})
	low := newPool(t, h, PoolConfig[int, [1000]byte]{Rebuild: build})
	for i := range 60000 {
		if i < 5000 {
			if _, err := high.GetOrRebuild(t.Context(), i); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := low.GetOrRebuild(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	if n := high.Len(); n < 4500 {
		t.Errorf("of 5000 values of high priority %d are left", n)
	}
}
