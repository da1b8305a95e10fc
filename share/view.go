package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"polder/internal/arena"
	"polder/internal/failpoint"
	"polder/share/internal/shm"
	"polder/share/internal/wire"
	"polder/share/resource"
)

// mapping is a region mapped read-only.
type mapping struct {
	region uint64
	mine   bool // the client owns the region, too
	mem    *arena.Mapping
	tell   func() // not nil if the daemon waits for the memory to be unmapped

	// refs counts the views and the entry in Client.maps. At zero the memory
	// is unmapped.
	refs atomic.Int64
}

// take counts one more user in; false if the mapping is gone.
func (m *mapping) take() bool {
	for {
		n := m.refs.Load()
		if n == 0 {
			return false
		}
		if m.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// drop counts a user out.
func (m *mapping) drop() {
	if m.refs.Add(-1) == 0 {
		m.mem.Close()
		if m.tell != nil {
			m.tell()
		}
	}
}

// View is the bytes of a key, where they are. It is a value; copies of it are
// the same view. The zero View is closed.
type View struct {
	c    *Client
	m    *mapping
	data []byte
	slot uint32 // of the lease
	seq  uint32 // how often the slot had been used before
	ref  *refView
}

// refView is a view that the daemon counts, as the lease was full.
type refView struct {
	page   uint32
	closed atomic.Bool
}

// Bytes returns the bytes, or a copy of them if a client of Maru's has put them.
// They must be neither written nor touched after Close.
func (v View) Bytes() []byte { return v.data }

// Ok reports whether there is something to view: in a batch, keys that were
// not found have a view that is not Ok.
func (v View) Ok() bool { return v.c != nil }

// Of reports whether the view was opened by c.
func (v View) Of(c *Client) bool { return v.c == c }

// Close ends the view. Closing twice, or a copy of it, is a no-op.
func (v View) Close() error {
	switch {
	case v.c == nil, v.m == nil && v.ref == nil: // a copy
		return nil
	case v.ref != nil:
		return v.closeRef()
	case !v.c.seqs[v.slot].CompareAndSwap(v.seq, v.seq+1):
		return nil
	}
	v.c.lease.Drop(v.slot)
	v.m.drop()
	if v.c.leaving.Load() {
		return v.c.tearDown()
	}
	runtime.KeepAlive(v.c)
	return nil
}

func (v View) closeRef() error {
	if !v.ref.closed.CompareAndSwap(false, true) {
		return nil
	}
	if v.m != nil {
		v.m.drop()
	}
	c := v.c
	c.mu.Lock()
	if c.refs[v.ref.page]--; c.refs[v.ref.page] == 0 {
		delete(c.refs, v.ref.page)
	}
	closed := c.closed
	c.mu.Unlock()
	var err error
	if !closed { // else the end of the session drops it
		err = c.call(context.Background(), request{
			op:    "close a view",
			short: true,
			build: func(b wire.Writer) wire.Writer { return b.U8(uint8(wire.Unref)).U32(v.ref.page) },
		})
		if errors.Is(err, ErrUncertain) || errors.Is(err, ErrNotFound) {
			err = nil // the daemon has restarted, and was not told of this view
		}
	}
	c.refViews.Add(-1)
	if c.leaving.Load() {
		return c.tearDown()
	}
	return err
}

// Get returns a view of a key's bytes, without copying them. It neither
// allocates nor sends a message if the client remembers where the key lies.
func (c *Client) Get(ctx context.Context, key string) (View, error) {
	if v, ok := c.remembered(key); ok { // fast path
		return v, nil
	}
	return c.find(ctx, key)
}

// remembered opens a view at the place that the cache remembers, if it is
// still the key's.
func (c *Client) remembered(key string) (View, bool) {
	p, ok := c.cache.get(c.seed, key)
	if !ok {
		return View{}, false
	}
	if p.expires != 0 && p.expires <= time.Now().UnixMilli() {
		c.cache.drop(c.seed, key)
		return View{}, false
	}
	v, ok := c.open(p)
	if !ok {
		c.cache.drop(c.seed, key)
		return View{}, false
	}
	if c.lru.Load() {
		c.lease.Touch(p.page)
	}
	return v, true
}

// open opens a view of a place by the lease: it first writes the page into the lease, and then makes sure that the
// page's word is still the same.
func (c *Client) open(p place) (View, bool) {
	if !p.m.take() {
		return View{}, false
	}
	slot, ok := c.lease.Hold(p.page)
	if !ok {
		p.m.drop()
		return View{}, false
	}
	// The table is loaded after the hold: see reattach.
	if t := c.table.Load(); t == nil || t.Load(p.page) != shm.Word(p.word) || c.leaving.Load() {
		c.lease.Drop(slot)
		p.m.drop()
		return View{}, false
	}
	failpoint.Hit("client.view-open")
	return View{
		c: c, m: p.m, data: p.bytes(),
		slot: slot, seq: c.seqs[slot].Load(),
	}, true
}

// find asks the daemon where a key lies, and opens a view.
func (c *Client) find(ctx context.Context, key string) (View, error) {
	if err := checkKey(key); err != nil {
		return View{}, &OpError{Op: "get", Key: key, Err: err}
	}
	var loc wire.Location
	keep := func(_ int, l wire.Location) { loc = l }
	if err := c.lookup(ctx, 0, []string{key}, keep); err != nil {
		return View{}, err
	}
	if !loc.Found {
		return View{}, &OpError{Op: "get", Key: key, Err: ErrNotFound}
	}
	if loc.Maru {
		return c.copyOf(ctx, key, loc)
	}
	p, err := c.place(ctx, loc)
	if err == nil {
		if v, ok := c.open(p); ok {
			c.cache.put(c.seed, key, p)
			return v, nil
		}
	}
	// The key has gone meanwhile, or all slots are taken: let the daemon count
	// a reference as it looks the key up.
	if err := c.lookup(ctx, wire.LookupRef|wire.LookupHandles, []string{key}, keep); err != nil {
		return View{}, err
	}
	if !loc.Found {
		return View{}, &OpError{Op: "get", Key: key, Err: ErrNotFound}
	}
	if loc.Maru {
		return c.copyOf(ctx, key, loc)
	}
	return c.openRef(ctx, key, loc)
}

// openRef opens a view that the daemon counts already.
func (c *Client) openRef(ctx context.Context, key string, loc wire.Location) (View, error) {
	c.mu.Lock()
	c.refs[loc.Page]++
	c.refViews.Add(1)
	c.mu.Unlock()
	v := View{c: c, ref: &refView{page: loc.Page}}
	p, err := c.place(ctx, loc)
	if err == nil && !p.m.take() {
		err = &OpError{Op: "get", Key: key, Err: ErrClosed} // a region referred to is unmapped by Close only
	}
	if err != nil {
		return View{}, errors.Join(err, v.closeRef())
	}
	v.m, v.data = p.m, p.bytes()
	return v, nil
}

// place finds the mapping of a location, and maps the region if need be.
func (c *Client) place(ctx context.Context, loc wire.Location) (place, error) {
	m, err := c.mapped(ctx, loc.Region)
	if err != nil {
		return place{}, err
	}
	if loc.Offset+loc.Length > uint64(len(m.mem.Bytes())) {
		return place{}, &OpError{Op: "map a region", Err: fmt.Errorf("%w: a key lies outside", ErrInvalid)}
	}
	return place{
		m: m, offset: int64(loc.Offset), length: int64(loc.Length),
		page: loc.Page, word: loc.Word, expires: loc.Expires,
	}, nil
}

// postKeys is for how many keys the places and the handles fit into an answer by mailbox.
const postKeys = 8

// lookup asks where keys lie and keeps the handles that come with the answer.
func (c *Client) lookup(ctx context.Context, flags uint8, keys []string, each func(i int, l wire.Location)) error {
	key := ""
	if len(keys) == 1 {
		key = keys[0]
	}
	return c.call(ctx, request{
		// Repeated, it may count a reference too many, which lasts as long as the session.
		op: "get", key: key, again: true, short: len(keys) <= postKeys,
		build: func(b wire.Writer) wire.Writer {
			b = b.U8(uint8(wire.Lookup)).U8(flags)
			for _, k := range keys {
				b = b.String(k)
			}
			return b
		},
		parse: func(r *wire.Reader, _ []*os.File, _ bool) error {
			for i := range keys {
				each(i, r.Location())
			}
			for r.More() {
				raw := r.Take(resource.HandleSize)
				if h, err := resource.ParseHandle(raw); err == nil {
					c.mu.Lock()
					c.handles[h.Region] = append([]byte(nil), raw...)
					c.mu.Unlock()
				}
			}
			return r.Err()
		},
	})
}

// mapped returns the mapping of a region, which it maps if need be. It fails if
// the region is freed, or its handle is not known and has to be asked for.
func (c *Client) mapped(ctx context.Context, id uint64) (*mapping, error) {
	c.mu.Lock()
	if m := c.maps[id]; m != nil {
		c.mu.Unlock()
		return m, nil
	}
	handle := c.handles[id]
	mine := false
	for _, r := range c.owned {
		mine = mine || r.id == id
	}
	c.mu.Unlock()
	if handle == nil {
		return nil, &OpError{Op: "map a region", Err: ErrNotFound}
	}
	m := &mapping{region: id, mine: mine}
	m.refs.Store(1)
	err := c.call(ctx, request{
		op: "map a region", again: true, fds: true,
		build: func(b wire.Writer) wire.Writer { return b.U8(uint8(wire.Map)).Raw(handle) },
		parse: func(r *wire.Reader, files []*os.File, _ bool) error {
			length, _, offset := r.U64(), r.U64(), r.U64()
			if shared := r.U8() != 0; shared {
				m.tell = func() { c.unmapped(id) }
			}
			if err := r.Err(); err != nil || len(files) != 1 {
				return fmt.Errorf("%w: the daemon's answer cannot be read", ErrInvalid)
			}
			mem, err := arena.MapFile(files[0], int64(offset), int(length), false)
			m.mem = mem
			return err
		},
	})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if other := c.maps[id]; other != nil { // another goroutine was faster
		m.mem.Close()
		return other, nil
	}
	if c.torn {
		m.mem.Close()
		return nil, &OpError{Op: "map a region", Err: ErrClosed}
	}
	c.maps[id] = m
	return m, nil
}

// regionFreed unmaps a region that the daemon has freed, as soon as no view is
// open in it.
func (c *Client) regionFreed(id uint64) {
	c.mu.Lock()
	m := c.maps[id]
	delete(c.maps, id)
	delete(c.handles, id)
	c.mu.Unlock()
	if m != nil {
		m.drop()
	}
}

// unmapped tells the daemon that the client does not map a region any more, whose memory the daemon could not hand to
// anybody else before.
func (c *Client) unmapped(id uint64) {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return // the end of the session tells
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.Patience)
	defer cancel()
	// If it fails, the memory comes back when the session ends.
	_ = c.call(ctx, request{op: "unmap a region", again: true, build: func(b wire.Writer) wire.Writer {
		return b.U8(uint8(wire.Unmap)).U64(id)
	}})
}
