package resp

import (
	"fmt"
	"slices"
	"time"

	"polder/resp/feed"
	"polder/resp/proto"
	"polder/resp/reply"
	"polder/resp/table"
)

// listen returns the session's feed, and holds it until the driver has sent the replies so far (letGo).
func (s *session) listen() *feed.Feed {
	if s.news != nil {
		s.news.Hold()
		return s.news
	}
	cfg := &s.srv.cfg
	s.news = feed.New(feed.Config{
		Memory:  cfg.ClientMemory,
		Allowed: func() int { return cfg.ClientMemory.Allow(cfg.OutputLimit) },
		Unread:  func() { s.drop(); s.kill() },
		Evicted: s.kill,
		Tell:    func(f *feed.Feed) { s.fed(f) },
		Version: func() int { return int(max(2, s.info.ver.Load())) },
	})
	return s.news
}

// listens reports whether the client is a monitor or a subscriber. A feed may outlast that.
func (s *session) listens() bool { return s.info.monitors.Load() || s.subs.Any() }

// letGo lets the driver take what the session's feed has: the replies that come before it are on their way.
func (s *session) letGo() {
	if s.news != nil {
		s.news.LetGo()
	}
}

// monitor makes s one of the server's monitors.
func (s *session) monitor() {
	f := s.listen()
	s.info.monitors.Store(true)
	s.srv.setMonitors(func(list []*feed.Feed) []*feed.Feed { return append(list, f) })
}

// endFeed ends the session's subscriptions and its monitoring, and closes its feed.
func (s *session) endFeed() {
	f := s.news
	if f == nil {
		return
	}
	s.srv.channels.UnsubscribeAll(&s.subs, f)
	if s.info.monitors.Swap(false) {
		s.srv.setMonitors(func(list []*feed.Feed) []*feed.Feed {
			return slices.DeleteFunc(list, func(o *feed.Feed) bool { return o == f })
		})
	}
	s.news = nil
	f.Close()
}

// setMonitors replaces the list of monitors, which is nil if there are none.
func (srv *Server) setMonitors(change func([]*feed.Feed) []*feed.Feed) {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	var list []*feed.Feed
	if old := srv.monitors.Load(); old != nil {
		list = slices.Clone(*old)
	}
	if list = change(list); len(list) == 0 {
		srv.monitors.Store(nil)
	} else {
		srv.monitors.Store(&list)
	}
}

// tell sends monitors the line of a command. As in Redis, they are shown no commands for operators, and no secrets.
func (s *session) tell(cmd *table.Command, args [][]byte) {
	list := s.srv.monitors.Load()
	if list == nil || cmd.Flags&table.Admin != 0 {
		return
	}
	now := time.Now()
	head := fmt.Sprintf("+%d.%06d [0 %s]", now.Unix(), now.Nanosecond()/1000, s.info.shown())
	args = redacted(cmd, args)
	for _, f := range *list {
		f.Line(head, args)
	}
}

// redacted is args without the secrets in them. What follows AUTH is taken for a secret even if the command is
// malformed.
func redacted(cmd *table.Command, args [][]byte) [][]byte {
	hide := func(from, to int) {
		args = slices.Clone(args)
		for i := from; i < min(to, len(args)); i++ {
			args[i] = []byte("(redacted)")
		}
	}
	switch cmd.Name {
	case "auth":
		hide(1, len(args))
	case "hello":
		for i := range args {
			if i > 1 && proto.Is(args[i], "auth") {
				hide(i+1, i+3)
			}
		}
	case "config|set":
		for i := 2; i+1 < len(args); i += 2 {
			if settingNamed(args[i]) == nil { // it may be the name of a password in Redis
				hide(i+1, i+2)
			}
		}
	}
	return args
}

func cmdMonitor(s *session, a [][]byte) error {
	if s.multi {
		return reply.Error("ERR MONITOR isn't allowed for DENY BLOCKING client")
	}
	if !s.info.monitors.Load() {
		s.monitor()
	}
	s.OK()
	return nil
}
