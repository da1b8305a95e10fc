package server

import (
	"fmt"
	"slices"

	"polder/internal/failpoint"
	"polder/share/internal/shm"
	"polder/share/internal/wire"
	"polder/share/meta"
	"polder/share/resource"
)

// localOnly are the operations that a remote client cannot ask for: they are
// about memory of this host.
const localOnly = 1<<wire.Alloc | 1<<wire.Release | 1<<wire.Put | 1<<wire.Map | 1<<wire.Unmap |
	1<<wire.Unref | 1<<wire.Evict | 1<<wire.Watch | 1<<wire.Kick

// holding are the operations by which a session comes to hold something.
const holding = 1<<wire.Alloc | 1<<wire.Put | 1<<wire.Lookup | 1<<wire.Pin | 1<<wire.Map

// handle does what a message asks for. The reply is in c.out and c.files,
// unless there is an error, and may be sent when c.need is committed.
func (c *conn) handle(msg []byte) error {
	c.in.Reset(msg)
	c.need = need{}
	c.out = c.out[:0].U8(uint8(wire.OK))
	op := wire.Op(c.in.U8())
	if op > wire.LastOp || c.ss.door != local && localOnly&(1<<op) != 0 {
		return fmt.Errorf("%w: %v cannot be asked for here", errInvalid, op)
	}
	c.s.stats.requests[op].Add(1)
	if holding&(1<<op) != 0 && !c.logged {
		if err := c.s.logSession(c.ss, ""); err != nil {
			return err
		}
		c.logged = true
	}
	switch op {
	case wire.Alloc:
		return c.alloc()
	case wire.Release:
		return c.release()
	case wire.Put:
		return c.put()
	case wire.Lookup:
		return c.lookup()
	case wire.Exists:
		return c.exists()
	case wire.Delete:
		return c.delete()
	case wire.Pin:
		return c.pin()
	case wire.Unpin:
		return c.unpin()
	case wire.Map:
		return c.mapRegion()
	case wire.Unmap:
		return c.unmap()
	case wire.Unref:
		return c.unref()
	case wire.Evict:
		return c.evict()
	case wire.Stats:
		return c.info()
	case wire.List:
		return c.list()
	case wire.Watch:
		return c.watch()
	case wire.Bye:
		return c.goodbye()
	case wire.Kick:
		return c.kick()
	}
	return fmt.Errorf("%w: there is no %v", errInvalid, op)
}

// live fails if the session has ended while its connection has not.
//
// Preconditions: s.mu is held.
func (c *conn) live() error {
	if c.ss.ended {
		return fmt.Errorf("%w: the session has ended", errMissing)
	}
	return nil
}

// id takes a number, which is all of the message.
func (c *conn) id() (uint64, error) {
	id := c.in.U64()
	return id, c.in.Err()
}

// scan checks the keys that are the rest of the message and returns how many
// there are, before anything is done with the first.
func (c *conn) scan() (int, error) {
	in := c.in
	n := 0
	for ; in.More(); n++ {
		if err := checkKey(in.Bytes(), n); err != nil {
			return 0, err
		}
	}
	return n, in.Err()
}

