package feed

import (
	"sync"

	"polder/resp/glob"
	"polder/resp/proto"
)

// Channels knows who has subscribed to what. Messages go to the feeds of those: who publishes waits for nobody. The zero value has
// no subscribers, and is ready for use by any number of goroutines.
type Channels struct {
	mu       sync.RWMutex
	channels map[string]map[*Feed]struct{} // guarded by mu
	patterns map[string]*subscribers       // guarded by mu
}

// subscribers are those of a pattern.
type subscribers struct {
	glob glob.Pattern
	of   map[*Feed]struct{}
}

// Subscriptions are a client's: names of channels, and patterns. Zero are none. They are for one goroutine at a time.
type Subscriptions struct {
	Channels, Patterns map[string]struct{}
	Bytes              int // that they take here and in the tables of Channels
}

// Len is how many there are.
func (b *Subscriptions) Len() int { return len(b.Channels) + len(b.Patterns) }

func (b *Subscriptions) of(pattern bool) *map[string]struct{} {
	if pattern {
		return &b.Patterns
	}
	return &b.Channels
}

// subscribeCost is about what a subscription takes beside its name, in bytes.
const subscribeCost = 400

// Subscribe adds a client to those of a channel, or of a pattern. It fails if the pattern is no good. The feed is asked for when it is
// needed.
func (p *Channels) Subscribe(mine *Subscriptions, name string, pattern bool, listen func() *Feed) error {
	names := mine.of(pattern)
	if _, there := (*names)[name]; there {
		return nil
	}
	var g glob.Pattern
	if pattern {
		var err error
		if g, err = glob.Compile([]byte(name)); err != nil {
			return err
		}
	}
	f := listen()
	if *names == nil {
		*names = make(map[string]struct{})
	}
	(*names)[name] = struct{}{}
	mine.Bytes += subscribeCost + 2*len(name)
	p.mu.Lock()
	defer p.mu.Unlock()
	if pattern {
		if p.patterns == nil {
			p.patterns = make(map[string]*subscribers)
		}
		if p.patterns[name] == nil {
			p.patterns[name] = &subscribers{g, make(map[*Feed]struct{})}
		}
		p.patterns[name].of[f] = struct{}{}
		return nil
	}
	if p.channels == nil {
		p.channels = make(map[string]map[*Feed]struct{})
	}
	if p.channels[name] == nil {
		p.channels[name] = make(map[*Feed]struct{})
	}
	p.channels[name][f] = struct{}{}
	return nil
}

// Unsubscribe takes the client of a feed from those of a channel, or of a pattern.
func (p *Channels) Unsubscribe(mine *Subscriptions, name string, pattern bool, f *Feed) {
	names := *mine.of(pattern)
	if _, there := names[name]; !there {
		return
	}
	delete(names, name)
	mine.Bytes -= subscribeCost + 2*len(name)
	p.mu.Lock()
	defer p.mu.Unlock()
	if pattern {
		if of := p.patterns[name]; of != nil {
			if delete(of.of, f); len(of.of) == 0 {
				delete(p.patterns, name)
			}
		}
	} else if of := p.channels[name]; of != nil {
		if delete(of, f); len(of) == 0 {
			delete(p.channels, name)
		}
	}
}

// UnsubscribeAll ends all subscriptions of the client of a feed.
func (p *Channels) UnsubscribeAll(mine *Subscriptions, f *Feed) {
	for name := range mine.Channels {
		p.Unsubscribe(mine, name, false, f)
	}
	for name := range mine.Patterns {
		p.Unsubscribe(mine, name, true, f)
	}
	*mine = Subscriptions{}
}

// Publish gives a message to all who have subscribed, and returns how often.
func (p *Channels) Publish(channel, message []byte) (n int64) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for f := range p.channels[string(channel)] {
		f.push("message", channel, message)
		n++
	}
	for name, of := range p.patterns {
		if !of.glob.Match(channel) {
			continue
		}
		for f := range of.of {
			f.push("pmessage", []byte(name), channel, message)
			n++
		}
	}
	return n
}

// push adds a message to the feed.
func (f *Feed) push(kind string, args ...[]byte) {
	size := len(kind) + 64
	for _, a := range args {
		size += len(a) + 32
	}
	f.add(size, func(b []byte) []byte {
		b = proto.AppendBulk(proto.AppendPush(b, f.cfg.Version(), 1+len(args)), kind)
		for _, a := range args {
			b = proto.AppendBulk(b, a)
		}
		return b
	})
}

// Names are the channels that have subscribers, and a name that matches, if match is not nil.
func (p *Channels) Names(match glob.Pattern) (names []string) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for name := range p.channels {
		if match == nil || match.Match([]byte(name)) {
			names = append(names, name)
		}
	}
	return names
}

// Subscribers is how many have subscribed to a channel.
func (p *Channels) Subscribers(channel []byte) int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return len(p.channels[string(channel)])
}

// Patterns is how many patterns have subscribers.
func (p *Channels) Patterns() int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return len(p.patterns)
}
