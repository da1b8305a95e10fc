package server

import (
	"fmt"
	"runtime"
	"sync"
	"time"

	"polder/internal/failpoint"
	"polder/internal/wal"
	"polder/share/internal/wire"
	"polder/share/meta"
)

// While checkpoints fail, the next is tried after a pause that doubles from
// firstRetry to lastRetry.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// roomLasts is how long there must have been room before the daemon reports it: a disk that is nearly full has some
// room now and then.
const roomLasts = time.Second

// saver decides when a checkpoint is worth while. A checkpoint is made without Server.mu, except for moments: see
// Checkpoint.
type saver struct {
	kick  chan struct{} // asks at once
	mu    sync.Mutex    // held during a checkpoint; taken before Server.mu
	pause time.Duration // after a failure; keepLogShort's
	again time.Time     // when it may be tried again; keepLogShort's

	// What the log was told; keepLogShort's.
	failing bool      // a checkpoint has failed, and none was saved since
	full    bool      // the disk is full
	room    time.Time // since when the disk has room again
}

// keepLogShort saves checkpoints when they are due, and tells of a full disk,
// until the server closes.
func (s *Server) keepLogShort() {
	tick := time.NewTicker(s.opt.Tick)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.saver.kick:
		case <-tick.C:
		}
		starved := s.log.Starved()
		if starved == nil {
			s.tellOfDisk(nil)
		}
		now := time.Now()
		if now.Before(s.saver.again) {
			continue
		}
		live := s.liveLog()
		err := s.log.Reserve(live)
		due := s.checkpointDue(live, starved != nil || err != nil)
		if due {
			err = s.Checkpoint()
			s.tellOfCheckpoint(err)
		}
		if starved != nil && (!due || err != nil) { // else the checkpoint has made room
			s.tellOfDisk(starved)
		}
		if err == nil {
			s.saver.pause, s.saver.again = 0, time.Time{}
			continue
		}
		s.saver.pause = min(max(2*s.saver.pause, firstRetry), lastRetry)
		s.saver.again = now.Add(s.saver.pause)
	}
}

// checkpointDue reports whether a checkpoint is worth while: when more of the
// log is dead than alive, or when the disk is full and some of it is dead.
func (s *Server) checkpointDue(live int64, full bool) bool {
	since, dead := s.log.Since(), s.log.Size()-live
	if full {
		return since > 0 && dead > live/16
	}
	return since > s.opt.CheckpointBytes && dead > live
}

// liveLog returns about how many bytes a checkpoint would have.
func (s *Server) liveLog() int64 {
	const other = 128 // bytes of a session or a region
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.idx.Logged() + other*int64(len(s.sessions)+s.res.Len()+1)
}

// tellOfDisk tells once that the disk is full, and once that it no longer is.
func (s *Server) tellOfDisk(starved error) {
	v := &s.saver
	switch {
	case starved != nil && !v.full:
		s.opt.Log.Error("the log has no room: when its last segment is full, what changes anything is refused until there is room", "err", starved)
		v.full = true
	case starved != nil || !v.full:
	case v.room.IsZero():
		v.room = time.Now()
		return
	case time.Since(v.room) >= roomLasts:
		s.opt.Log.Info("the log has room again")
		v.full = false
	default:
		return
	}
	v.room = time.Time{}
}

// tellOfCheckpoint counts a checkpoint, and tells of the first of several that
// fail.
func (s *Server) tellOfCheckpoint(err error) {
	switch {
	case err == nil:
		s.stats.checkpoints.Add(1)
		if s.saver.failing {
			s.opt.Log.Info("checkpoints can be saved again")
		}
	default:
		s.stats.failedCheckpoints.Add(1)
		if !s.saver.failing {
			s.opt.Log.Error("cannot save a checkpoint; it is tried again, with pauses, and the log grows meanwhile", "err", err)
		}
	}
	s.saver.failing = err != nil
}

// logStarved is told that the log has no room.
func (s *Server) logStarved(error) {
	select {
	case s.saver.kick <- struct{}{}:
	default:
	}
}

// letOthersRun is called by a goroutine that does much work, when it lets go of the lock for a moment. Otherwise the
// runtime would preempt the goroutine after 10 ms, most likely while it holds the lock, and all that want the lock
// would wait until it runs again.
func letOthersRun() { runtime.Gosched() }

// Checkpoint saves a checkpoint now. Requests go on meanwhile: s.mu is held to copy sessions and regions, of which
// there are few, and then for some keys at a time; nothing is written under it. What the checkpoint holds is
// nevertheless the state of one moment, that of its first record: see meta.Index.Snapshot.
func (s *Server) Checkpoint() error {
	s.saver.mu.Lock()
	defer s.saver.mu.Unlock()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return wal.ErrClosed
	}
	snap := s.log.Snapshot()
	s.snapshot(snap.Add)
	var rec wire.Writer
	save := func(e *meta.Entry) { rec = s.snapshotEntry(rec, e, snap.Add) }
	var err error
	s.idx.Snapshot(save, func() bool {
		s.mu.Unlock()
		err = snap.Flush()
		letOthersRun()
		failpoint.Hit("daemon.snapshot-paused")
		s.mu.Lock()
		return err == nil
	})
	s.mu.Unlock()
	if err != nil {
		snap.Discard()
		return fmt.Errorf("cannot save a checkpoint: %w", err)
	}
	return s.log.Save(snap)
}
