package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"polder/internal/arena"
	"polder/internal/failpoint"
	"polder/share/internal/shm"
	"polder/share/internal/wire"

	"golang.org/x/sys/unix"
)

// region is memory that the client owns.
type region struct {
	id       uint64
	base     uint32 // number of its first page in the table
	pageSize int
	handle   []byte
	durable  bool // bytes must be flushed before they are registered
	mem      *arena.Mapping

	state []atomic.Uint32 // of each page
	free  []uint32        // indices of pages with state pageFree; guarded by Client.mu
	lost  bool            // the daemon does not know it any more; guarded by Client.mu

	recalled atomic.Bool // the daemon wants it back; it is not in Client.owned then
	returned bool        // the daemon has been given it back; guarded by Client.mu
}

// What the owner knows of a page.
const (
	pageFree    = iota // on the region's free list
	pageFilling        // with the caller
	pagePut            // holds a key, or has held one: its word in the table tells
)

// Page is memory to fill and put under a key. It is a value; copies of it are
// the same page.
type Page struct {
	c *Client
	r *region
	i uint32
}

// Bytes returns the page's memory, Client.PageSize bytes, which hold anything.
// It must not be touched after Put or Free.
func (p Page) Bytes() []byte {
	at := int(p.i) * p.r.pageSize
	return p.r.mem.Bytes()[at : at+p.r.pageSize : at+p.r.pageSize]
}

// Free gives the page back unused.
func (p Page) Free() error {
	if p.r == nil || !p.r.state[p.i].CompareAndSwap(pageFilling, pageFree) {
		return &OpError{Op: "free", Err: ErrPage}
	}
	p.c.mu.Lock()
	p.r.free = append(p.r.free, p.i)
	p.c.filled = false
	p.c.mu.Unlock()
	p.c.giveBack(p.r)
	return nil
}

// regionRecalled stops allocating from a region that the daemon wants back.
func (c *Client) regionRecalled(id uint64) {
	c.mu.Lock()
	i := slices.IndexFunc(c.owned, func(r *region) bool { return r.id == id })
	if i < 0 || c.torn {
		c.mu.Unlock()
		return
	}
	r := c.owned[i]
	c.owned = slices.Delete(c.owned, i, i+1)
	r.recalled.Store(true)
	c.mu.Unlock()
	c.giveBack(r)
}

// giveBack returns a region that was recalled, once no page of it is being
// filled.
func (c *Client) giveBack(r *region) {
	if !r.recalled.Load() { // fast path
		return
	}
	c.mu.Lock()
	for i := range r.state {
		if r.state[i].Load() == pageFilling {
			c.mu.Unlock()
			return
		}
	}
	mine := !r.returned && !c.closed
	r.returned = true
	c.mu.Unlock()
	if !mine {
		return // somebody else does it, or the end of the session
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.Patience)
	defer cancel()
	// If it fails, the region is the session's until that ends.
	_ = c.release(ctx, r.handle)
	r.mem.Close()
}

// Alloc returns a page to fill: of the active region, else of another one that
// has a free page, which becomes the active one, else of a new region. If the
// pool is full and the daemon evicts, the client's keys that were not used for
// longest make room. Alloc allocates no Go memory unless it expands.
func (c *Client) Alloc(ctx context.Context) (Page, error) {
	if p, ok, err := c.freePage(); ok || err != nil {
		return p, err
	}
	return c.expand(ctx)
}

// freePage takes a page of a region that the client has.
func (c *Client) freePage() (Page, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return Page{}, false, &OpError{Op: "allocate", Err: ErrClosed}
	}
	if len(c.owned) > 0 { // fast path: the active region
		if p, ok := c.pop(c.owned[0]); ok {
			return p, true, nil
		}
	}
	for range 2 {
		for i := 0; i < len(c.owned) && !c.filled; i++ {
			if p, ok := c.pop(c.owned[i]); ok {
				c.owned[0], c.owned[i] = c.owned[i], c.owned[0]
				return p, true, nil
			}
		}
		c.filled = true
		if !c.collect() {
			break
		}
	}
	return Page{}, false, nil
}

// pop takes a page off a region's free list.
//
// Preconditions: c.mu is held.
func (c *Client) pop(r *region) (Page, bool) {
	n := len(r.free)
	if n == 0 || r.lost {
		return Page{}, false
	}
	i := r.free[n-1]
	r.free = r.free[:n-1]
	r.state[i].Store(pageFilling)
	return Page{c, r, i}, true
}

// collect puts pages whose keys are gone, and that nobody looks at any more, on their regions' free lists. It reports
// whether pages were freed since the last time, so that there may be some.
//
// Preconditions: c.mu is held.
func (c *Client) collect() bool {
	t := c.table.Load()
	if t == nil {
		return false // the daemon restarts
	}
	freed := t.Freed()
	if freed == c.freed {
		return false
	}
	c.freed = freed // what is freed from here on is found the next time
	for _, r := range c.owned {
		for i := range r.state {
			if r.state[i].Load() == pagePut && t.Load(r.base+uint32(i)).State() == shm.Free {
				r.state[i].Store(pageFree)
				r.free = append(r.free, uint32(i))
				c.filled = false
			}
		}
	}
	return true
}

