package keyspace

import (
	"context"
	"errors"
	"time"

	"polder/far"
	"polder/soft"
)

// cache is a store in soft memory. Entries may vanish between any two
// commands, and are then not there; nothing is ever waited for.
type cache struct {
	heap *soft.Heap
	m    *soft.ByteMap
}

// lastExpiry is the latest time of expiry that a cache can tell from never.
var lastExpiry = time.Unix(1<<33, 0)

func entryOf(i soft.Item) far.Entry {
	return far.Entry{Value: i.Value, Expire: i.Expire, Tag: i.Tag}
}

func (c *cache) Get(_ context.Context, key, dst []byte) (far.Entry, error) {
	i, ok := c.m.Get(key, dst)
	if !ok {
		return far.Entry{}, far.ErrNotFound
	}
	return entryOf(i), nil
}

// GetInto is Get, and never returns a size: a cache keeps every value as one entry.
func (c *cache) GetInto(ctx context.Context, key, dst []byte) (far.Entry, int, error) {
	e, err := c.Get(ctx, key, dst)
	return e, 0, err
}

func (c *cache) Stat(_ context.Context, key []byte) (far.Entry, int, error) {
	i, size, ok := c.m.Stat(key)
	if !ok {
		return far.Entry{}, 0, far.ErrNotFound
	}
	return entryOf(i), size, nil
}

func (c *cache) Set(_ context.Context, key []byte, e far.Entry) error { return c.put(key, e, 0) }

// put stores a value that took the client the time took to make (0 if that is not known). If there is no memory for
// the value, put drops it at once, together with the value that it replaces: a cache may drop any value at any time.
func (c *cache) put(key []byte, e far.Entry, took time.Duration) error {
	if e.Expire.After(lastExpiry) {
		e.Expire = lastExpiry
	}
	err := c.m.Set(key, soft.Item{Value: e.Value, Expire: e.Expire, Tag: e.Tag, Took: took})
	switch {
	case errors.Is(err, soft.ErrNoMemory):
		c.m.Delete(key)
		return nil
	case errors.Is(err, soft.ErrClosed):
		return far.ErrClosed
	case errors.Is(err, soft.ErrTooLarge):
		return far.ErrTooLarge
	}
	return err
}

func (c *cache) Delete(_ context.Context, key []byte) (bool, error) { return c.m.Delete(key), nil }

func (c *cache) Scan(_ context.Context, cursor uint64, yield func(key []byte, e far.Entry)) (uint64, error) {
	return c.m.Scan(cursor, func(key []byte, i soft.Item) { yield(key, entryOf(i)) }), nil
}

func (c *cache) Random(_ context.Context, dst []byte) ([]byte, error) {
	key, ok := c.m.Random(dst)
	if !ok {
		return dst, far.ErrNotFound
	}
	return key, nil
}

func (c *cache) Prefetch(context.Context, ...[]byte) error  { return nil }
func (c *cache) FetchHeads(context.Context, [][]byte) error { return nil }
func (c *cache) Len() int                                   { return c.m.Len() }
func (c *cache) Clear()                                     { c.m.Clear() }

// memory reports as the limit what the heap may use now. The heap evicts with a clock; of Redis's policies,
// allkeys-lru comes nearest to that.
func (c *cache) memory() Memory {
	s := c.heap.Stats()
	return Memory{
		Used: s.Budget - s.Free, Max: s.Budget, Policy: "allkeys-lru",
		Removals: s.EvictedObjects + s.LostObjects,
	}
}
