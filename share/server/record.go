package server

import (
	"fmt"

	"polder/share/internal/wire"
	"polder/share/meta"
	"polder/share/resource"
)

// The kinds of records of the log. A checkpoint consists of the same records.
// Replaying them all repeats the daemon's state, as far as it outlives the
// daemon: not who maps or looks at what, which clients tell again.
const (
	recBoot       = iota + 1 // boot id: when another one follows, volatile memory is gone
	recNext                  // number of the next region
	recSession               // id token pid start uid kind tenant name
	recSessionEnd            // id: its pins are gone and its regions released
	recRegion                // id pool offset length page-size base owner tenant flags: active, Maru's
	recActive                // id: the owner has mapped it and it is sealed
	recReleased              // id: the owner has returned it
	recFreed                 // id: the extent is the pool's again
	recPut                   // region, n times page length expires key
	recDelete                // n times key
	recPin                   // session, n times key
	recUnpin                 // session, n times key
	recMaruPut               // region, n times offset length key
	recRetired               // region, whether its pages are not used again
	recNamespace             // what the pids of sessions from here on refer to
	recPins                  // session, how often, key: of a checkpoint
	recShrunk                // region, its new length
)

func encodeSession(b wire.Writer, s *session) wire.Writer {
	return b.U8(recSession).U64(s.id).Raw(s.token[:]).U32(uint32(s.pid)).U64(s.start).U32(uint32(s.uid)).
		U8(uint8(s.door)).String(s.tenant).String(s.name)
}

func encodeRegion(b wire.Writer, r *resource.Region) wire.Writer {
	return b.U8(recRegion).U64(r.ID).String(r.Pool).U64(uint64(r.Offset)).U64(uint64(r.Length)).U64(uint64(r.PageSize)).
		U32(r.Base).U64(r.Owner).String(r.Tenant).U8(flag(r.State != resource.Allocated) | 2*flag(r.Maru))
}

// encodeMaruPut encodes a recMaruPut record of one entry.
func encodeMaruPut(b wire.Writer, region uint64, offset, length int64, key string) wire.Writer {
	return b.U8(recMaruPut).U64(region).U64(uint64(offset)).U64(uint64(length)).String(key)
}

// encodePut encodes one entry of a recPut record, whose head is encodePutHead.
func encodePut(b wire.Writer, page uint32, length, expires int64, key []byte) wire.Writer {
	return b.U32(page).U64(uint64(length)).U64(uint64(expires)).U16(uint16(len(key))).Raw(key)
}

func encodePutHead(b wire.Writer, region uint64) wire.Writer {
	return b.U8(recPut).U64(region)
}

