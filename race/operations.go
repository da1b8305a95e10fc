package race

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"polder/pool"
	"polder/pool/malloc"
)

// Get appends the value of a key to buf.
func (t *Table) Get(ctx context.Context, key, buf []byte) (value []byte, found bool, err error) {
	o := t.begin(key)
	defer o.end()
	err = o.find(ctx, true, malloc.Block{})
	switch {
	case err == nil && o.firm.off >= 0:
		return append(buf, o.firm.value...), true, nil
	case err == nil && len(o.lost) > 0:
		err = pool.ErrLost
	}
	if err != nil {
		return buf, false, fmt.Errorf("cannot get a key: %w", err)
	}
	return buf, false, nil
}

// Put gives a key a value, whether it has one or not. If it fails, it may have been done.
// The error Is pool.ErrNoMemory if the nodes have no memory left.
func (t *Table) Put(ctx context.Context, key, value []byte) error {
	o := t.begin(key)
	defer o.end()
	if err := o.put(ctx, value); err != nil {
		return fmt.Errorf("cannot put a key: %w", err)
	}
	return nil
}

func (o *op) put(ctx context.Context, value []byte) error {
	for {
		done, err := o.putBlock(ctx, value)
		if done || err != nil {
			return err
		}
		// Somebody has taken the block out of its tentative slot, and frees it.
	}
}

// putBlock puts the value in a new block. It returns false if somebody has taken the block out of the slot in which
// it was tentative.
func (o *op) putBlock(ctx context.Context, value []byte) (done bool, err error) {
	t := o.t
	n := headerSize + int64(len(o.key)) + int64(len(value))
	if n > math.MaxUint32 {
		return false, fmt.Errorf("key and value are %d bytes, want less than 4 GiB", n-headerSize)
	}
	length, size := lengthOf(int(n))
	b, err := t.memory.Alloc(ctx, size)
	if err != nil {
		return false, err
	}
	o.mine = 0
	known, looked := true, false
	defer func() {
		switch {
		case o.mine != 0: // whoever takes it out of its slot retires it
		case known:
			_ = t.memory.Free(context.WithoutCancel(ctx), b)
		default:
			t.inDoubt.Add(1)
		}
	}()
	ref, err := t.memory.Ref(b)
	if err != nil {
		return false, err
	}
	o.block = slices.Grow(o.block[:0], size)[:size]
	encode(o.block, o.hash, o.key, value)
	w := newWord(o.hash.fingerprint(), length, ref)
	to := b // to be written with the first READs
	for {
		if err := o.find(ctx, false, to); err != nil {
			return false, err
		}
		to = malloc.Block{}
		if err := o.vacate(ctx, o.lost); err != nil {
			return false, err
		}
		target, next, ok := o.firm, w, true
		switch own := slices.IndexFunc(o.others, func(c cell) bool { return c.word.is(o.mine) }); {
		case o.mine != 0 && own < 0:
			return false, nil
		case o.mine != 0 && o.firm.off >= 0: // the firm slot counts: take ours out
			target, next = o.others[own], t.vacant()
		case o.mine != 0 && len(o.others) > 1:
			if err := o.vacate(ctx, slices.Delete(o.others, own, own+1)); err != nil {
				return false, err
			}
			continue // and look again
		case o.mine != 0: // the key is nowhere else, and nobody else can come that far
			target = o.others[own]
		case o.firm.off >= 0:
		case len(o.others) > 0 && !looked:
			looked = true
			continue // gives the other Puts the time of a round trip: else Puts would push each other out
		case len(o.others) > 0:
			target, next = o.others[0], w|tentative
		default:
			target, ok = o.place()
			next = w | tentative
		}
		if !ok {
			if err := t.split(ctx, o.s); err != nil {
				return false, err
			}
			continue
		}
		var swapped bool
		swapped, known, err = o.swap(ctx, target, next)
		switch {
		case swapped && next.vacant():
		case swapped:
			if o.mine = next; next == w {
				return true, nil
			}
		case err != nil:
			return false, err
		}
	}
}

// Delete removes a key, and reports whether there was one. If it fails, it may have been
// done.
func (t *Table) Delete(ctx context.Context, key []byte) (found bool, err error) {
	o := t.begin(key)
	defer o.end()
	if found, err = o.delete(ctx); err != nil {
		return false, fmt.Errorf("cannot delete a key: %w", err)
	}
	return found, nil
}

func (o *op) delete(ctx context.Context) (found bool, err error) {
	for {
		if err := o.find(ctx, false, malloc.Block{}); err != nil {
			return false, err
		}
		// Puts that are tentative begin again. They may have been given up.
		if err := errors.Join(o.vacate(ctx, o.lost), o.vacate(ctx, o.others)); err != nil {
			return false, err
		}
		if o.firm.off < 0 {
			return false, nil
		}
		if swapped, _, err := o.swap(ctx, o.firm, o.t.vacant()); swapped || err != nil {
			return swapped, err
		}
	}
}
