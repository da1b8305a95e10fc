package server

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"polder/internal/failpoint"
	"polder/share/resource"
)

// MaruRegion is a region as Maru's clients know it.
type MaruRegion struct {
	ID     uint64
	Length int64
	Token  uint64 // proves, to the daemon, to whom it was told
}

// Alloc carves a region of at least size bytes, all of which have memory behind
// them.
func (g *Guest) Alloc(arrived time.Time, instance string, size int64) (MaruRegion, error) {
	s := g.s
	if size <= 0 || size > 1<<48 {
		return MaruRegion{}, fmt.Errorf("%w: a region of %d bytes", errInvalid, size)
	}
	if err := errors.Join(s.fresh(arrived), g.hold(instance)); err != nil {
		return MaruRegion{}, err
	}
	for {
		r, lsn, err := s.establish(g.live, func() (*resource.Region, error) {
			return s.res.CarveMaru(size, g.ss.id, g.ss.tenant)
		}, func(*resource.Region) error { return nil })
		if errors.Is(err, resource.ErrFull) && s.opt.LRU {
			if freed, ferr := s.evictOrphan(); ferr != nil {
				return MaruRegion{}, ferr
			} else if freed {
				continue
			}
		}
		if err != nil {
			return MaruRegion{}, err
		}
		failpoint.Hit("daemon.maru-alloc-applied")
		if err := s.commit(lsn, false); err != nil {
			return MaruRegion{}, err
		}
		return MaruRegion{r.ID, r.Length, s.maruToken(r.Owner, r.ID, r.Length)}, nil
	}
}

// maruToken proves that a region was told to a session: the low 16 bits of the
// session's number, by which it is found, and 48 bits that only the daemon can
// compute.
func (s *Server) maruToken(session, region uint64, length int64) uint64 {
	h := s.secret.Sign(resource.Handle{Region: region, Holder: session, Length: uint64(length), Rights: resource.Maru})
	t := session << 48
	for i, b := range h.MAC[:6] {
		t |= uint64(b) << (8 * i)
	}
	return t
}

// Return takes a region back from its owner. Keys in it stay, and the memory with
// them.
func (g *Guest) Return(region uint64, instance string) (bool, error) {
	s := g.s
	return s.giveUp(region, func(r *resource.Region) bool { return s.sessions[r.Owner].name == instance && g.owns(r) })
}

// Abandon takes back a region that its owner does not seem to know of.
func (s *Server) Abandon(region uint64) error {
	_, err := s.giveUp(region, func(*resource.Region) bool { return true })
	return err
}

// giveUp takes a region from its owner, if it has one and may is true of it.
func (s *Server) giveUp(region uint64, may func(*resource.Region) bool) (bool, error) {
	s.mu.Lock()
	r := s.res.Region(region)
	if r == nil || !r.Maru || r.Owner == 0 || !may(r) {
		s.mu.Unlock()
		return false, nil
	}
	lsn, err := s.append(s.rec[:0].U8(recReleased).U64(r.ID))
	if err == nil {
		s.must(s.applyReleased(r))
		s.settle(r)
	}
	s.mu.Unlock()
	if err == nil {
		err = s.commit(lsn, false) // after a loss of power the owner is gone anyway
	}
	s.finish(false)
	return err == nil, err
}

// Regions returns the regions that still have an owner, except those of one instance.
func (g *Guest) Regions(except string) []MaruRegion {
	s := g.s
	var found []MaruRegion
	s.mu.Lock()
	for r := range s.res.Regions() {
		if r.Maru && r.Owner != 0 && (except == "" || s.sessions[r.Owner].name != except) {
			found = append(found, MaruRegion{ID: r.ID, Length: r.Length})
		}
	}
	id := g.ss.id
	s.mu.Unlock()
	for i, r := range found {
		found[i].Token = s.maruToken(id, r.ID, r.Length)
	}
	return found
}

// Holder returns the client to which the daemon told a region together with the token. The Guest counts as one more
// connection of that client.
func (s *Server) Holder(region uint64, offset, length int64, tok uint64) (*Guest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.res.Region(region)
	if r == nil || !r.Maru {
		return nil, fmt.Errorf("region %d: %w", region, ErrNoRegion)
	}
	if offset == 0 && (length == r.Length || length == r.Short) {
		for id, ss := range s.sessions {
			if ss.door.Maru() && uint16(id) == uint16(tok>>48) && s.maruToken(id, r.ID, length) == tok {
				g := &Guest{s: s, ss: ss, known: true}
				g.join(ss)
				return g, nil
			}
		}
	}
	s.stats.denied.Add(1)
	return nil, fmt.Errorf("region %d: %w", region, ErrToken)
}