// keys calls f with each key of the rest of the message, under s.mu.
//
// Preconditions: scan has found no fault.
func (c *conn) keys(f func(key []byte) error) error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if err := c.live(); err != nil {
		return err
	}
	for c.in.More() {
		if err := f(c.in.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

func checkKey(key []byte, n int) error {
	switch {
	case len(key) == 0 || len(key) > wire.MaxKey:
		return fmt.Errorf("%w: a key of %d bytes, want 1 to %d", errInvalid, len(key), wire.MaxKey)
	case n >= wire.MaxBatch:
		return fmt.Errorf("%w: more than %d keys", errInvalid, wire.MaxBatch)
	}
	return nil
}

// get returns the entry of a key that has not expired at now.
func (s *Server) get(key []byte, now int64) *meta.Entry {
	e := s.idx.Get(key)
	if e == nil || e.Expires != 0 && e.Expires <= now {
		return nil
	}
	return e
}

// need is the record that must be durable before a reply may be sent.
type need struct {
	lsn  uint64 // 0 if there is none
	sync bool   // it must be on the medium
}

func (n *need) add(e *meta.Entry) {
	if e.LSN > n.lsn {
		n.lsn = e.LSN
	}
	n.sync = n.sync || e.Durable
}

// commitNeed waits for what a reply rests on. It costs nothing once that is
// durable.
func (s *Server) commitNeed(n need) error {
	if n.lsn == 0 {
		return nil
	}
	return s.commit(n.lsn, n.sync)
}

// lookup is the hot path of a get that no client's cache answers.
func (c *conn) lookup() error {
	s := c.s
	flags := c.in.U8()
	count, err := c.scan()
	if err != nil {
		return err
	}
	ref := flags&wire.LookupRef != 0
	now := s.opt.Now().UnixMilli()
	var n need
	var handles []*resource.Region
	hits := uint64(0)
	err = c.keys(func(key []byte) error {
		if ref && s.pages.Refs(c.ss.id)+count > wire.MaxRefs {
			return fmt.Errorf("%w: the client has %d views open", errInvalid, s.pages.Refs(c.ss.id))
		}
		e := s.get(key, now)
		if e == nil {
			c.out = c.out.AppendLocation(wire.Location{})
			return nil
		}
		count-- // what Refs counts now
		hits++
		n.add(e)
		if s.opt.LRU {
			s.idx.Touch(e)
		}
		if ref && !e.Maru() {
			s.pages.Ref(e.Page, c.ss.id)
		}
		c.out = c.out.AppendLocation(s.locate(e))
		if !c.ss.issued[e.Region] || flags&wire.LookupHandles != 0 {
			c.ss.issued[e.Region] = true
			if r := s.res.Region(e.Region); !slices.Contains(handles, r) {
				handles = append(handles, r)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.stats.lookups.Add(1)
	s.stats.hits.Add(hits)
	for _, r := range handles {
		c.out = s.sign(r, c.ss, resource.Read).Append(c.out)
	}
	c.need = n
	return nil
}

// locate says where an entry lies.
//
// Preconditions: s.mu is held.
func (s *Server) locate(e *meta.Entry) wire.Location {
	l := wire.Location{
		Found: true, Region: e.Region, Offset: uint64(e.Offset), Length: uint64(e.Length), Page: e.Page, Expires: e.Expires,
	}
	if e.Maru() {
		l.Maru, l.Word = true, e.LSN // which tells this registration of the key from another
	} else {
		l.Word = uint64(s.pages.Word(e.Page))
	}
	return l
}

// sign issues a handle.
func (s *Server) sign(r *resource.Region, ss *session, rights resource.Rights) resource.Handle {
	return s.secret.Sign(resource.Handle{Region: r.ID, Holder: ss.id, Length: uint64(r.Length), Rights: rights})
}

func (c *conn) exists() error {
	s := c.s
	if _, err := c.scan(); err != nil {
		return err
	}
	now := s.opt.Now().UnixMilli()
	var n need
	if err := c.keys(func(key []byte) error {
		e := s.get(key, now)
		if e != nil {
			n.add(e)
		}
		c.out = c.out.U8(flag(e != nil))
		return nil
	}); err != nil {
		return err
	}
	c.need = n
	return nil
}

// put registers keys in pages that the owner has filled.
func (c *conn) put() error {
	region := c.in.U64()
	lsn, sync, err := c.register(region)
	if err != nil {
		return err
	}
	failpoint.Hit("daemon.put-applied")
	c.need = need{lsn, sync}
	return nil
}

type registration struct {
	page    uint32
	length  int64
	expires int64
	key     []byte
}

// register checks, logs and applies the registrations of a message, and writes
// one status for each.
func (c *conn) register(region uint64) (lsn uint64, sync bool, err error) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := c.live(); err != nil {
		return 0, false, err
	}
	r := s.res.Region(region)
	switch {
	case r == nil:
		return 0, false, fmt.Errorf("%w: region %d", errMissing, region)
	case r.Owner != c.ss.id:
		s.stats.denied.Add(1)
		return 0, false, fmt.Errorf("%w: region %d belongs to another client", errDenied, region)
	}
	var one [1]registration // the usual case does not allocate
	regs := one[:0]
	now := s.opt.Now().UnixMilli()
	var old need
	for n := 0; c.in.More(); n++ {
		reg := registration{page: c.in.U32(), length: int64(c.in.U64())}
		ttl := int64(c.in.U64())
		reg.key = c.in.Bytes()
		if err := checkKey(reg.key, n); err != nil {
			return 0, false, err
		}
		if int64(reg.page) >= int64(r.Pages()) || reg.length < 0 || reg.length > r.PageSize || ttl < 0 || ttl > 1<<52 {
			return 0, false, fmt.Errorf("%w: %d bytes in page %d of region %d, which has %d pages of %d bytes",
				errInvalid, reg.length, reg.page, region, r.Pages(), r.PageSize)
		}
		if ttl > 0 {
			reg.expires = now + ttl
		}
		switch e := s.idx.Get(reg.key); {
		case e != nil && e.Page == r.Base+reg.page:
			// The same again, because the answer to it was lost.
			old.add(e)
			c.out = c.out.U8(uint8(wire.OK))
			continue
		case e != nil && (e.Expires == 0 || e.Expires > now):
			old.add(e)
			s.stats.existed.Add(1)
			c.out = c.out.U8(uint8(wire.Existed))
			continue
		case e != nil:
			if _, err := s.remove(e); err != nil {
				return 0, false, err
			}
			s.stats.expired.Add(1)
		case slices.ContainsFunc(regs, func(o registration) bool { return string(o.key) == string(reg.key) }):
			c.out = c.out.U8(uint8(wire.Existed))
			continue
		}
		if s.pages.Claim(r.Base + reg.page) {
			r.Refs-- // a sweep would have
		}
		if s.pageState(r.Base+reg.page) == shm.Dying {
			// Put before, deleted since, and put again because the answer was
			// lost: it must not be filled anew yet.
			c.out = c.out.U8(uint8(wire.Gone))
			continue
		}
		if !s.pages.IsFree(r.Base+reg.page) || slices.ContainsFunc(regs, func(o registration) bool { return o.page == reg.page }) {
			return 0, false, fmt.Errorf("%w: page %d of region %d is in use", errInvalid, reg.page, region)
		}
		regs = append(regs, reg)
		c.out = c.out.U8(uint8(wire.OK))
	}
	if err := c.in.Err(); err != nil {
		return 0, false, err
	}
	if len(regs) == 0 {
		return old.lsn, old.sync, nil
	}
	if r.State == resource.Allocated { // an owner that has filled a page has mapped the region
		if _, err := s.activate(r); err != nil {
			return 0, false, err
		}
	}
	rec := encodePutHead(s.rec[:0], region)
	for _, reg := range regs {
		rec = encodePut(rec, reg.page, reg.length, reg.expires, reg.key)
	}
	failpoint.Hit("daemon.put-checked")
	if lsn, err = s.append(rec); err != nil {
		return 0, false, err
	}
	for _, reg := range regs {
		e := s.newEntry(r, reg.page, reg.length, reg.expires, string(reg.key))
		e.LSN = lsn
		s.idx.Put(e)
		s.pages.Live(e.Page)
		r.Refs++
	}
	s.stats.puts.Add(uint64(len(regs)))
	return lsn, s.durable(r), nil
}

// remove logs and applies that an entry is gone.
//
// Preconditions: s.mu is held.
func (s *Server) remove(e *meta.Entry) (need, error) {
	lsn, err := s.append(s.rec[:0].U8(recDelete).String(e.Key))
	if err != nil {
		return need{}, err
	}
	s.applyRemove(e, lsn)
	return need{lsn, e.Durable}, nil
}

// applyRemove takes an entry away, by the record lsn. Its page is dying.
//
// Preconditions: s.mu is held.
func (s *Server) applyRemove(e *meta.Entry, lsn uint64) {
	s.idx.Delete(e)
	if e.Maru() { // its owner fills the place again when it has been told
		s.pageFreed(e.Region)
	} else {
		s.pages.Dying(e.Page, e.Region, lsn, e.Durable)
	}
	s.pending.Store(true)
}

func (c *conn) delete() error {
	s := c.s
	if _, err := c.scan(); err != nil {
		return err
	}
	now := s.opt.Now().UnixMilli()
	var n need
	if err := c.keys(func(key []byte) error {
		e := s.get(key, now)
		switch {
		case e == nil:
			c.out = c.out.U8(uint8(wire.NotFound))
			return nil
		case e.Pinned():
			c.out = c.out.U8(uint8(wire.Pinned))
			return nil
		}
		gone, err := s.remove(e)
		if err != nil {
			return err
		}
		n.lsn, n.sync = gone.lsn, n.sync || gone.sync
		s.stats.deletes.Add(1)
		c.out = c.out.U8(uint8(wire.OK))
		return nil
	}); err != nil {
		return err
	}
	c.need = n
	return nil
}

// pin pins the longest prefix of the keys that exists.
func (c *conn) pin() error {
	s := c.s
	if _, err := c.scan(); err != nil {
		return err
	}
	now := s.opt.Now().UnixMilli()
	var n need
	var found []*meta.Entry
	missing := false
	err := c.keys(func(key []byte) error {
		e := s.get(key, now)
		if missing = missing || e == nil; !missing {
			found = append(found, e)
		}
		if c.in.More() || len(found) == 0 {
			return nil
		}
		rec := s.rec[:0].U8(recPin).U64(c.ss.id)
		for _, e := range found {
			n.add(e)
			rec = rec.String(e.Key)
		}
		lsn, err := s.append(rec)
		if err != nil {
			return err
		}
		n.lsn = lsn
		for _, e := range found {
			s.idx.Pin(e, c.ss.id, 1)
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.out = c.out.U32(uint32(len(found)))
	c.need = n
	return nil
}

func (c *conn) unpin() error {
	s := c.s
	if _, err := c.scan(); err != nil {
		return err
	}
	var n need
	if err := c.keys(func(key []byte) error {
		e := s.idx.Get(key)
		if e == nil || e.PinsOf(c.ss.id) == 0 {
			c.out = c.out.U8(uint8(wire.NotFound))
			return nil
		}
		lsn, err := s.append(s.rec[:0].U8(recUnpin).U64(c.ss.id).String(e.Key))
		if err != nil {
			return err
		}
		s.idx.Unpin(e, c.ss.id)
		n.lsn, n.sync = lsn, n.sync || e.Durable
		c.out = c.out.U8(uint8(wire.OK))
		return nil
	}); err != nil {
		return err
	}
	c.need = n
	return nil
}

// unref closes views that were opened with a reference.
func (c *conn) unref() error {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for c.in.More() {
		page := c.in.U32()
		if !s.pages.Unref(page, c.ss.id) {
			return fmt.Errorf("%w: the client has no reference to page %d", errMissing, page)
		}
		if s.pageState(page) == shm.Dying {
			s.pages.Retry(page)
			s.pending.Store(true)
		}
	}
	return c.in.Err()
}
