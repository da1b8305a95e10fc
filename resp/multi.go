package resp

import (
	"errors"
	"slices"

	"polder/resp/proto"
	"polder/resp/reply"
	"polder/resp/table"
)

func cmdMulti(s *session, a [][]byte) error {
	if s.multi {
		return errNested
	}
	s.multi = true
	s.OK()
	return nil
}

// enqueue keeps a command for EXEC. Its arguments are copied: the input buffer
// moves on.
func (s *session) enqueue(cmd *table.Command, args [][]byte) {
	size := 0
	for _, a := range args {
		size += len(a)
	}
	s.queueLen += size + 64*len(args)
	if s.queueLen > s.srv.cfg.maxCommand() {
		s.ending = true // as Redis does: the queue counts as query buffer
		return
	}
	flat := make([]byte, 0, size)
	q := queued{cmd, make([][]byte, len(args))}
	for i, a := range args {
		start := len(flat)
		flat = append(flat, a...)
		q.args[i] = flat[start:len(flat):len(flat)]
	}
	s.queue = append(s.queue, q)
	s.Status("QUEUED")
}

// endMulti leaves the transaction.
func (s *session) endMulti() {
	s.multi, s.abort = false, false
	s.queue, s.queueLen, s.messages = nil, 0, nil
	s.unwatch()
}

func cmdDiscard(s *session, a [][]byte) error {
	if !s.multi {
		return errDiscNoMulti
	}
	s.endMulti()
	s.OK()
	return nil
}

// wantQueue adds the keys of the queued commands, and the watched keys, to those to be locked. It reports whether
// they are to be locked for writing.
func (s *session) wantQueue() (write bool) {
	if !s.multi {
		return false
	}
	for _, q := range s.queue {
		if q.cmd.Flags&table.All != 0 {
			s.WantAll()
		}
		s.wantKeys(q.cmd, q.args)
		write = write || q.cmd.Flags&table.Write != 0
	}
	s.WantWatched()
	return write
}

// runsOnce reports whether EXEC must not run again: a command in the transaction does to clients or to the server what
// is not undone, such as CLIENT KILL.
func (s *session) runsOnce() bool {
	return slices.ContainsFunc(s.queue, func(q queued) bool { return q.cmd.Flags&(table.Conn|table.Admin) != 0 })
}

func cmdExec(s *session, a [][]byte) error {
	switch {
	case !s.multi:
		return errExecNoMulti
	case s.abort:
		s.endMulti()
		return errExecAbort
	case s.WatchedChanged():
		s.endMulti()
		s.Out = proto.AppendNullArray(s.Out, s.Ver)
		return nil
	}
	if err := s.runQueue(); err != nil {
		return err // EXEC may be tried again: see perform
	}
	for _, m := range s.messages {
		s.srv.publish(m)
	}
	if s.srv.monitors.Load() != nil {
		for _, q := range s.queue { // as in Redis, before EXEC
			s.tell(q.cmd, q.args)
		}
	}
	s.endMulti()
	return nil
}

// runQueue runs the commands of a transaction. An error of one command is its reply, as in Redis. An error of far
// memory, or replies that are too long together, fail the whole transaction: then nothing has changed. In a cache
// every error is the reply of its command.
func (s *session) runQueue() error {
	if s.Writes() {
		if err := s.Space.Refuses(true); err != nil {
			return err
		}
	}
	if len(s.queue) > 1 {
		s.Begin()
	}
	s.messages = nil
	s.Array(len(s.queue))
	for _, q := range s.queue {
		start := len(s.Out) - s.Mark // Out and Mark may move together: see Writer.Room
		s.Reads = q.cmd.Reads()
		err := s.srv.table.run[q.cmd.ID](s, q.args)
		wrong := errors.As(err, new(reply.Error))
		if err == nil {
			err = s.Over()
		}
		switch {
		case err == nil:
		case wrong, s.Space.IsCache():
			s.Out = s.Out[:s.Mark+start]
			s.fail(err)
		default:
			return err
		}
	}
	return nil
}

func cmdWatch(s *session, a [][]byte) error {
	if s.multi {
		return errWatchInMulti
	}
	err := s.Watch(a[1:])
	if err == nil {
		s.OK()
	}
	return err
}

func cmdUnwatch(s *session, a [][]byte) error {
	if !s.multi { // in a transaction EXEC does it in the end, since EXEC may have to run again
		s.unwatch()
	}
	s.OK()
	return nil
}
