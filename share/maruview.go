package share

import (
	"bytes"
	"context"
	"errors"

	"polder/share/internal/wire"
)

// copyTries is how often copyOf tries to copy a key that is registered anew meanwhile.
const copyTries = 16

// copyOf returns a view of a copy of a key that a client of Maru's has registered.
//
// Maru's clients map their regions writable, and use a page again when its key has
// been deleted: nothing tells them that somebody looks. So the bytes are copied,
// and then the daemon is asked again: if the key is still that of the same
// registration, what was copied is what was registered, unless one of Maru's
// clients has broken Maru's own rule, not to write to what is registered. The
// copy is nobody else's, and stays as it is.
func (c *Client) copyOf(ctx context.Context, key string, loc wire.Location) (View, error) {
	keep := func(_ int, l wire.Location) { loc = l }
	for range copyTries {
		data, err := c.copyBytes(ctx, loc)
		flags := uint8(0)
		switch {
		case isNotFound(err):
			flags = wire.LookupHandles // the handle is missing, or the region is freed
		case err != nil:
			return View{}, err
		}
		was := loc
		if err := c.lookup(ctx, flags, []string{key}, keep); err != nil {
			return View{}, err
		}
		switch {
		case !loc.Found:
			return View{}, &OpError{Op: "get", Key: key, Err: ErrNotFound}
		case !loc.Maru:
			return c.find(ctx, key) // it is a native client's now
		case err == nil && loc == was:
			return View{c: c, data: data}, nil
		}
	}
	return View{}, &OpError{Op: "get", Key: key, Err: errors.New("it is registered anew again and again")}
}

// copyBytes copies what lies at a place.
func (c *Client) copyBytes(ctx context.Context, loc wire.Location) ([]byte, error) {
	p, err := c.place(ctx, loc)
	if err != nil {
		return nil, err
	}
	if !p.m.take() {
		return nil, &OpError{Op: "map a region", Err: ErrNotFound}
	}
	defer p.m.drop()
	return bytes.Clone(p.bytes()), nil
}
