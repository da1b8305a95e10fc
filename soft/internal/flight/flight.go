// Package flight makes one call for each key at a time, however many ask for it: so what
// soft memory has lost is rebuilt once.
package flight

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
)

// A Group makes one call for each key at a time, however many ask. A call runs in a goroutine of its own, with a
// context that is cancelled when nobody waits for it any more. A call that was cancelled or invalidated may still run
// beside the next. The zero value is ready. Its methods may be called by any number of goroutines.
type Group[K comparable, V any] struct {
	mu   sync.Mutex // leaf
	m    map[K]*Call[V]
	all  map[*Call[V]]bool // calls that have not ended, also those that are not in m any more
	done sync.WaitGroup
}

// A Call is a call of a Group: under way, or ended.
type Call[V any] struct {
	finished chan struct{}
	cancel   context.CancelFunc
	waiting  int  // guarded by Group.mu
	stale    bool // invalidated meanwhile; guarded by Group.mu

	Val V // what was answered, once the call has ended
	Err error
}

// PanicError is what those who wait are told when a reconstructor panics.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("the reconstructor panicked: %v\n%s", e.Value, e.Stack)
}

// Do calls f, or waits for the call for the key that is under way.
func (g *Group[K, V]) Do(ctx context.Context, key K, f func(context.Context, *Call[V]) (V, error)) (V, error) {
	return g.Wait(ctx, key, g.Join(ctx, key, f))
}

// Join begins a call, or joins the one that is under way. Wait must follow.
func (g *Group[K, V]) Join(ctx context.Context, key K, f func(context.Context, *Call[V]) (V, error)) *Call[V] {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c, ok := g.m[key]; ok {
		c.waiting++
		return c
	}
	c, run := g.begin(ctx, key, 1)
	g.done.Go(func() { g.End(key, c, func() (V, error) { return f(run, c) }) })
	return c
}

// begin registers a call.
//
// Preconditions: g.mu is held and no call for the key is under way.
func (g *Group[K, V]) begin(ctx context.Context, key K, waiting int) (*Call[V], context.Context) {
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := &Call[V]{finished: make(chan struct{}), cancel: cancel, waiting: waiting}
	if g.m == nil {
		g.m, g.all = make(map[K]*Call[V]), make(map[*Call[V]]bool)
	}
	g.m[key], g.all[c] = c, true
	return c, run
}

// Refresh begins a call that nobody waits for, unless one is under way.
func (g *Group[K, V]) Refresh(ctx context.Context, key K, f func(context.Context, *Call[V]) (V, error)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.m[key]; ok {
		return
	}
	c, run := g.begin(ctx, key, 1)
	g.done.Go(func() { g.End(key, c, func() (V, error) { return f(run, c) }) })
}

// Claim registers, all at once, a call for each of the keys for which none is under way. The caller makes these
// calls, mine, itself; End must follow for each. Claim joins the calls that are under way for the other keys, others;
// Wait must follow for each. For each key, one of mine and others is nil.
func (g *Group[K, V]) Claim(ctx context.Context, keys []K) (mine, others []*Call[V]) {
	mine, others = make([]*Call[V], len(keys)), make([]*Call[V], len(keys))
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

// errGivenUp is what those who wait for a call are told if its maker gave it up.
var errGivenUp = errors.New("whoever was to rebuild it panicked")

// GiveUp ends the claimed calls that were not made. Whoever claims calls defers it, since the codecs and sources that
// it calls meanwhile are the program's and may panic.
func (g *Group[K, V]) GiveUp(keys []K, mine []*Call[V]) {
	for i, c := range mine {
		if c == nil {
			continue
		}
		select {
		case <-c.finished:
		default:
			g.End(keys[i], c, func() (v V, err error) { return v, errGivenUp })
		}
	}
}

// End makes a registered call and tells those who wait.
func (g *Group[K, V]) End(key K, c *Call[V], f func() (V, error)) {
	defer func() {
		if r := recover(); r != nil {
			c.Err = &PanicError{r, debug.Stack()}
		}
		g.mu.Lock()
		if g.m[key] == c {
			delete(g.m, key)
		}
		delete(g.all, c)
		g.mu.Unlock()
		c.cancel()
		close(c.finished)
	}()
	c.Val, c.Err = f()
}

// Wait waits for a call that was joined.
func (g *Group[K, V]) Wait(ctx context.Context, key K, c *Call[V]) (V, error) {
	select {
	case <-c.finished:
		return c.Val, c.Err
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

// Invalidate marks the call that is under way for a key as stale, so that its result is not stored (Fresh). Whoever
// asks later begins a new call.
func (g *Group[K, V]) Invalidate(key K) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c, ok := g.m[key]; ok {
		c.stale = true
		delete(g.m, key)
	}
}

// InvalidateAll is invalidate for every key.
func (g *Group[K, V]) InvalidateAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.m {
		c.stale = true
	}
	clear(g.m)
}

// Fresh reports whether a call has not been invalidated.
func (g *Group[K, V]) Fresh(c *Call[V]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !c.stale
}

// Close cancels the calls that are under way, also those that were invalidated, and waits for them.
func (g *Group[K, V]) Close() {
	g.mu.Lock()
	for c := range g.all {
		c.cancel()
	}
	g.mu.Unlock()
	g.done.Wait()
}
