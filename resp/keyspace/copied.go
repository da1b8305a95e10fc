package keyspace

import (
	"context"
	"fmt"

	"polder/far"
	"polder/resp/hashes"
)

// A command that goes through all keys or all blocks of a hash takes long. Each of its steps gets the time that other
// commands have in all.

// Again begins a step: what follows may wait for Config.OpTimeout, counted from now.
func (a *Access) Again() {
	a.Settle()
	a.ctx, a.cancel = context.WithTimeout(a.Space.ctx, a.Space.cfg.OpTimeout)
}

// GetMany calls yield with the entries of keys, in any order. The stripes of the keys must be locked. It is not for a
// space in soft memory.
func (a *Access) GetMany(keys [][]byte, yield func(i int, e far.Entry, err error)) {
	a.Space.entries.GetMany(a.ctx, keys, yield)
}

// BlocksFrom calls yield with the blocks of h, from block from on, until yield returns false or fails.
func (a *Access) BlocksFrom(h *hashes.Large, from uint32, yield func(b uint32, l hashes.List) (bool, error)) error {
	for b := from; b < h.Buckets; b++ {
		if (b-from)%fetchBlocks == 0 {
			a.Again()
			var keys [][]byte
			for next := b; next < min(h.Buckets, b+fetchBlocks); next++ {
				keys = append(keys, h.Key(next))
			}
			_ = a.Space.blocks.Prefetch(a.ctx, keys...) // blocks that this does not fetch are read one by one
		}
		l, err := a.Block(h, b, a.Scratch2[:0])
		if err != nil {
			return fmt.Errorf("a block of a hash: %w", err)
		}
		Reuse(&a.Scratch2, l)
		if more, err := yield(b, l); err != nil || !more {
			return err
		}
	}
	return nil
}

// CopyAside copies the large hash under key to blocks of its own. No key leads to the copy, so it can be read without
// a lock. CopyAside returns the copy and the hash's entry; the copy is nil if key has another kind of value by now.
// The caller gives every copy to FreeCopy, even one that CopyAside returned with an error.
//
// The key is locked for writing meanwhile, so that a checkpoint has the whole copy with all that is known of it, or
// nothing of it.
func (a *Access) CopyAside(key []byte) (c *hashes.Large, e far.Entry, err error) {
	a.Again()
	a.LockKey(key, true, nil)
	defer a.Unlock()
	e, _, err = a.Space.keys.Stat(a.ctx, key)
	if err != nil {
		return nil, e, err
	}
	h := a.LargeOf(key)
	if e.Tag != TagLarge || h == nil {
		return nil, e, nil
	}
	c = &hashes.Large{ID: a.Space.nextHash.Add(1), Buckets: h.Buckets, Leads: -1}
	a.Space.sweeper.pin(c)
	err = a.BlocksFrom(h, 0, func(b uint32, l hashes.List) (bool, error) {
		c.Count += l.Len()
		if l.Len() == 0 {
			return true, nil
		}
		return true, a.Space.blocks.Set(a.ctx, c.Key(b), far.Entry{Value: l})
	})
	return c, e, err
}

// FreeCopy ends the use of a copy that CopyAside made.
func (sp *Space) FreeCopy(c *hashes.Large) { sp.sweeper.unpin(c) }
