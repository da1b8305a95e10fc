package share

import (
	"context"
	"fmt"
	"os"

	"polder/share/internal/wire"
)

// Exists reports whether a key is there.
func (c *Client) Exists(ctx context.Context, key string) (bool, error) {
	found, err := c.ExistsAll(ctx, []string{key})
	return err == nil && found[0], err
}

// Delete deletes a key. Views of it that are open stay valid. It fails with
// ErrPinned if the key is pinned, and with ErrNotFound if it is not there.
func (c *Client) Delete(ctx context.Context, key string) error {
	errs, err := c.DeleteAll(ctx, []string{key})
	if err == nil && errs[0] != nil {
		err = &OpError{Op: "delete", Key: key, Err: errs[0]}
	}
	return err
}

// Pin keeps a key from being deleted and evicted until Unpin, or until the
// client closes or dies. A key can be pinned more than once.
func (c *Client) Pin(ctx context.Context, key string) error {
	n, err := c.PinAll(ctx, []string{key})
	if err == nil && n == 0 {
		err = &OpError{Op: "pin", Key: key, Err: ErrNotFound}
	}
	return err
}

// Unpin takes one Pin of this client back.
func (c *Client) Unpin(ctx context.Context, key string) error {
	errs, err := c.UnpinAll(ctx, []string{key})
	if err == nil && errs[0] != nil {
		err = &OpError{Op: "unpin", Key: key, Err: errs[0]}
	}
	return err
}

// ExistsAll reports which of the keys are there.
func (c *Client) ExistsAll(ctx context.Context, keys []string) ([]bool, error) {
	return existsAll(ctx, c, keys)
}

// DeleteAll deletes keys. The errors are those of Delete, key by key.
func (c *Client) DeleteAll(ctx context.Context, keys []string) ([]error, error) {
	return statusAll(ctx, c, "delete", wire.Delete, keys, true)
}

// PinAll pins the longest prefix of keys that are all there, and returns its
// length: it stops at the first key that is missing.
func (c *Client) PinAll(ctx context.Context, keys []string) (int, error) {
	return pinAll(ctx, c, keys)
}

// UnpinAll takes one Pin of each key back.
func (c *Client) UnpinAll(ctx context.Context, keys []string) ([]error, error) {
	return statusAll(ctx, c, "unpin", wire.Unpin, keys, false)
}

// GetAll returns views of those keys that are there, and views that are not Ok
// for the others. If there is an error, no view is open.
func (c *Client) GetAll(ctx context.Context, keys []string) ([]View, error) {
	views := make([]View, len(keys))
	var ask []string
	var at []int
	for i, key := range keys {
		if err := checkKey(key); err != nil {
			return closeAll(views, &OpError{Op: "get", Key: key, Err: err})
		}
		if v, ok := c.remembered(key); ok {
			views[i] = v
			continue
		}
		ask, at = append(ask, key), append(at, i)
	}
	for part := range batches(ask) {
		locs := make([]wire.Location, len(part))
		if err := c.lookup(ctx, 0, part, func(i int, l wire.Location) { locs[i] = l }); err != nil {
			return closeAll(views, err)
		}
		for i, loc := range locs {
			if !loc.Found {
				continue
			}
			v, err := c.openFound(ctx, part[i], loc)
			if err != nil {
				return closeAll(views, err)
			}
			views[at[i]] = v
		}
		at = at[len(part):]
	}
	return views, nil
}

// openFound opens a view of a key that was found at loc. If the key is gone by now, the view is not Ok.
func (c *Client) openFound(ctx context.Context, key string, loc wire.Location) (View, error) {
	if loc.Maru {
		v, err := c.copyOf(ctx, key, loc)
		if isNotFound(err) {
			return View{}, nil
		}
		return v, err
	}
	if p, err := c.place(ctx, loc); err == nil {
		if v, ok := c.open(p); ok {
			c.cache.put(c.seed, key, p)
			return v, nil
		}
	}
	v, err := c.find(ctx, key)
	if isNotFound(err) {
		return View{}, nil
	}
	return v, err
}

func closeAll(views []View, err error) ([]View, error) {
	for _, v := range views {
		v.Close()
	}
	return nil, err
}

