package soft

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// flights makes one call for each key at a time, however many ask. A call
// runs in a goroutine of its own, with a context that is cancelled when
// nobody waits for it any more.
type flights[K comparable, V any] struct {
	mu   sync.Mutex // leaf
	m    map[K]*flight[V]
	done sync.WaitGroup
}

// flight is a call that is under way.
type flight[V any] struct {
	finished chan struct{}
	cancel   context.CancelFunc
	waiting  int  // guarded by flights.mu
	stale    bool // invalidated meanwhile; guarded by flights.mu

	val V // these are set when finished is closed
	err error
}

// PanicError is what those who wait are told when a reconstructor panics.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("the reconstructor panicked: %v\n%s", e.Value, e.Stack)
}

// do calls f, or waits for the call for the key that is under way.
func (g *flights[K, V]) do(ctx context.Context, key K, f func(context.Context, *flight[V]) (V, error)) (V, error) {
	return g.wait(ctx, key, g.join(ctx, key, f))
}

// join begins a call, or joins the one that is under way. Wait must follow.
func (g *flights[K, V]) join(ctx context.Context, key K, f func(context.Context, *flight[V]) (V, error)) *flight[V] {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c, ok := g.m[key]; ok {
		c.waiting++
		return c
	}
	c, run := g.begin(ctx, key, 1)
	g.done.Go(func() { g.end(key, c, func() (V, error) { return f(run, c) }) })
	return c
}

// begin registers a call.
//
// Preconditions: g.mu is held and no call for the key is under way.
func (g *flights[K, V]) begin(ctx context.Context, key K, waiting int) (*flight[V], context.Context) {
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := &flight[V]{finished: make(chan struct{}), cancel: cancel, waiting: waiting}
	if g.m == nil {
		g.m = make(map[K]*flight[V])
	}
	g.m[key] = c
	return c, run
}

// refresh begins a call that nobody waits for, unless one is under way.
func (g *flights[K, V]) refresh(ctx context.Context, key K, f func(context.Context, *flight[V]) (V, error)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.m[key]; ok {
		return
	}
	c, run := g.begin(ctx, key, 1)
	g.done.Go(func() { g.end(key, c, func() (V, error) { return f(run, c) }) })
}

// claim registers calls that the caller makes itself, all at once, for those
// of the keys for which none is under way; end must follow for each. The
// others are joined; wait must follow for each.
func (g *flights[K, V]) claim(ctx context.Context, keys []K) (mine, others []*flight[V]) {
	mine, others = make([]*flight[V], len(keys)), make([]*flight[V], len(keys))
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, k := range keys {
		if c, ok := g.m[k]; ok {
			c.waiting++
			others[i] = c
		} else {
			mine[i], _ = g.begin(ctx, k, 1)
		}
	}
	return mine, others
}

// errGivenUp is what those are told who wait for a call that its maker gave up.
var errGivenUp = errors.New("whoever was to rebuild it panicked")

// giveUp ends those of the claimed calls that were not made: deferred by who claims
// them, since what it calls meanwhile, codecs and sources, are the program's and may
// panic.
func (g *flights[K, V]) giveUp(keys []K, mine []*flight[V]) {
	for i, c := range mine {
		if c == nil {
			continue
		}
		select {
		case <-c.finished:
		default:
			g.end(keys[i], c, func() (v V, err error) { return v, errGivenUp })
		}
	}
}

// end makes a registered call and tells those who wait.
func (g *flights[K, V]) end(key K, c *flight[V], f func() (V, error)) {
	defer func() {
		if r := recover(); r != nil {
			c.err = &PanicError{r, debug.Stack()}
		}
		g.mu.Lock()
		if g.m[key] == c {
			delete(g.m, key)
		}
		g.mu.Unlock()
		c.cancel()
		close(c.finished)
	}()
	c.val, c.err = f()
}

// wait waits for a call that was joined.
func (g *flights[K, V]) wait(ctx context.Context, key K, c *flight[V]) (V, error) {
	select {
	case <-c.finished:
		return c.val, c.err
	case <-ctx.Done():
	}
	g.mu.Lock()
	c.waiting--
	if c.waiting == 0 {
		c.cancel()
		if g.m[key] == c {
			delete(g.m, key)
		}
	}
	g.mu.Unlock()
	var zero V
	return zero, ctx.Err()
}

// invalidate keeps what the call that is under way for a key will return from
// being stored; those who come later make a new one.
func (g *flights[K, V]) invalidate(key K) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c, ok := g.m[key]; ok {
		c.stale = true
		delete(g.m, key)
	}
}

// invalidateAll is invalidate for every key.
func (g *flights[K, V]) invalidateAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.m {
		c.stale = true
	}
	clear(g.m)
}

// fresh reports whether a call has not been invalidated.
func (g *flights[K, V]) fresh(c *flight[V]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !c.stale
}

// close cancels the calls that are under way and waits for them.
func (g *flights[K, V]) close() {
	g.mu.Lock()
	for _, c := range g.m {
		c.cancel()
	}
	g.mu.Unlock()
	g.done.Wait()
}

// rebuilt counts n values that were rebuilt together in the given time.
func (h *Heap) rebuilt(d time.Duration, n int) {
	h.count.rebuilds.Add(uint64(n))
	h.count.rebuildNanos.Add(uint64(d))
}

// ErrNotFound is what a reconstructor answers when there is no value for a
// key; a pool with NegativeTTL remembers that.
var ErrNotFound = errors.New("there is no such value")

// Rebuilt records that the program has spent d to rebuild a value by itself,
// for those that store into a Map what they made. Pools record it themselves, and so
// does a ByteMap that is told.
func (h *Heap) Rebuilt(d time.Duration) { h.rebuilt(d, 1) }
