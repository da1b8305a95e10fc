package server

import (
	"fmt"
	"time"

	"polder/internal/failpoint"
	"polder/share/internal/shm"
	"polder/share/internal/wire"
)

// evict makes room in the caller's own regions: it takes away the keys that
// have not been used for longest and that nobody has pinned or looks at.
func (c *conn) evict() error {
	want := int(c.in.U32())
	if err := c.in.Err(); err != nil {
		return err
	}
	s := c.s
	if !s.opt.LRU {
		return fmt.Errorf("%w: eviction is off", errInvalid)
	}
	s.mu.Lock()
	s.touch()
	held := s.pages.Held()
	n, count := need{}, 0
	var err error
	for e := range s.idx.Oldest(c.ss.id) {
		if count >= min(want, wire.MaxBatch) {
			break
		}
		if _, ok := held[e.Page]; ok {
			continue
		}
		var gone need
		if gone, err = s.remove(e); err != nil {
			break
		}
		n.lsn, n.sync = gone.lsn, n.sync || gone.sync
		count++
	}
	s.mu.Unlock()
	s.stats.evictions.Add(uint64(count))
	if err != nil {
		return err
	}
	c.out = c.out.U32(uint32(count))
	if err := s.commitNeed(n); err != nil {
		return err
	}
	s.finish(false) // so that the caller finds the pages free
	return nil
}

// evictOrphan evicts the keys of the least recently used region that has no owner and of whose keys none is pinned or
// looked at. That frees the region. It returns false if there is no such region, or while the daemon settles.
func (s *Server) evictOrphan() (bool, error) {
	n, err := s.evictRegion()
	if err != nil || n.lsn == 0 {
		return false, err
	}
	if err := s.commitNeed(n); err != nil {
		return false, err
	}
	s.finish(false)
	return true, nil
}

func (s *Server) evictRegion() (n need, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.touch()
	if len(s.settling) > 0 {
		return n, nil // nothing can be freed yet
	}
	looked := map[uint64]bool{}
	for page := range s.pages.Held() {
		if e := s.idx.AtPage(page); e != nil {
			looked[e.Region] = true
		}
	}
	for region := range s.idx.Orphans() {
		r := s.res.Region(region)
		if looked[region] || r.Maru && s.opt.Now().Sub(r.Used) < s.opt.Grace {
			continue
		}
		r.Evicted = r.Maru
		for e := range s.idx.OfRegion(region) {
			gone, err := s.remove(e)
			if err != nil {
				r.Evicted = false // the region goes on, with the rest of its keys
				return n, err
			}
			n.lsn, n.sync = gone.lsn, n.sync || gone.sync
			s.stats.evictions.Add(1)
		}
		return n, nil
	}
	return n, nil
}

// touch brings the LRU up to what clients have looked at without asking.
//
// Preconditions: s.mu is held.
func (s *Server) touch() {
	byPage := map[uint32]bool{}
	s.pages.Touched(func(page uint32) {
		if s.pageState(page) == shm.Live {
			byPage[page] = true
		}
	})
	for page := range byPage {
		if e := s.idx.AtPage(page); e != nil {
			s.idx.Touch(e)
		}
	}
}

func (s *Server) drainTouches() {
	if !s.opt.LRU {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.touch()
}

// expireAtOnce is how many keys expire while others wait.
const expireAtOnce = 256

// expire takes away the keys whose time is over.
func (s *Server) expire() {
	now := s.opt.Now().UnixMilli()
	for s.expireSome(now) {
		failpoint.Hit("daemon.expire-paused")
		letOthersRun()
	}
}

// expireSome takes away up to expireAtOnce keys whose time is over, and reports whether there may be more.
func (s *Server) expireSome(now int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range expireAtOnce {
		e := s.idx.Expired(now)
		if e == nil {
			return false
		}
		if _, err := s.remove(e); err != nil {
			s.opt.Log.Error("cannot log that a key has expired", "err", err)
			return false
		}
		s.stats.expired.Add(1)
	}
	return true
}

// favorTime is how long the memory that a recall brings in is kept for the client that asked.
const favorTime = time.Second

// recall makes room, when the pool is full, for a client that has fewer regions than others. It chooses the client
// that has the most regions, takes away the keys of that client's least recently used region, and asks the client to
// return the region. So clients that put come to have about the same share of the pool, whoever came first. The room
// is there when the client has returned the region; until then the caller evicts among its own keys.
func (s *Server) recall(ss *session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.touch()
	count := map[uint64]int{}
	busy := map[uint64]bool{}
	for r := range s.res.Regions() {
		count[r.Owner]++
		busy[r.Owner] = busy[r.Owner] || s.recalls[r.ID]
	}
	var victim uint64
	for owner, n := range count {
		if owner != 0 && owner != ss.id && !busy[owner] && n > count[ss.id]+1+count[ss.id]/4 && n > count[victim] && s.sessions[owner].watch != nil {
			victim = owner
		}
	}
	if victim == 0 {
		return nil
	}
	var region, longest uint64
	for r := range s.res.Regions() {
		if used, ok := s.idx.LastUse(r.ID); ok && r.Owner == victim && (region == 0 || used < longest) {
			region, longest = r.ID, used
		}
	}
	if region == 0 {
		return nil
	}
	for e := range s.idx.OfRegion(region) {
		if _, err := s.remove(e); err != nil {
			return err
		}
		s.stats.evictions.Add(1)
	}
	s.recalls[region] = true
	s.favored, s.favor = ss.id, s.opt.Now().Add(favorTime)
	s.notify(s.sessions[victim], region, wire.Recalled)
	return nil
}
