package resp

import (
	"slices"

	"polder/partition"
	"polder/resp/glob"
	"polder/resp/proto"
	"polder/resp/reply"
)

// subscribed replies with what the session has subscribed to, or not any more.
func (s *session) subscribed(kind string, name []byte) {
	s.Out = proto.AppendBulk(proto.AppendPush(s.Out, s.Ver, 3), kind)
	if name == nil {
		s.Null()
	} else {
		s.Bulk(name)
	}
	s.Int(int64(s.subs.Len()))
	s.info.subs.Store(int64(len(s.subs.Channels)))
	s.info.psubs.Store(int64(len(s.subs.Patterns)))
}

func cmdSubscribe(s *session, a [][]byte) error  { return s.subscribe("subscribe", a[1:], false) }
func cmdPSubscribe(s *session, a [][]byte) error { return s.subscribe("psubscribe", a[1:], true) }

func (s *session) subscribe(kind string, names [][]byte, pattern bool) error {
	for _, name := range names {
		if err := s.srv.channels.Subscribe(&s.subs, string(name), pattern, s.listen); err != nil {
			return err
		}
		s.subscribed(kind, name)
		if err := s.Over(); err != nil {
			return err
		}
	}
	return nil
}

func cmdUnsubscribe(s *session, a [][]byte) error {
	return s.unsubscribe("unsubscribe", a[1:], s.subs.Channels, false)
}

func cmdPUnsubscribe(s *session, a [][]byte) error {
	return s.unsubscribe("punsubscribe", a[1:], s.subs.Patterns, true)
}

// unsubscribe ends the subscriptions to names, or to all if there are none.
func (s *session) unsubscribe(kind string, names [][]byte, all map[string]struct{}, pattern bool) error {
	if len(names) == 0 {
		for name := range all {
			names = append(names, []byte(name))
		}
		slices.SortFunc(names, slices.Compare)
	}
	if len(names) == 0 {
		s.subscribed(kind, nil)
	}
	for _, name := range names {
		s.srv.channels.Unsubscribe(&s.subs, string(name), pattern, s.news)
		s.subscribed(kind, name)
	}
	return s.Over()
}

var publishCommand = [][]byte{[]byte("POLDER"), []byte("PUBLISH")}

// tellOthers has the other servers of the map told of a message.
func (srv *Server) tellOthers(m *partition.Map, channel, message []byte) {
	me, _ := m.Server(srv.cfg.Cluster.ID)
	var addrs []string
	for _, to := range m.Servers {
		// One that was started again is in the map twice until the others miss the one that it was.
		if to.Addr == me.Addr || slices.Contains(addrs, to.Addr) {
			continue
		}
		addrs = append(addrs, to.Addr)
	}
	srv.herald.Tell(addrs, append(slices.Clone(publishCommand), channel, message))
}

// cmdPublish replies with how many of this server have got the message. Those of other servers get it a little later.
func cmdPublish(s *session, a [][]byte) error {
	if c := s.srv.cfg.Cluster; c != nil {
		s.srv.tellOthers(c.Map(), a[1], a[2])
	}
	s.Int(s.srv.channels.Publish(a[1], a[2]))
	return nil
}

// cmdPolderPublish is what a server says to another one of a message that was published there.
func cmdPolderPublish(s *session, a [][]byte) error {
	s.Int(s.srv.channels.Publish(a[2], a[3]))
	return nil
}

func cmdPubsubChannels(s *session, a [][]byte) error {
	if len(a) > 3 {
		return reply.ErrSyntax
	}
	var g glob.Pattern
	if len(a) == 3 {
		var err error
		if g, err = glob.Compile(a[2]); err != nil {
			return err
		}
	}
	names := s.srv.channels.Names(g)
	s.Array(len(names))
	for _, name := range names {
		s.Str(name)
	}
	return s.Over()
}

func cmdPubsubNumSub(s *session, a [][]byte) error {
	s.Array(2 * len(a[2:]))
	for _, name := range a[2:] {
		s.Bulk(name)
		s.Int(int64(s.srv.channels.Subscribers(name)))
	}
	return s.Over()
}

func cmdPubsubNumPat(s *session, a [][]byte) error {
	s.Int(int64(s.srv.channels.Patterns()))
	return nil
}
