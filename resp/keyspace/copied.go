package keyspace

import (
	"context"
	"fmt"

	"polder/far"
	"polder/resp/hashes"
)

// What goes through all that there is takes its time, and gives each step the time of a command.

// Again gives what follows the time that a command has.
func (a *Access) Again() {
	a.Settle()
	a.ctx, a.cancel = context.WithTimeout(a.Space.ctx, a.Space.cfg.OpTimeout)
}

// GetMany calls yield with the entries of keys, whose stripes are locked, in any order. A space in soft memory has none.
func (a *Access) GetMany(keys [][]byte, yield func(i int, e far.Entry, err error)) {
	a.Space.entries.GetMany(a.ctx, keys, yield)
}

// BlocksFrom calls yield with the blocks of h from one on, until it returns false.
func (a *Access) BlocksFrom(h *hashes.Large, from uint32, yield func(b uint32, l hashes.List) (bool, error)) error {
	for b := from; b < h.Buckets; b++ {
		if (b-from)%fetchBlocks == 0 {
			a.Again()
			var keys [][]byte
			for next := b; next < min(h.Buckets, b+fetchBlocks); next++ {
				keys = append(keys, h.Key(next))
			}
			_ = a.Space.blocks.Prefetch(a.ctx, keys...) // what is not there then is read one by one
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

// CopyAside makes a copy of the large hash under key that no key leads to, so that it can be read without a lock, and returns it with the
// entry of the hash; nil if the value is another one by now. Whoever has the copy, also one that has failed, gives it to FreeCopy.
//
// The key is locked for writing meanwhile: a checkpoint has a copy with all that is known of it, or nothing.
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

// FreeCopy ends the use of a copy.
func (sp *Space) FreeCopy(c *hashes.Large) { sp.sweeper.unpin(c) }
