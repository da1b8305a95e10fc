package resp

import (
	"polder/resp/proto"
	"polder/resp/reply"
)

const errNoJournal reply.Error = "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled."

// cmdSave takes a checkpoint, which is to a kept heap what a dump is to Redis.
func cmdSave(s *session, a [][]byte) error {
	if s.OnWait != nil && s.Space.Kept() {
		s.OnWait(nil)
	}
	err := s.Space.Save()
	if err == nil {
		s.OK()
	}
	return err
}

// cmdBGSave takes a checkpoint, but does not wait for it.
func cmdBGSave(s *session, a [][]byte) error {
	if len(a) > 2 || len(a) == 2 && !proto.Is(a[1], "schedule") {
		return reply.ErrSyntax
	}
	return s.saveLater("Background saving started")
}

// cmdBGRewriteAOF takes a checkpoint, with which the journal begins anew, and does not wait for it.
func cmdBGRewriteAOF(s *session, a [][]byte) error {
	return s.saveLater("Background append only file rewriting started")
}

func (s *session) saveLater(said string) error {
	err := s.Space.SaveLater()
	if err == nil {
		s.Status(said)
	}
	return err
}

func cmdLastSave(s *session, a [][]byte) error {
	at := s.srv.since
	err := s.each(0, func(number int) (bool, error) {
		if last := s.Space.Persistence().Last; !last.IsZero() && (number == 0 || at.After(last)) {
			at = last
		}
		return false, nil
	})
	s.Int(at.Unix())
	return err
}

// cmdWait replies with how many copies, not counting the first, there are of the data that was there when the command
// came.
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

// commitAll commits the journal, or the journals of all partitions that are here (keyspace.Space.Commit). It returns
// the least number of copies among them, and whether all are on a disk. Without a journal there are no copies.
func (s *session) commitAll() (copies int, disk bool, err error) {
	first := true
	err = s.each(0, func(int) (bool, error) {
		if s.OnWait != nil && s.Space.Journaled() {
			s.OnWait(nil)
		}
		n, on, err := s.Space.Commit()
		if err != nil {
			return true, err
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

// cmdWaitAOF replies with two numbers: on how many disks of this server the data is that was there when the command
// came, 1 with a journal on a disk and else 0; and how many copies other servers have, which is always 0.
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
	if !s.Space.Journaled() && s.srv.parts == nil && local > 0 {
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