// Open returns the path of a region, which counts as mapped until Shut.
func (s *Server) Open(region uint64) (path string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.res.Region(region)
	if r == nil || !r.Maru {
		return "", fmt.Errorf("region %d: %w", region, ErrNoRegion)
	}
	if err := r.Step(resource.ReaderMaps); err != nil {
		return "", err
	}
	r.Readers++
	return r.Path(), nil
}

// Shut records that a client is gone that was told the region's path by Open.
func (s *Server) Shut(region uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.res.Unmapped(region); err != nil && !errors.Is(err, resource.ErrUnknown) { // it was evicted
		s.opt.Log.Error("BUG: cannot unmap a region of Maru's", "region", region, "err", err)
	}
}

// shrinkRegions gives back the memory behind the last key of Maru's regions whose owners have left: nobody will
// register anything there. The first call that finds such a region only makes lookups tell its shorter length, and
// clients map no more than they are told. The next call gives the memory back: until then, clients that were told the
// longer length have had time to map it, and they have no key to look at behind the new end. Memory between keys
// stays: a reader touches all that it maps, and where there is no memory behind that, it ends in SIGBUS when no more
// memory is to be had.
func (s *Server) shrinkRegions() {
	var shrunk []*resource.Region
	var n need
	s.mu.Lock()
	for r := range s.res.Regions() {
		keys := s.idx.Spans(r.ID)
		if !r.Maru || r.Owner != 0 || len(keys) == 0 {
			continue
		}
		last := keys[len(keys)-1]
		length := (last.Offset + last.Length + r.Align() - 1) / r.Align() * r.Align()
		if length >= r.Length {
			continue
		}
		if r.Short != length {
			r.Short = length
			continue
		}
		lsn, err := s.append(s.rec[:0].U8(recShrunk).U64(r.ID).U64(uint64(length)))
		if err != nil {
			break // the disk is full: the next time
		}
		s.must(s.res.Shrink(r, length))
		n.lsn, n.sync = lsn, n.sync || s.durable(r)
		shrunk = append(shrunk, r)
	}
	s.mu.Unlock()
	if len(shrunk) == 0 {
		return
	}
	failpoint.Hit("daemon.shrink-applied")
	// Not before: a daemon that does not know of it would tell of the longer region.
	if err := s.commitNeed(n); err != nil {
		s.opt.Log.Error("cannot commit that regions have shrunk", "err", err)
		return
	}
	for _, r := range shrunk {
		if err := r.Trim(); err != nil && !errors.Is(err, os.ErrClosed) {
			s.opt.Log.Error("cannot give the memory behind a region's last key back", "region", r.ID, "err", err)
		}
	}
}

// MaruUsage is what one instance holds.
type MaruUsage struct {
	Instance        string
	Regions         int
	Allocated, Used int64
}

// Usage returns what each instance holds, and the number of keys, and what the
// pools have that Maru's regions may be carved from. Regions whose owners have
// left count for the instance "".
func (g *Guest) Usage() (by []MaruUsage, keys int, free, total int64) {
	s := g.s
	s.mu.Lock()
	defer s.mu.Unlock()
	of := map[string]MaruUsage{}
	for r := range s.res.Regions() {
		if !r.Maru {
			continue
		}
		u := MaruUsage{}
		if r.Owner != 0 {
			u.Instance = s.sessions[r.Owner].name
		}
		sum := of[u.Instance]
		u.Regions, u.Allocated, u.Used = sum.Regions+1, sum.Allocated+r.Length, sum.Used+s.idx.BytesOf(r.ID)
		of[u.Instance] = u
		keys += r.Refs
	}
	for _, p := range s.res.Pools() {
		if p.Maru {
			free, total = free+p.Free, total+p.Size
		}
	}
	return slices.SortedFunc(maps.Values(of), func(a, b MaruUsage) int { return cmp.Compare(a.Instance, b.Instance) }), keys, free, total
}
