package resp

import (
	"slices"
	"sync"

	"polder/resp/glob"
	"polder/resp/proto"
	"polder/resp/reply"
)

// pubsub knows who has subscribed to what. Messages go to a client's feed, from which its driver takes them when
// the replies before them are on their way: who publishes waits for nobody, and a subscriber that does not read is
// disconnected when its feed exceeds the output limit.
type pubsub struct {
	mu       sync.RWMutex
	channels map[string]map[*session]struct{} // guarded by mu
	patterns map[string]*subscribers          // guarded by mu
}

// subscribers are those of a pattern.
type subscribers struct {
	glob glob.Pattern
	of   map[*session]struct{}
}

// subscriptions are a session's: names of channels, and patterns.
type subscriptions struct {
	channels, patterns map[string]struct{}
	bytes              int // that they take here and in the server's tables
}

func (b *subscriptions) len() int { return len(b.channels) + len(b.patterns) }

// subscribeCost is about what a subscription takes beside its name, in bytes.
const subscribeCost = 400

// subscribe adds s to those of a channel, or of a pattern.
func (p *pubsub) subscribe(s *session, name string, pattern bool) error {
	mine := &s.subs.channels
	if pattern {
		mine = &s.subs.patterns
	}
	if _, there := (*mine)[name]; there {
		return nil
	}
	var g glob.Pattern
	if pattern {
		var err error
		if g, err = glob.Compile([]byte(name)); err != nil {
			return err
		}
	}
	s.listen()
	if *mine == nil {
		*mine = make(map[string]struct{})
	}
	(*mine)[name] = struct{}{}
	s.subs.bytes += subscribeCost + 2*len(name)
	p.mu.Lock()
	defer p.mu.Unlock()
	if pattern {
		if p.patterns == nil {
			p.patterns = make(map[string]*subscribers)
		}
		if p.patterns[name] == nil {
			p.patterns[name] = &subscribers{g, make(map[*session]struct{})}
		}
		p.patterns[name].of[s] = struct{}{}
		return nil
	}
	if p.channels == nil {
		p.channels = make(map[string]map[*session]struct{})
	}
	if p.channels[name] == nil {
		p.channels[name] = make(map[*session]struct{})
	}
	p.channels[name][s] = struct{}{}
	return nil
}

// unsubscribe takes s from those of a channel, or of a pattern.
func (p *pubsub) unsubscribe(s *session, name string, pattern bool) {
	mine := s.subs.channels
	if pattern {
		mine = s.subs.patterns
	}
	if _, there := mine[name]; !there {
		return
	}
	delete(mine, name)
	s.subs.bytes -= subscribeCost + 2*len(name)
	p.mu.Lock()
	defer p.mu.Unlock()
	if pattern {
		if of := p.patterns[name]; of != nil {
			if delete(of.of, s); len(of.of) == 0 {
				delete(p.patterns, name)
			}
		}
	} else if of := p.channels[name]; of != nil {
		if delete(of, s); len(of) == 0 {
			delete(p.channels, name)
		}
	}
}

// unsubscribeAll ends all of s's subscriptions.
func (s *session) unsubscribeAll() {
	for name := range s.subs.channels {
		s.srv.pubsub.unsubscribe(s, name, false)
	}
	for name := range s.subs.patterns {
		s.srv.pubsub.unsubscribe(s, name, true)
	}
	s.subs = subscriptions{}
}

// publish gives a message to all who have subscribed, and returns how often.
func (p *pubsub) publish(channel, message []byte) (n int64) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for s := range p.channels[string(channel)] {
		s.push("message", channel, message)
		n++
	}
	for name, of := range p.patterns {
		if !of.glob.Match(channel) {
			continue
		}
		for s := range of.of {
			s.push("pmessage", []byte(name), channel, message)
			n++
		}
	}
	return n
}

// push adds a message to the session's feed. Any goroutine may call it while the session is subscribed to something.
func (s *session) push(kind string, args ...[]byte) {
	size := len(kind) + 64
	for _, a := range args {
		size += len(a) + 32
	}
	s.news.add(size, func(b []byte) []byte {
		b = proto.AppendBulk(proto.AppendPush(b, int(max(2, s.info.ver.Load())), 1+len(args)), kind)
		for _, a := range args {
			b = proto.AppendBulk(b, a)
		}
		return b
	})
}

// subscribed replies with what the session has subscribed to, or not any more.
func (s *session) subscribed(kind string, name []byte) {
	s.Out = proto.AppendBulk(proto.AppendPush(s.Out, s.Ver, 3), kind)
	if name == nil {
		s.Null()
	} else {
		s.Bulk(name)
	}
	s.Int(int64(s.subs.len()))
	s.info.subs.Store(int64(len(s.subs.channels)))
	s.info.psubs.Store(int64(len(s.subs.patterns)))
}

func cmdSubscribe(s *session, a [][]byte) error  { return s.subscribe("subscribe", a[1:], false) }
func cmdPSubscribe(s *session, a [][]byte) error { return s.subscribe("psubscribe", a[1:], true) }

func (s *session) subscribe(kind string, names [][]byte, pattern bool) error {
	for _, name := range names {
		if err := s.srv.pubsub.subscribe(s, string(name), pattern); err != nil {
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
	return s.unsubscribe("unsubscribe", a[1:], s.subs.channels, false)
}

func cmdPUnsubscribe(s *session, a [][]byte) error {
	return s.unsubscribe("punsubscribe", a[1:], s.subs.patterns, true)
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
		s.srv.pubsub.unsubscribe(s, string(name), pattern)
		s.subscribed(kind, name)
	}
	return s.Over()
}

// cmdPublish replies with how many of this server have got the message. Those of other servers get it a little later.
func cmdPublish(s *session, a [][]byte) error {
	if c := s.srv.cfg.Cluster; c != nil {
		s.srv.tell(c.Map(), a[1], a[2])
	}
	s.Int(s.srv.pubsub.publish(a[1], a[2]))
	return nil
}

// cmdPolderPublish is what a server says to another one of a message that was published there.
func cmdPolderPublish(s *session, a [][]byte) error {
	s.Int(s.srv.pubsub.publish(a[2], a[3]))
	return nil
}

func cmdPubsubChannels(s *session, a [][]byte) error {
	if len(a) > 3 {
		return reply.ErrSyntax
	}
	g, err := glob.Compile([]byte("*"))
	if len(a) == 3 {
		g, err = glob.Compile(a[2])
	}
	if err != nil {
		return err
	}
	p := &s.srv.pubsub
	p.mu.RLock()
	defer p.mu.RUnlock()
	var names []string
	for name := range p.channels {
		if g.Match([]byte(name)) {
			names = append(names, name)
		}
	}
	s.Array(len(names))
	for _, name := range names {
		s.Str(name)
	}
	return s.Over()
}

func cmdPubsubNumSub(s *session, a [][]byte) error {
	p := &s.srv.pubsub
	p.mu.RLock()
	defer p.mu.RUnlock()
	s.Array(2 * len(a[2:]))
	for _, name := range a[2:] {
		s.Bulk(name)
		s.Int(int64(len(p.channels[string(name)])))
	}
	return s.Over()
}

func cmdPubsubNumPat(s *session, a [][]byte) error {
	p := &s.srv.pubsub
	p.mu.RLock()
	defer p.mu.RUnlock()
	s.Int(int64(len(p.patterns)))
	return nil
}
