package soft

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"polder/codec"
	"polder/soft/internal/flight"
)

// Pool is a cache with a reconstructor: GetOrRebuild always has an answer,
// from soft memory if it is there. Its methods may be called by any number of
// goroutines.
type Pool[K comparable, V any] struct {
	m       *Map[K, V]
	h       *Heap
	cfg     PoolConfig[K, V]
	flights flight.Group[K, V]
	account *Account
}

// PoolConfig says how a pool rebuilds and for how long it remembers.
type PoolConfig[K comparable, V any] struct {
	// Name is what the profiler calls the pool.
	Name string

	// Rebuild makes the value of a key. Goroutines that ask for the same key share one call, whose context is
	// cancelled when nobody waits any more. A call that was cancelled, or whose key was invalidated, may still run
	// beside the next; and Verify makes calls of its own. An error is passed to all who wait and not remembered; but
	// ErrNotFound (or what wraps it) is, for NegativeTTL.
	Rebuild func(ctx context.Context, key K) (V, error)

	// RebuildBatch, if set, makes the values of several keys together, in their order. It may answer with one error
	// for each key, or with one for all. GetOrRebuildBatch uses it, or else calls Rebuild for each key.
	RebuildBatch func(ctx context.Context, keys []K) ([]V, []error, error)

	// TTL bounds the age of a value. 0: values do not age.
	TTL time.Duration

	// NegativeTTL is for how long ErrNotFound is remembered. 0: not at all.
	NegativeTTL time.Duration

	// RefreshAhead is how long before its TTL ends a value that is asked for
	// is rebuilt in the background; the old one is still answered. It must be
	// less than TTL. 0: not at all.
	RefreshAhead time.Duration

	// Priority decides which of the heap's pools keeps its values when memory is short: see the type.
	Priority Priority

	// Weight multiplies what this pool's values cost to rebuild, in the curve that tells the coordinator what memory
	// saves. Default 1; more than 0, at most 1000.
	Weight float64

	// Verify is the debug mode: that fraction (0 to 1) of the hits is rebuilt
	// and compared by Equal; differences are reported to OnMismatch. Equal is
	// by default the equality of the stored bytes; OnMismatch logs.
	Verify     float64
	Equal      func(cached, rebuilt V) bool
	OnMismatch func(key K, cached, rebuilt V)

	Keys   Codec[K]
	Values Codec[V]
}

// ErrNotFound is what a reconstructor answers when there is no value for a
// key; a pool with NegativeTTL remembers that.
var ErrNotFound = errors.New("there is no such value")

// PanicError is what those who wait are told when a reconstructor panics.
type PanicError = flight.PanicError

// NewPool makes a pool.
func NewPool[K comparable, V any](h *Heap, cfg PoolConfig[K, V]) (*Pool[K, V], error) {
	fail := func(format string, a ...any) (*Pool[K, V], error) {
		return nil, fmt.Errorf("cannot make a soft pool: "+format, a...)
	}
	switch {
	case cfg.Rebuild == nil:
		return fail("Rebuild is missing")
	case cfg.TTL < 0 || cfg.NegativeTTL < 0 || cfg.RefreshAhead < 0:
		return fail("a duration is negative")
	case cfg.RefreshAhead > 0 && cfg.RefreshAhead >= cfg.TTL:
		return fail("RefreshAhead is %v: want less than TTL, %v", cfg.RefreshAhead, cfg.TTL)
	case !(cfg.Weight >= 0 && cfg.Weight <= 1000):
		return fail("Weight is %v: want more than 0 and at most 1000, or 0 for 1", cfg.Weight)
	case !(cfg.Verify >= 0 && cfg.Verify <= 1):
		return fail("Verify is %v: want 0 to 1", cfg.Verify)
	}
	m, err := NewMap(h, MapConfig[K, V]{Keys: cfg.Keys, Values: cfg.Values, Priority: cfg.Priority})
	if err != nil {
		return nil, err
	}
	if cfg.Weight == 0 {
		cfg.Weight = 1
	}
	p := &Pool[K, V]{m: m, h: h, cfg: cfg}
	p.account = h.Account(cfg.Name)
	if p.cfg.Equal == nil {
		p.cfg.Equal = func(a, b V) bool { return string(m.val.View(&a, nil)) == string(m.val.View(&b, nil)) }
	}
	if p.cfg.OnMismatch == nil {
		p.cfg.OnMismatch = func(key K, _, _ V) {
			h.log.Error("a reconstructor makes something else than what is cached", "pool", cfg.Name, "key", key)
		}
	}
	return p, nil
}

// Get returns the value of a key if it is there, and does not rebuild it.
func (p *Pool[K, V]) Get(key K) (v V, ok bool) {
	f, _, err := p.lookup(key, &v)
	return v, err == nil && f == present
}

