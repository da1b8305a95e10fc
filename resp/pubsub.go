package resp

import (
	"slices"

	"polder/partition"
	"polder/resp/clientmem"
	"polder/resp/feed"
	"polder/resp/glob"
	"polder/resp/reply"
)

// subscribed replies that the session has subscribed to a name, or no longer has, and with how many subscriptions it
// has: those to channels of PUBLISH and to patterns are counted together. There are n of kind k.
func (s *session) subscribed(k feed.Kind, what string, name []byte, n int64) {
	s.Out = feed.AppendChange(s.Out, s.Ver, k.Prefix()+what, name, n+s.subs.Beside(k))
}

// pushed ends a command whose replies are pushes: they are sent whatever CLIENT REPLY has asked for.
func (s *session) pushed() error {
	err := s.Over()
	if err == nil {
		s.Mark = len(s.Out)
	}
	return err
}

func subscribe(k feed.Kind) handler {
	return func(s *session, a [][]byte) error {
		for _, name := range a[1:] {
			if err := s.srv.channels.Subscribe(&s.subs, k, string(name), s.listen); err != nil {
				return err
			}
			s.subscribed(k, "subscribe", name, s.subs.Len(k))
			if err := s.Over(); err != nil {
				return err
			}
		}
		return s.pushed()
	}
}

// unsubscribe ends the subscriptions to some names, or to all if none is given. The messages so far come first: later
// the client may take them for replies.
func unsubscribe(k feed.Kind) handler {
	return func(s *session, a [][]byte) error {
		var names []string
		for _, name := range a[1:] {
			names = append(names, string(name))
		}
		if len(a) == 1 {
			names = s.srv.channels.Mine(&s.subs, k)
		}
		messages, left := s.srv.channels.Unsubscribe(&s.subs, k, names, s.news)
		s.Room(len(messages))
		s.Out = append(s.Out, messages...)
		s.Mark = len(s.Out) // they are no part of the reply, which has a limit
		clientmem.Free(messages)
		if len(names) == 0 {
			s.subscribed(k, "unsubscribe", nil, s.subs.Len(k))
		}
		for i, name := range names {
			s.subscribed(k, "unsubscribe", []byte(name), left[i])
		}
		return s.pushed()
	}
}

var publishCommand = [][]byte{[]byte("POLDER"), []byte("PUBLISH")}

// tellOthers has the herald tell the other servers of the map about a message.
func (srv *Server) tellOthers(m *partition.Map, channel, message []byte) {
	me, _ := m.Server(srv.cfg.Cluster.ID)
	var addrs []string
	for _, to := range m.Servers {
		// A server that was started again is in the map twice, until the others miss its former self.
		if to.Addr == me.Addr || slices.Contains(addrs, to.Addr) {
			continue
		}
		addrs = append(addrs, to.Addr)
	}
	srv.herald.Tell(addrs, append(slices.Clone(publishCommand), channel, message))
}

// publish publishes a message, and replies with how many subscriptions at this server have got it. In a transaction it
// only counts them: EXEC may have to run again, or fail, and publishes its messages when it has succeeded.
func (s *session) publish(m feed.Message) error {
	if s.multi {
		s.messages = append(s.messages, m)
		s.Int(s.srv.channels.Receivers(m.Kind, m.Channel))
	} else {
		s.Int(s.srv.publish(m))
	}
	return nil
}

func (srv *Server) publish(m feed.Message) (n int64) {
	if c := srv.cfg.Cluster; c != nil && m.Everywhere {
		srv.tellOthers(c.Map(), m.Channel, m.Text)
	}
	return srv.channels.Publish(m.Kind, m.Channel, m.Text)
}

// cmdPublish: subscribers at other servers get the message a little later.
func cmdPublish(s *session, a [][]byte) error {
	return s.publish(feed.Message{Kind: feed.Channel, Channel: a[1], Text: a[2], Everywhere: true})
}

// cmdSPublish runs at the server that has the slot of the channel, and so all of its subscribers.
func cmdSPublish(s *session, a [][]byte) error {
	return s.publish(feed.Message{Kind: feed.Shard, Channel: a[1], Text: a[2]})
}

// cmdPolderPublish is sent by another server, to tell this one of a message that was published there.
func cmdPolderPublish(s *session, a [][]byte) error {
	return s.publish(feed.Message{Kind: feed.Channel, Channel: a[2], Text: a[3]})
}

// pubsubNames is the handler of PUBSUB CHANNELS, or SHARDCHANNELS.
func pubsubNames(k feed.Kind) handler {
	return func(s *session, a [][]byte) error {
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
		names := s.srv.channels.Names(k, g)
		s.Array(len(names))
		for _, name := range names {
			s.Str(name)
		}
		return s.Over()
	}
}

// pubsubNumSub is the handler of PUBSUB NUMSUB, or SHARDNUMSUB.
func pubsubNumSub(k feed.Kind) handler {
	return func(s *session, a [][]byte) error {
		s.Array(2 * len(a[2:]))
		for _, name := range a[2:] {
			s.Bulk(name)
			s.Int(int64(s.srv.channels.Subscribers(k, name)))
		}
		return s.Over()
	}
}

func cmdPubsubNumPat(s *session, a [][]byte) error {
	s.Int(int64(s.srv.channels.Patterns()))
	return nil
}