// PutAll registers items, as Put does, and reports which have been stored. The
// pages of a call that fails are the caller's, but for those that were stored
// before it failed.
func (c *Client) PutAll(ctx context.Context, items []Item) ([]bool, error) {
	stored := make([]bool, len(items))
	for from := 0; from < len(items); {
		if err := c.check(items[from]); err != nil {
			return stored, &OpError{Op: "put", Key: items[from].Key, Err: err}
		}
		// One message is about one region.
		to, size := from, 0
		for to < len(items) && to-from < wire.MaxBatch && items[to].Page.r == items[from].Page.r {
			if size += 22 + len(items[to].Key); size > maxBatchBytes && to > from {
				break
			}
			to++
		}
		if err := c.putRegion(ctx, items[from].Page.r, items[from:to], stored[from:to]); err != nil {
			return stored, err
		}
		from = to
	}
	return stored, nil
}

// maxBatchBytes keeps the keys of a batch, and what is said of them, within a
// message.
const maxBatchBytes = 96 << 10

// batches cuts keys into what one message may hold.
func batches(keys []string) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		for from := 0; from < len(keys); {
			to, size := from, 0
			for to < len(keys) && to-from < wire.MaxBatch {
				if size += 2 + len(keys[to]); size > maxBatchBytes && to > from {
					break
				}
				to++
			}
			if !yield(keys[from:to]) {
				return
			}
			from = to
		}
	}
}

// caller sends requests: a Client or a Remote.
type caller interface {
	call(ctx context.Context, q request) error
}

func keysMessage(op wire.Op, keys []string) func(wire.Writer) wire.Writer {
	return func(b wire.Writer) wire.Writer {
		b = b.U8(uint8(op))
		for _, k := range keys {
			b = b.String(k)
		}
		return b
	}
}

func checkKeys(op string, keys []string) error {
	for _, k := range keys {
		if err := checkKey(k); err != nil {
			return &OpError{Op: op, Key: k[:min(len(k), 64)], Err: err}
		}
	}
	return nil
}

func existsAll(ctx context.Context, c caller, keys []string) ([]bool, error) {
	if err := checkKeys("look for", keys); err != nil {
		return nil, err
	}
	found := make([]bool, 0, len(keys))
	for part := range batches(keys) {
		err := c.call(ctx, request{op: "look for", key: first(part), again: true, short: len(part) <= postBatch, build: keysMessage(wire.Exists, part),
			parse: func(r *wire.Reader, _ []*os.File, _ bool) error {
				for range part {
					found = append(found, r.U8() != 0)
				}
				return r.Err()
			}})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

func statusAll(ctx context.Context, c caller, op string, code wire.Op, keys []string, again bool) ([]error, error) {
	if err := checkKeys(op, keys); err != nil {
		return nil, err
	}
	errs := make([]error, 0, len(keys))
	for part := range batches(keys) {
		err := c.call(ctx, request{op: op, key: first(part), again: again, short: len(part) <= postBatch, build: keysMessage(code, part),
			parse: func(r *wire.Reader, _ []*os.File, repeated bool) error {
				for range part {
					s := wire.Status(r.U8())
					if repeated && s == wire.NotFound {
						s = wire.OK // the first try has done it
					}
					errs = append(errs, errOf(s))
				}
				return r.Err()
			}})
		if err != nil {
			return nil, err
		}
	}
	return errs, nil
}

func pinAll(ctx context.Context, c caller, keys []string) (int, error) {
	if err := checkKeys("pin", keys); err != nil {
		return 0, err
	}
	total := 0
	for part := range batches(keys) {
		n := 0
		err := c.call(ctx, request{op: "pin", key: first(part), short: len(part) <= postBatch, build: keysMessage(wire.Pin, part),
			parse: func(r *wire.Reader, _ []*os.File, _ bool) error {
				n = int(r.U32())
				if err := r.Err(); err != nil || n > len(part) {
					return fmt.Errorf("%w: the daemon's answer cannot be read", ErrInvalid)
				}
				return nil
			}})
		total += n
		if err != nil || n < len(part) {
			return total, err
		}
	}
	return total, nil
}

// first names a batch of one in errors.
func first(keys []string) string {
	if len(keys) == 1 {
		return keys[0]
	}
	return ""
}