func flag(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// replay applies a record of the log while the daemon starts. An error means
// that the log, although its checksums are right, makes no sense.
func (s *Server) replay(rec []byte) error {
	r := wire.Read(rec)
	kind := r.U8()
	if err := s.replayRecord(kind, r); err != nil {
		return fmt.Errorf("record of kind %d: %w", kind, err)
	}
	if err := r.Err(); err != nil {
		return fmt.Errorf("record of kind %d: %w", kind, err)
	}
	s.replayed++
	return nil
}

func (s *Server) replayRecord(kind uint8, r *wire.Reader) error {
	switch kind {
	case recBoot:
		s.bootID = string(r.Bytes())
	case recNext:
		s.res.SetNext(r.U64())
	case recSession:
		ss := &session{id: r.U64()}
		copy(ss.token[:], r.Take(len(ss.token)))
		ss.pid, ss.start, ss.uid = int(r.U32()), r.U64(), int(r.U32())
		ss.door = door(r.U8())
		ss.tenant, ss.name = string(r.Bytes()), string(r.Bytes())
		ss.elsewhere = ss.pid == 0 && ss.door == local
		ss.logged, ss.recovered = true, true
		s.addSession(ss)
	case recSessionEnd:
		id := r.U64()
		if s.sessions[id] == nil {
			return fmt.Errorf("session %d does not exist", id)
		}
		s.applySessionEnd(id)
	case recRegion:
		reg := &resource.Region{ID: r.U64(), Pool: string(r.Bytes()), Offset: int64(r.U64()), Length: int64(r.U64()),
			PageSize: int64(r.U64()), Base: r.U32(), Owner: r.U64(), Tenant: string(r.Bytes()), State: resource.Allocated}
		flags := r.U8()
		active := flags&1 != 0
		reg.Maru = flags&2 != 0
		if err := s.res.Restore(reg); err != nil {
			return err
		}
		if active {
			reg.State = resource.Active
		}
		if reg.Owner == 0 { // from a checkpoint
			reg.State = resource.Deferred
		}
	case recNamespace:
		s.enterNamespace(string(r.Bytes()))
	case recActive, recReleased, recFreed, recRetired, recShrunk:
		reg := s.res.Region(r.U64())
		if reg == nil {
			return resource.ErrUnknown
		}
		switch kind {
		case recActive:
			return reg.Step(resource.OwnerMaps)
		case recReleased:
			return s.applyReleased(reg)
		case recRetired:
			reg.Retired = r.U8() != 0
		case recShrunk:
			return s.res.Shrink(reg, int64(r.U64()))
		default:
			if reg.State != resource.Deferred {
				return fmt.Errorf("region %d is freed while %v", reg.ID, reg.State)
			}
			for range s.idx.OfRegion(reg.ID) {
				return fmt.Errorf("region %d is freed while it holds keys", reg.ID)
			}
			reg.State = resource.Freed
			s.res.Free(reg)
		}
	case recPut:
		reg := s.res.Region(r.U64())
		if reg == nil {
			return resource.ErrUnknown
		}
		for r.More() {
			page, length, expires, key := r.U32(), int64(r.U64()), int64(r.U64()), r.Bytes()
			if s.idx.Get(key) != nil || int(page) >= reg.Pages() || length < 0 || length > reg.PageSize {
				return fmt.Errorf("key %q cannot be registered in page %d of region %d", key, page, reg.ID)
			}
			s.idx.Put(s.newEntry(reg, page, length, expires, string(key)))
		}
	case recMaruPut:
		reg := s.res.Region(r.U64())
		if reg == nil || !reg.Maru {
			return resource.ErrUnknown
		}
		for r.More() {
			offset, length, key := int64(r.U64()), int64(r.U64()), r.Bytes()
			if s.idx.Get(key) != nil || !inside(reg, offset, length) || s.idx.Overlap(reg.ID, offset, length) != nil {
				return fmt.Errorf("key %q cannot be registered at %d of region %d", key, offset, reg.ID)
			}
			s.idx.Put(s.newMaruEntry(reg, offset, length, string(key)))
		}
	case recDelete:
		for r.More() {
			e := s.idx.Get(r.Bytes())
			if e == nil {
				return fmt.Errorf("a key is deleted that does not exist")
			}
			s.idx.Delete(e)
		}
	case recPin, recUnpin:
		id := r.U64()
		for r.More() {
			e := s.idx.Get(r.Bytes())
			if e == nil || s.sessions[id] == nil {
				return fmt.Errorf("a key or session that does not exist is pinned or unpinned")
			}
			if kind == recPin {
				s.idx.Pin(e, id, 1)
			} else if !s.idx.Unpin(e, id) {
				return fmt.Errorf("a key is unpinned that was not pinned")
			}
		}
	case recPins:
		id, n, key := r.U64(), r.U32(), r.Bytes()
		e := s.idx.Get(key)
		if e == nil || s.sessions[id] == nil || n == 0 {
			return fmt.Errorf("a key or session that does not exist has %d pins", n)
		}
		s.idx.Pin(e, id, n)
	default:
		return fmt.Errorf("the kind is unknown")
	}
	return nil
}

// durable reports whether what concerns the bytes of a region must be on the medium
// before it is acknowledged.
func (s *Server) durable(r *resource.Region) bool { return r.Durable() || s.opt.Sync }

func (s *Server) newEntry(r *resource.Region, page uint32, length, expires int64, key string) *meta.Entry {
	return &meta.Entry{
		Key: key, Region: r.ID, Owner: r.Owner, Offset: int64(page) * r.PageSize, Length: length,
		Page: r.Base + page, Expires: expires, Durable: s.durable(r),
	}
}

// snapshot adds the state to a checkpoint, except the keys and their pins. Those are added later, some at a time,
// after what they refer to.
//
// Preconditions: s.mu is held.
func (s *Server) snapshot(add func([]byte)) {
	var b wire.Writer
	add(b.U8(recBoot).String(s.bootID))
	add(b[:0].U8(recNamespace).String(s.pidNamespace))
	add(b[:0].U8(recNext).U64(s.res.Next()))
	for _, ss := range s.sessions {
		if ss.logged {
			add(encodeSession(b[:0], ss))
		}
	}
	for r := range s.res.Regions() {
		add(encodeRegion(b[:0], r))
		if r.Retired {
			add(b[:0].U8(recRetired).U64(r.ID).U8(1))
		}
	}
}

// snapshotEntry adds a key and its pins. It returns b, which it writes over.
//
// Preconditions: s.mu is held.
func (s *Server) snapshotEntry(b wire.Writer, e *meta.Entry, add func([]byte)) wire.Writer {
	if e.Maru() {
		b = encodeMaruPut(b[:0], e.Region, e.Offset, e.Length, e.Key)
	} else {
		b = encodePutHead(b[:0], e.Region)
		b = encodePut(b, e.Page-s.res.Region(e.Region).Base, e.Length, e.Expires, []byte(e.Key))
	}
	add(b)
	for id, n := range e.Pins() {
		b = b[:0].U8(recPins).U64(id).U32(n).String(e.Key)
		add(b)
	}
	return b
}
