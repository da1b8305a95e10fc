package resp

import (
	"time"

	"polder/resp/proto"
	"polder/resp/reply"
)

const (
	errNotKept   reply.Error = "ERR nothing is kept: the server was started without --heap"
	errSaving    reply.Error = "ERR Background save already in progress"
	errNoJournal reply.Error = "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled."
)

// cmdSave takes a checkpoint, which is what a kept heap has of a dump.
func cmdSave(s *session, a [][]byte) error {
	if !s.srv.kept() {
		return errNotKept
	}
	if s.onWait != nil {
		s.onWait(nil)
	}
	if err := s.srv.heap.Checkpoint(s.srv.ctx); err != nil {
		return reply.Error("ERR " + err.Error())
	}
	s.OK()
	return nil
}

// cmdBGSave is SAVE that waits for nothing.
func cmdBGSave(s *session, a [][]byte) error {
	if len(a) > 2 || len(a) == 2 && !proto.Is(a[1], "schedule") {
		return reply.ErrSyntax
	}
	return s.saveLater("Background saving started")
}

// cmdBGRewriteAOF has the journal begin anew, as a checkpoint does.
func cmdBGRewriteAOF(s *session, a [][]byte) error {
	return s.saveLater("Background append only file rewriting started")
}

func (s *session) saveLater(said string) error {
	srv := s.srv
	if !srv.kept() {
		return errNotKept
	}
	if !srv.saving.CompareAndSwap(false, true) {
		return errSaving
	}
	srv.wg.Go(func() {
		defer srv.saving.Store(false)
		if err := srv.heap.Checkpoint(srv.ctx); err != nil && srv.ctx.Err() == nil {
			srv.cfg.Logger.Error("cannot take the checkpoint that a client has asked for", "err", err)
		}
	})
	s.Status(said)
	return nil
}

func cmdLastSave(s *session, a [][]byte) error {
	at := s.front.since
	err := s.each(0, func(number int) (bool, error) {
		if s.srv.kept() && (number == 0 || at.After(s.srv.heap.LastCheckpoint())) {
			at = s.srv.heap.LastCheckpoint()
		}
		return false, nil
	})
	s.Int(at.Unix())
	return err
}

// cmdWait replies with how many copies there are beyond the first of what was there when the command came.
func cmdWait(s *session, a [][]byte) error {
	if _, ok := proto.ParseInt(a[1]); !ok {
		return reply.ErrNotInt
	}
	timeout, ok := proto.ParseInt(a[2])
	if !ok {
		return reply.Error("ERR timeout is not an integer or out of range")
	}
	if timeout < 0 {
		return reply.Error("ERR timeout is negative")
	}
	n, _, err := s.commitAll()
	if err == nil {
		s.Int(int64(max(n-1, 0)))
	}
	return err
}

// commitAll is that of the journal, or of those of all partitions that are here: the least of what they have. Without a journal there are no copies.
func (s *session) commitAll() (copies int, disk bool, err error) {
	first := true
	err = s.each(0, func(int) (bool, error) {
		n, on := 0, false
		if j := s.srv.journal; j != nil {
			if s.onWait != nil {
				s.onWait(nil)
			}
			var err error
			if n, on, err = j.commitAll(); err != nil {
				return true, err
			}
		}
		if first || n < copies {
			copies = n
		}
		disk = on && (first || disk)
		first = false
		return false, nil
	})
	return copies, disk, err
}

// commitAll returns when all that there is is kept as well as it can be, with how many copies of it there are, and whether it survives a loss of power.
func (j *journal) commitAll() (copies int, disk bool, err error) {
	if err := j.log.Commit(j.last.Load(), true); err != nil {
		j.fail(err)
		return 0, false, reply.Error("MISCONF " + err.Error())
	}
	copies, disk = j.log.Copies()
	return copies, disk, nil
}

// cmdWaitAOF replies with how many disks have what was there when the command came, and how many copies of other
// servers: that is 1 with a journal on a disk, and 0.
func cmdWaitAOF(s *session, a [][]byte) error {
	local, ok := proto.ParseInt(a[1])
	_, others := proto.ParseInt(a[2])
	ms, timed := proto.ParseInt(a[3])
	switch {
	case !ok || !others:
		return reply.ErrNotInt
	case !timed:
		return reply.Error("ERR timeout is not an integer or out of range")
	case ms < 0:
		return reply.Error("ERR timeout is negative")
	case local < 0 || local > 1:
		return reply.Error("ERR value is out of range, must be between 0 and 1")
	}
	if s.srv.journal == nil && s.srv.parts == nil && local > 0 {
		return errNoJournal
	}
	_, disk, err := s.commitAll()
	if err != nil {
		return err
	}
	s.Array(2)
	if disk {
		s.Int(1)
	} else {
		s.Int(0)
	}
	s.Int(0)
	return nil
}

// persistence is what INFO says of what outlives the server.
func (srv *Server) persistence() (saving, durable int, last time.Time, status string) {
	last, status = srv.since, "ok"
	if srv.loading.Load() {
		return saving, durable, last, status
	}
	if srv.saving.Load() {
		saving = 1
	}
	if srv.journal != nil {
		durable = 1
	}
	if srv.kept() {
		last = srv.heap.LastCheckpoint()
		if srv.heap.CheckpointError() != nil {
			status = "err"
		}
	}
	return saving, durable, last, status
}
