package server

import (
	"errors"
	"path/filepath"

	"polder/internal/fdpass"
	"polder/internal/wal"
	"polder/share/resource"

	"golang.org/x/sys/unix"
)

// firstSecond is when the numbers of regions begin: 1 January 2026.
const firstSecond = 1767225600

// recover replays the log and brings the state up to the present: it frees the regions whose memory is gone, and ends
// the sessions of dead clients.
func (s *Server) recover() error {
	boot := wal.BootID()
	restarted, remember := wal.Restarted(filepath.Join(s.opt.Dir, "boot"))
	log, found, err := wal.Open(logDir(s.opt.Dir), wal.Options{
		SegmentSize: s.opt.SegmentSize, Restarted: restarted, Starved: s.logStarved,
	}, s.replay)
	if err != nil {
		return err
	}
	s.log = log
	s.first = s.res.Next()
	if err := remember(); err != nil {
		return err
	}
	if s.secret, err = resource.LoadSecret(s.opt.Dir, s.empty()); err != nil {
		return err
	}
	sameBoot := s.bootID == "" || s.bootID == boot
	lost, err := s.res.Reopen(sameBoot)
	if err != nil {
		s.opt.Log.Warn("cannot give unclaimed memory back", "err", err)
	}
	if s.replayed == 0 {
		// Numbers are not used again even if the state is lost: some of Maru's
		// clients may hold on to a region of that number.
		s.res.SetNext(uint64(max(1, s.opt.Now().Unix()-firstSecond)))
	}
	if s.replayed > 0 {
		s.opt.Log.Info("recovered", "records", s.replayed, "checkpoint", found.Checkpoint, "torn_bytes", found.Torn,
			"keys", s.idx.Len(), "sessions", len(s.sessions), "lost_regions", len(lost))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bootID != boot {
		s.bootID = boot
		if _, err := s.append(s.rec[:0].U8(recBoot).String(boot)); err != nil {
			return err
		}
	}
	if ns := readPIDNamespace(); s.pidNamespace != ns {
		s.enterNamespace(ns)
		if _, err := s.append(s.rec[:0].U8(recNamespace).String(ns)); err != nil {
			return err
		}
	}
	for _, r := range lost {
		if err := s.lose(r); err != nil {
			return err
		}
	}
	if err := s.recoverSessions(sameBoot); err != nil {
		return err
	}
	s.recoverPages(sameBoot)
	for r := range s.res.Regions() {
		s.settle(r)
	}
	return nil
}

// empty reports whether nothing is allocated.
func (s *Server) empty() bool {
	for range s.res.Regions() {
		return false
	}
	return true
}

// lose frees a region whose memory is gone, with its keys.
//
// Preconditions: s.mu is held; pages are not recovered yet.
func (s *Server) lose(r *resource.Region) error {
	s.opt.Log.Warn("the memory of a region is lost", "region", r.ID, "pool", r.Pool)
	for e := range s.idx.OfRegion(r.ID) {
		if _, err := s.append(s.rec[:0].U8(recDelete).String(e.Key)); err != nil {
			return err
		}
		s.idx.Delete(e)
	}
	if r.Owner != 0 {
		if _, err := s.append(s.rec[:0].U8(recReleased).U64(r.ID)); err != nil {
			return err
		}
		if err := s.applyReleased(r); err != nil {
			return err
		}
	}
	lsn, err := s.append(s.rec[:0].U8(recFreed).U64(r.ID))
	if err != nil {
		return err
	}
	r.State = resource.Freed
	s.free(r, lsn)
	return nil
}

// recoverSessions ends the sessions of processes that are dead, and watches
// the others, which the daemon waits for.
//
// Preconditions: s.mu is held.
func (s *Server) recoverSessions(sameBoot bool) error {
	for _, ss := range s.sessions {
		if !sameBoot {
			if err := s.endSession(ss); err != nil {
				return err
			}
			continue
		}
		if ss.pid != 0 {
			pidfd, err := fdpass.OpenProcess(ss.pid, ss.start)
			switch {
			case err == nil:
				if err := s.watchProcess(ss, pidfd); err != nil {
					return err
				}
			case errors.Is(err, unix.ESRCH):
				if err := s.endSession(ss); err != nil {
					return err
				}
				continue
			default: // poll looks at it
			}
		}
		ss.gone = s.opt.Now()
		if ss.door == local {
			s.settling[ss.id] = ss
		}
	}
	return nil
}

// recoverPages sets the words of all pages. While sessions from before the restart may look at pages whose keys are
// gone, such pages must not be used; nor the free pages of retired regions.
//
// Preconditions: s.mu is held.
func (s *Server) recoverPages(sameBoot bool) {
	for e := range s.idx.All() {
		if !e.Maru() {
			s.pages.Live(e.Page)
		}
		s.res.Region(e.Region).Refs++
	}
	for r := range s.res.Regions() {
		if r.Maru {
			continue // its pages are its owner's affair
		}
		if !sameBoot {
			r.Retired = false // whoever looked at it is gone
		}
		if len(s.settling) == 0 && !r.Retired {
			continue
		}
		for i := range uint32(r.Pages()) {
			if !s.pages.IsFree(r.Base + i) {
				continue
			}
			s.pages.Unknown(r.Base + i)
			if !r.Retired || r.Shared() {
				s.pages.Dying(r.Base+i, r.ID, 0, false)
				r.Refs++
			}
		}
	}
}
