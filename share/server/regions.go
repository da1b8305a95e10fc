package server

import (
	"errors"
	"fmt"

	"polder/internal/failpoint"
	"polder/share/resource"
)

// alloc carves a region and hands the owner a descriptor to map it.
func (c *conn) alloc() error {
	s := c.s
	length, pageSize, pool := c.in.U64(), c.in.U64(), string(c.in.Bytes())
	if err := c.in.Err(); err != nil {
		return err
	}
	if length > 1<<50 || pageSize > length {
		return fmt.Errorf("%w: a region of %d bytes with pages of %d", errInvalid, length, pageSize)
	}
	for {
		_, lsn, err := s.carve(c, pool, int64(length), int64(pageSize))
		if errors.Is(err, resource.ErrFull) && s.opt.LRU {
			if freed, ferr := s.evictOrphan(); ferr != nil {
				return ferr
			} else if freed {
				continue
			}
			if rerr := s.recall(c.ss); rerr != nil {
				return rerr
			}
		}
		if err != nil {
			return err
		}
		failpoint.Hit("daemon.alloc-applied")
		c.need = need{lsn: lsn}
		return nil
	}
}

// carve takes a region from a pool, and prepares the reply.
func (s *Server) carve(c *conn, pool string, length, pageSize int64) (*resource.Region, uint64, error) {
	return s.establish(c.live, func() (*resource.Region, error) {
		if s.favored != 0 && s.favored != c.ss.id && s.opt.Now().Before(s.favor) {
			return nil, fmt.Errorf("%w: a client with less memory comes first", resource.ErrFull)
		}
		r, err := s.res.Carve(pool, length, pageSize, c.ss.id, c.ss.tenant)
		if err == nil && s.favored == c.ss.id {
			s.favored = 0
		}
		return r, err
	}, c.describe)
}

// establish carves a region, puts memory behind it without holding s.mu, logs it, and calls tell under s.mu, so that
// the region cannot go meanwhile. live fails if the owner is gone. The record need not be on the medium before the
// owner hears of the region, even if the region's keys will be: if the power goes, the owner is gone, too; and
// syncing the record of the first key in the region also syncs this earlier record.
func (s *Server) establish(live func() error, carve func() (*resource.Region, error), tell func(*resource.Region) error) (r *resource.Region, lsn uint64, err error) {
	s.mu.Lock()
	if err = live(); err == nil {
		r, err = carve()
	}
	s.mu.Unlock()
	if err != nil {
		return nil, 0, err
	}
	failpoint.Hit("daemon.alloc-carved")
	err = r.Reserve()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		err = errors.Join(live(), s.res.CheckQuota(r.Tenant, r.Length)) // others may have been faster
	}
	if err == nil && r.Maru { // its clients map it when they like
		err = r.Step(resource.OwnerMaps)
	}
	if err == nil {
		lsn, err = s.append(encodeRegion(s.rec[:0], r))
	}
	if err != nil {
		return nil, 0, errors.Join(err, s.res.Discard(r))
	}
	s.res.Install(r)
	s.stats.allocs.Add(1)
	return r, lsn, tell(r)
}

// describe replies with a region and a descriptor of it.
//
// Preconditions: s.mu is held.
func (c *conn) describe(r *resource.Region) error {
	f, err := r.Writer()
	if err != nil {
		return err
	}
	c.files = append(c.files, f)
	c.out = c.out.U64(r.ID).U64(uint64(r.Length)).U64(uint64(r.PageSize)).U32(r.Base).U64(uint64(r.FileOffset())).U8(flag(r.Durable()))
	c.out = c.s.sign(r, c.ss, resource.Own|resource.Read).Append(c.out)
	return nil
}

// present takes a handle from the message and checks it.
//
// Preconditions: s.mu is held.
func (c *conn) present(rights resource.Rights) (*resource.Region, error) {
	if err := c.live(); err != nil {
		return nil, err
	}
	raw := c.in.Take(resource.HandleSize)
	if err := c.in.Err(); err != nil {
		return nil, err
	}
	h, err := resource.ParseHandle(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errInvalid, err)
	}
	if err := c.s.secret.Check(h, c.ss.id, rights); err != nil {
		c.s.stats.denied.Add(1)
		return nil, err
	}
	r := c.s.res.Region(h.Region)
	if r == nil {
		return nil, fmt.Errorf("%w: region %d is freed", errMissing, h.Region)
	}
	if rights&resource.Own != 0 && r.Owner != c.ss.id {
		return nil, fmt.Errorf("%w: region %d has been returned", errDenied, h.Region)
	}
	return r, nil
}

// activate seals a region, from which time on only its owner can write it.
//
// Preconditions: s.mu is held, the region is allocated.
func (s *Server) activate(r *resource.Region) (uint64, error) {
	if err := r.Seal(); err != nil {
		return 0, err
	}
	lsn, err := s.append(s.rec[:0].U8(recActive).U64(r.ID))
	if err == nil {
		s.must(r.Step(resource.OwnerMaps))
	}
	return lsn, err
}

// release takes a region back from its owner.
func (c *conn) release() error {
	s := c.s
	s.mu.Lock()
	r, err := c.present(resource.Own)
	var lsn uint64
	if err == nil {
		lsn, err = s.append(s.rec[:0].U8(recReleased).U64(r.ID))
	}
	if err == nil {
		s.must(s.applyReleased(r))
		s.settle(r)
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	failpoint.Hit("daemon.release-applied")
	c.need = need{lsn: lsn}
	return nil
}

// mapRegion hands a reader a descriptor of a region.
func (c *conn) mapRegion() error {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := c.present(resource.Read)
	if err != nil {
		return err
	}
	if r.State == resource.Allocated {
		return fmt.Errorf("%w: region %d is not active", errInvalid, r.ID)
	}
	f, err := r.Reader()
	if err != nil {
		return err
	}
	if r.Owner != c.ss.id && !c.ss.maps[r.ID] {
		if err := r.Step(resource.ReaderMaps); err != nil {
			f.Close()
			return err
		}
		r.Readers++
		c.ss.maps[r.ID] = true
	}
	c.files = append(c.files, f)
	c.out = c.out.U64(uint64(r.Length)).U64(uint64(r.PageSize)).U64(uint64(r.FileOffset())).U8(flag(r.Shared()))
	return nil
}

// unmap tells that a reader has unmapped a region, which may be freed by now.
func (c *conn) unmap() error {
	id, err := c.id()
	if err != nil {
		return err
	}
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.ss.maps[id] {
		return fmt.Errorf("%w: the client has not mapped region %d", errMissing, id)
	}
	delete(c.ss.maps, id)
	delete(c.ss.issued, id)
	return s.res.Unmapped(id)
}

// watch makes the connection the one that notices are sent to.
func (c *conn) watch() error {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := c.live(); err != nil {
		return err
	}
	if c.ss.watch != nil && c.ss.watch != c.unix {
		c.ss.watch.Close()
	}
	c.ss.watch = c.unix
	return c.in.Err()
}

// goodbye ends the session in good order.
func (c *conn) goodbye() error {
	s := c.s
	s.mu.Lock()
	err := s.endSession(c.ss)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	failpoint.Hit("daemon.bye-applied")
	return s.flushLog()
}

// flushLog commits all that has been appended.
func (s *Server) flushLog() error {
	if err := s.log.Commit(s.log.Last(), false); err != nil {
		return fmt.Errorf("%w: %w", errLog, err)
	}
	return nil
}