// Put stores a value that the caller has built.
func (p *Pool[K, V]) Put(key K, v V) error {
	p.flights.Invalidate(key) // what is being rebuilt is older
	return p.put(key, &v, 0, 0, nil)
}

func (p *Pool[K, V]) put(key K, v *V, took time.Duration, flags uint8, cond condition) error {
	cost := took.Seconds()
	if took == 0 {
		cost = p.h.curve.seconds(unknownCost)
	}
	e := entry{cost: costClass(time.Duration(cost * p.cfg.Weight * 1e9)), flags: flags}
	ttl := p.cfg.TTL
	if flags&flagAbsent != 0 {
		ttl = p.cfg.NegativeTTL
	}
	if ttl > 0 {
		e.expiry = p.m.t.clock().Add(ttl).UnixNano()
	}
	return p.m.store(key, v, e, cond)
}

// lookup is what all reads share: it copies the value of a key to *v, and counts.
func (p *Pool[K, V]) lookup(key K, v *V) (f found, expiry int64, err error) {
	f, expiry, err = p.again(key, v)
	switch f {
	case present:
		p.h.count.hits.add()
		p.account.Hit()
	case absent:
		p.h.count.hits.add()
	default:
		p.h.count.misses.add()
	}
	return f, expiry, err
}

// again is lookup without counting: also for a caller whose miss has been counted, and which looks once more because
// the key may have been stored since.
//
//polder:hot
func (p *Pool[K, V]) again(key K, v *V) (f found, expiry int64, err error) {
	k := p.m.key.View(&key, nil)
	hash := p.m.hash(k)
	if p.m.val.Plain() { // a branch of its own, or *v would escape, and every read allocate
		_, _, expiry, f = p.m.t.get(hash, k, codec.Bytes(v)[:0])
		if f != present {
			var zero V
			*v = zero // a copy that was overtaken may have left bytes in it
		}
		return f, expiry, nil
	}
	b, _, expiry, f := p.m.t.get(hash, k, nil)
	if f == present {
		err = p.m.val.Adopt(b, v)
	}
	return f, expiry, err
}

// GetOrRebuild returns the value of a key, rebuilt if it is not there: once,
// however many ask at the same time.
func (p *Pool[K, V]) GetOrRebuild(ctx context.Context, key K) (v V, err error) {
	f, expiry, err := p.lookup(key, &v)
	if err != nil {
		return v, fmt.Errorf("cannot decode a soft value: %w", err)
	}
	switch f {
	case absent:
		return v, ErrNotFound
	case present:
		if expiry != 0 && p.cfg.RefreshAhead > 0 && expiry-p.m.t.clock().UnixNano() < int64(p.cfg.RefreshAhead) {
			p.flights.Refresh(ctx, key, p.rebuilder(key))
		}
		if p.cfg.Verify > 0 && rand.Float64() < p.cfg.Verify {
			p.verify(ctx, key, v)
		}
		return v, nil
	}
	return p.flights.Do(ctx, key, func(ctx context.Context, c *flight.Call[V]) (v V, err error) {
		if f, _, err := p.again(key, &v); f == present && err == nil {
			return v, nil // stored between our look and our turn
		}
		return p.rebuilder(key)(ctx, c)
	})
}

func (p *Pool[K, V]) rebuilder(key K) func(context.Context, *flight.Call[V]) (V, error) {
	return func(ctx context.Context, c *flight.Call[V]) (V, error) {
		start := time.Now()
		v, err := p.cfg.Rebuild(ctx, key)
		took := time.Since(start)
		p.account.Rebuilt(took, 1)
		return v, p.settle(key, c, &v, err, took)
	}
}

// settle stores what a reconstructor answered, unless the key was invalidated meanwhile. It asks that while it holds
// the shard's lock, under which an invalidation removes the key. If memory is short, the value is not kept, which is
// no error.
func (p *Pool[K, V]) settle(key K, c *flight.Call[V], v *V, err error, took time.Duration) error {
	fresh := func(match, bool) bool { return p.flights.Fresh(c) }
	switch {
	case err == nil:
		_ = p.put(key, v, took, 0, fresh)
		return nil
	case errors.Is(err, ErrNotFound):
		if p.cfg.NegativeTTL > 0 {
			var zero V
			_ = p.put(key, &zero, took, flagAbsent, fresh)
		}
		return err
	}
	return fmt.Errorf("cannot rebuild a soft value: %w", err)
}

