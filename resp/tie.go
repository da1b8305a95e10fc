package resp

import (
	"errors"

	"polder/resp/forward"
	"polder/resp/proto"
	"polder/resp/reply"
	"polder/resp/table"
)

// tie is what a session watches at another server: keys of one slot, with a connection of its own, until EXEC,
// DISCARD, UNWATCH, RESET or the end of the session. Only WATCH and EXEC go by that connection. Other commands may go
// by any, since what has been answered has happened.
type tie struct {
	slot int
	link *forward.Held // nil if EXEC is to fail: the keys have gone elsewhere, or may have changed
}

// untie ends the session's tie, if it has one.
func (s *session) untie() {
	if s.tie != nil {
		s.tie.cut()
		s.tie = nil
	}
}

// cut closes the connection of the tie, and so makes EXEC fail.
func (t *tie) cut() {
	if t.link != nil {
		t.link.Close()
		t.link = nil
	}
}

// watchAway has the server at addr, which has the slot, watch keys of that slot for a session that has no tie.
// ErrUnsent says that it may be tried again.
func (s *session) watchAway(addr string, slot int, cmd *table.Command, args [][]byte) error {
	if s.Watches() { // the watched keys were here, and have gone there
		s.unwatch()
		s.tie = &tie{slot: slot}
		s.OK()
		return nil
	}
	link, err := s.hold(addr)
	if err != nil {
		return err
	}
	err = s.forward(link, addr, cmd, args)
	if err != nil || s.Out[s.Mark] == '-' {
		link.Close()
		return err
	}
	s.tie = &tie{slot, link}
	return nil
}

// hold takes a connection to another server for this session alone.
func (s *session) hold(addr string) (*forward.Held, error) {
	link, err := s.srv.cfg.Cluster.Links.Hold(addr)
	if err != nil {
		return nil, reply.Error("TRYAGAIN it takes a connection to another server: " + err.Error() + "; connect to " + addr + ", which has the keys")
	}
	return link, nil
}

// performTied is performAway of WATCH and EXEC when the session has a tie.
func (s *session) performTied(cmd *table.Command, args [][]byte) {
	t := s.tie
	if t.link != nil {
		if !s.showsFirst(cmd) {
			return
		}
		s.waitFor(args)
		err := s.forward(t.link, "", cmd, args)
		if !errors.Is(err, forward.ErrUnsent) {
			if cmd.Name == "exec" && err == nil {
				t.link.Release() // it watches nothing any more
				t.link = nil
			}
			s.leave(cmd, err)
			return
		}
		t.cut()
	}
	if cmd.Name == "exec" {
		s.Out = proto.AppendNullArray(s.Out, s.Ver)
	} else {
		s.OK()
	}
	s.leave(cmd, nil)
}