// expand asks the daemon for a region, or to evict.
func (c *Client) expand(ctx context.Context) (Page, error) {
	c.expanding.Lock()
	defer c.expanding.Unlock()
	for {
		// Another caller may have expanded meanwhile.
		if p, ok, err := c.freePage(); ok || err != nil {
			return p, err
		}
		err := c.addRegion(ctx)
		if err == nil {
			continue
		}
		if (errors.Is(err, ErrFull) || errors.Is(err, ErrQuota)) && c.lru.Load() {
			if n, eerr := c.evict(ctx); eerr == nil && n > 0 {
				continue
			}
		}
		return Page{}, err
	}
}

// addRegion asks for a region, maps and populates it, and makes it active.
func (c *Client) addRegion(ctx context.Context) error {
	r := &region{pageSize: c.cfg.PageSize}
	err := c.call(ctx, request{
		op: "allocate", again: true, fds: true,
		build: func(b wire.Writer) wire.Writer {
			return b.U8(uint8(wire.Alloc)).U64(uint64(c.cfg.RegionSize)).U64(uint64(c.cfg.PageSize)).String(c.cfg.Pool)
		},
		parse: func(in *wire.Reader, files []*os.File, _ bool) error { return c.mapOwned(r, in, files) },
	})
	if err != nil && r.mem == nil && r.handle != nil {
		// It was carved, and cannot be mapped: no huge pages are left, maybe.
		return errors.Join(err, c.release(ctx, r.handle))
	}
	if err != nil {
		return err
	}
	failpoint.Hit("client.region-mapped")
	// The daemon activates the region when the first key is registered in it.
	if err := populate(r.mem.Bytes()); err != nil {
		r.mem.Close()
		return errors.Join(err, c.release(ctx, r.handle))
	}
	failpoint.Hit("client.region-populated")
	for i := range r.state {
		r.free = append(r.free, uint32(len(r.state)-1-i)) // the lowest is taken first
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.torn {
		r.mem.Close()
		return &OpError{Op: "allocate", Err: ErrClosed}
	}
	c.owned = append(c.owned, r)
	last := len(c.owned) - 1
	c.owned[0], c.owned[last] = c.owned[last], c.owned[0]
	return nil
}

// mapOwned reads the answer to an allocation and maps the region.
func (c *Client) mapOwned(r *region, in *wire.Reader, files []*os.File) error {
	r.id = in.U64()
	length, pageSize := in.U64(), in.U64()
	r.base = in.U32()
	offset := in.U64()
	r.durable = in.U8() != 0
	r.handle = append([]byte(nil), in.Rest()...)
	if len(files) != 1 || pageSize != uint64(r.pageSize) {
		return fmt.Errorf("%w: the daemon's answer cannot be read", ErrInvalid)
	}
	mem, err := arena.MapFile(files[0], int64(offset), int(length), true)
	if errors.Is(err, unix.ENOMEM) {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	if err != nil {
		return err
	}
	r.mem = mem
	r.state = make([]atomic.Uint32, length/pageSize)
	return nil
}

// populate makes the kernel allocate all pages now, so that filling one does
// not fault.
func populate(mem []byte) error {
	err := unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
	switch {
	case err == nil, errors.Is(err, unix.EINVAL): // before Linux 5.14: faults, then
		return nil
	case errors.Is(err, unix.EFAULT), errors.Is(err, unix.ENOMEM):
		return &OpError{Op: "populate a region", Err: fmt.Errorf("%w: %w", ErrFull, err)}
	}
	return &OpError{Op: "populate a region", Err: err}
}

// release returns a region.
func (c *Client) release(ctx context.Context, handle []byte) error {
	return c.call(ctx, request{op: "release", again: true, build: func(b wire.Writer) wire.Writer {
		return b.U8(uint8(wire.Release)).Raw(handle)
	}})
}

// A client that needs room evicts the keys of one in evictOneOf of its pages at a time, but of at least evictAtLeast
// and at most evictAtMost: a message for each key would cost more than evicting some keys too early.
const (
	evictOneOf   = 512
	evictAtLeast = 8
	evictAtMost  = 32
)

func (c *Client) evict(ctx context.Context) (int, error) {
	pages := 0
	c.mu.Lock()
	for _, r := range c.owned {
		pages += len(r.state)
	}
	c.mu.Unlock()
	want := min(max(pages/evictOneOf, evictAtLeast), evictAtMost)
	n := 0
	err := c.call(ctx, request{
		op: "evict",
		build: func(b wire.Writer) wire.Writer {
			return b.U8(uint8(wire.Evict)).U32(uint32(want))
		},
		parse: func(r *wire.Reader, _ []*os.File, _ bool) error {
			n = int(r.U32())
			return r.Err()
		},
	})
	return n, err
}

// keepOwned forgets the regions that the daemon does not know any more: it
// has restarted, and their memory was not kept.
//
// Preconditions: c.mu is held.
func (c *Client) keepOwned(known map[uint64]bool) {
	kept := c.owned[:0]
	for _, r := range c.owned {
		if known[r.id] {
			kept = append(kept, r)
		} else {
			r.lost = true // its mapping stays, as a caller may be filling a page
		}
	}
	c.owned = kept
}

// PutOptions tune a Put.
type PutOptions struct {
	// TTL is how long the key lives, if not zero.
	TTL time.Duration
}

// Put registers the first n bytes of a page under key. From then on the page
// is not the caller's any more, unless there is an error. If the key is there
// already, its first writer has won: stored is false, and the page is free
// again.
func (c *Client) Put(ctx context.Context, key string, p Page, n int) (stored bool, err error) {
	return c.PutWith(ctx, key, p, n, PutOptions{})
}

// PutWith is Put with options.
func (c *Client) PutWith(ctx context.Context, key string, p Page, n int, opt PutOptions) (stored bool, err error) {
	items := [1]Item{{Key: key, Page: p, Len: n, TTL: opt.TTL}}
	var result [1]bool
	if err := c.putRegion(ctx, p.r, items[:], result[:]); err != nil {
		var op *OpError
		if errors.As(err, &op) {
			op.Key = key
		}
		return false, err
	}
	return result[0], nil
}

// Item is one registration of a batch.
type Item struct {
	Key  string
	Page Page
	Len  int           // bytes of the page that are the blob
	TTL  time.Duration // 0 for ever
}

// check says why an item cannot be put, or nil.
func (c *Client) check(it Item) error {
	switch {
	case it.Page.c != c || it.Page.r.state[it.Page.i].Load() != pageFilling:
		return ErrPage
	case it.Len < 0 || it.Len > it.Page.r.pageSize:
		return fmt.Errorf("%w: %d bytes in a page of %d", ErrInvalid, it.Len, it.Page.r.pageSize)
	case it.TTL < 0:
		return fmt.Errorf("%w: it would expire %v ago", ErrInvalid, -it.TTL)
	}
	return checkKey(it.Key)
}

func checkKey(key string) error {
	if len(key) == 0 || len(key) > wire.MaxKey {
		return fmt.Errorf("%w: a key of %d bytes, want 1 to %d", ErrInvalid, len(key), wire.MaxKey)
	}
	return nil
}

// putRegion registers items whose pages are all of region r, in one message.
func (c *Client) putRegion(ctx context.Context, r *region, items []Item, stored []bool) error {
	for _, it := range items {
		if err := c.check(it); err != nil {
			return &OpError{Op: "put", Key: it.Key, Err: err}
		}
	}
	if r.durable {
		for _, it := range items {
			if err := flush(it); err != nil {
				return &OpError{Op: "put", Key: it.Key, Err: err}
			}
		}
	}
	failpoint.Hit("client.page-filled")
	gone := false
	err := c.call(ctx, request{
		op: "put", again: true, short: !r.durable && len(items) <= postBatch,
		build: func(b wire.Writer) wire.Writer {
			b = b.U8(uint8(wire.Put)).U64(r.id)
			for _, it := range items {
				ttl := (it.TTL + time.Millisecond - 1) / time.Millisecond
				b = b.U32(it.Page.i).U64(uint64(it.Len)).U64(uint64(ttl)).String(it.Key)
			}
			return b
		},
		parse: func(in *wire.Reader, _ []*os.File, repeated bool) error {
			for i := range items {
				// What the first try has stored may be deleted by now.
				s := wire.Status(in.U8())
				stored[i] = s == wire.OK || s == wire.Gone && repeated
				gone = gone || s == wire.Gone && !repeated
			}
			return in.Err()
		},
	})
	if err != nil {
		if errors.Is(err, ErrNotFound) {
			c.loseRegion(r)
		}
		return err
	}
	failpoint.Hit("client.put-answered")
	if gone {
		return &OpError{Op: "put", Err: fmt.Errorf("%w: the daemon says that it is not free", ErrPage)}
	}
	for i, it := range items {
		if stored[i] {
			it.Page.r.state[it.Page.i].Store(pagePut)
		} else if err := it.Page.Free(); err != nil {
			return err
		}
	}
	c.giveBack(r)
	return nil
}

// loseRegion forgets a region that the daemon does not know.
func (c *Client) loseRegion(lost *region) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, r := range c.owned {
		if r == lost {
			r.lost = true
			c.owned = append(c.owned[:i], c.owned[i+1:]...)
			return
		}
	}
}

// flush makes the bytes of an item durable before its key is.
func flush(it Item) error {
	mem := it.Page.r.mem.Bytes()
	from := int(it.Page.i) * it.Page.r.pageSize
	to := min(len(mem), (from+it.Len+arena.PageSize-1)&^(arena.PageSize-1))
	from &^= arena.PageSize - 1
	if err := unix.Msync(mem[from:to], unix.MS_SYNC); err != nil {
		return fmt.Errorf("cannot flush the page: %w", err)
	}
	return nil
}