// GetOrRebuildBatch returns the values of several keys, in their order. What
// is not there is rebuilt together; keys that somebody else is rebuilding
// are waited for. The errors are nil, or one for each key.
func (p *Pool[K, V]) GetOrRebuildBatch(ctx context.Context, keys []K) ([]V, []error) {
	vals := make([]V, len(keys))
	var errs []error
	fail := func(i int, err error) {
		if err == nil {
			return
		}
		if errs == nil {
			errs = make([]error, len(keys))
		}
		errs[i] = err
	}
	var miss []K
	at := make(map[K][]int) // places of each missing key
	for i, k := range keys {
		f, _, err := p.lookup(k, &vals[i])
		switch {
		case err != nil:
			fail(i, fmt.Errorf("cannot decode a soft value: %w", err))
		case f == present:
		case f == absent:
			fail(i, ErrNotFound)
		default:
			if at[k] == nil {
				miss = append(miss, k)
			}
			at[k] = append(at[k], i)
		}
	}
	if len(miss) == 0 {
		return vals, errs
	}
	for i, r := range p.rebuildBatch(ctx, miss) {
		for _, j := range at[miss[i]] {
			vals[j] = r.val
			fail(j, r.err)
		}
	}
	return vals, errs
}

type result[V any] struct {
	val V
	err error
}

func (p *Pool[K, V]) rebuildBatch(ctx context.Context, keys []K) []result[V] {
	out := make([]result[V], len(keys))
	if p.cfg.RebuildBatch == nil {
		joined := make([]*flight.Call[V], len(keys))
		for i, k := range keys {
			joined[i] = p.flights.Join(ctx, k, p.rebuilder(k))
		}
		for i, c := range joined {
			out[i].val, out[i].err = p.flights.Wait(ctx, keys[i], c)
		}
		return out
	}
	mine, others := p.flights.Claim(ctx, keys)
	defer p.flights.GiveUp(keys, mine)
	var todo []K
	for i, c := range mine {
		if c == nil {
			continue
		}
		// Stored between our look and our turn?
		if f, _, err := p.again(keys[i], &out[i].val); f == present && err == nil {
			p.flights.End(keys[i], c, func() (V, error) { return out[i].val, nil })
			mine[i] = nil
			continue
		}
		todo = append(todo, keys[i])
	}
	var vals []V
	var errs []error
	var err error
	start := time.Now()
	if len(todo) > 0 {
		vals, errs, err = p.callBatch(ctx, todo)
		p.account.Rebuilt(time.Since(start), len(todo))
	}
	took := time.Since(start) / time.Duration(max(len(todo), 1))
	n := 0
	for i, c := range mine {
		if c == nil {
			continue
		}
		p.flights.End(keys[i], c, func() (v V, e error) {
			switch {
			case err != nil:
				e = err
			case errs != nil && errs[n] != nil:
				e = errs[n]
			default:
				v = vals[n]
			}
			return v, p.settle(keys[i], c, &v, e, took)
		})
		out[i] = result[V]{c.Val, c.Err}
		n++
	}
	for i, c := range others {
		if c != nil {
			out[i].val, out[i].err = p.flights.Wait(ctx, keys[i], c)
		}
	}
	return out
}

// callBatch calls RebuildBatch and checks what it answers.
func (p *Pool[K, V]) callBatch(ctx context.Context, keys []K) (vals []V, errs []error, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &PanicError{Value: r}
		}
	}()
	vals, errs, err = p.cfg.RebuildBatch(ctx, keys)
	switch {
	case err != nil:
	case len(vals) != len(keys):
		err = fmt.Errorf("RebuildBatch made %d values for %d keys", len(vals), len(keys))
	case errs != nil && len(errs) != len(keys):
		err = fmt.Errorf("RebuildBatch made %d errors for %d keys", len(errs), len(keys))
	}
	return vals, errs, err
}

// verify rebuilds a value and compares.
func (p *Pool[K, V]) verify(ctx context.Context, key K, cached V) {
	rebuilt, err := p.cfg.Rebuild(ctx, key)
	if err != nil || p.cfg.Equal(cached, rebuilt) {
		return
	}
	if now, ok := p.Get(key); !ok || !p.cfg.Equal(now, cached) {
		return // replaced meanwhile
	}
	p.account.mismatches.Add(1)
	p.cfg.OnMismatch(key, cached, rebuilt)
}

// Invalidate removes a key. What is being rebuilt for it is not stored.
func (p *Pool[K, V]) Invalidate(key K) {
	p.flights.Invalidate(key)
	p.m.Delete(key)
}

// InvalidateAll removes every key.
func (p *Pool[K, V]) InvalidateAll() {
	p.flights.InvalidateAll()
	p.m.Clear()
}

// Len counts the keys that are there.
func (p *Pool[K, V]) Len() int { return p.m.Len() }

// Close cancels rebuilding and removes every key. The pool must not be used
// afterwards.
func (p *Pool[K, V]) Close() {
	p.flights.Close()
	p.m.Close()
	p.account.Close()
}
