package feed

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"polder/resp/glob"
	"polder/resp/proto"
)

// Kind is what a client subscribes to.
type Kind int

const (
	Channel Kind = iota // messages of PUBLISH
	Pattern             // messages of PUBLISH to channels whose names match
	Shard               // messages of SPUBLISH
	kinds
)

// Prefix returns what the names of a kind's commands and messages begin with, such as the p of PSUBSCRIBE and
// pmessage.
func (k Kind) Prefix() string { return [kinds]string{"", "p", "s"}[k] }

// Message is what PUBLISH and the like publish.
type Message struct {
	Kind          Kind
	Channel, Text []byte
	Everywhere    bool // other servers are to be told
}

// Channels knows which clients have subscribed to which channels and patterns. A message is appended to the feeds of
// its subscribers, so whoever publishes waits for nobody. The zero value has no subscribers, and is ready for use by
// any number of goroutines.
type Channels struct {
	mu sync.RWMutex
	of [kinds]map[string]*subscribers // guarded by mu
}

// subscribers are the clients that have subscribed to one channel, or to one pattern.
type subscribers struct {
	glob glob.Pattern // if it is a pattern
	of   map[*Feed]*Subscriptions
}

// Subscriptions are those of one client; the zero value has none. They change only while Channels.mu is held. Any
// goroutine may call Len, Any and Held.
type Subscriptions struct {
	names [kinds]map[string]struct{} // guarded by Channels.mu
	n     [kinds]atomic.Int64        // how many there are
	bytes atomic.Int64
}

// Len is how many subscriptions of a kind there are.
func (b *Subscriptions) Len(k Kind) int64 { return b.n[k].Load() }

// Beside is how many subscriptions there are that are counted together with those of a kind.
func (b *Subscriptions) Beside(k Kind) int64 {
	switch k {
	case Channel:
		return b.Len(Pattern)
	case Pattern:
		return b.Len(Channel)
	}
	return 0
}

// Any reports whether there are any.
func (b *Subscriptions) Any() bool { return b.Len(Channel)+b.Len(Pattern)+b.Len(Shard) > 0 }

// Held is how many bytes the subscriptions take here and in the tables of Channels.
func (b *Subscriptions) Held() int { return int(b.bytes.Load()) }

// subscribeCost is about how many bytes a subscription takes beside its name.
const subscribeCost = 400

// Subscribe subscribes a client to a channel or a pattern. It fails if the pattern is no good. Otherwise it calls
// listen to get the client's feed.
func (p *Channels) Subscribe(mine *Subscriptions, k Kind, name string, listen func() *Feed) error {
	var g glob.Pattern
	if k == Pattern {
		var err error
		if g, err = glob.Compile([]byte(name)); err != nil {
			return err
		}
	}
	f := listen()
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, there := mine.names[k][name]; there {
		return nil
	}
	if mine.names[k] == nil {
		mine.names[k] = make(map[string]struct{})
	}
	mine.names[k][name] = struct{}{}
	mine.n[k].Add(1)
	mine.bytes.Add(int64(subscribeCost + 2*len(name)))
	if p.of[k] == nil {
		p.of[k] = make(map[string]*subscribers)
	}
	if p.of[k][name] == nil {
		p.of[k][name] = &subscribers{g, make(map[*Feed]*Subscriptions)}
	}
	p.of[k][name].of[f] = mine
	return nil
}

// Unsubscribe ends subscriptions of the client with the feed f to channels or patterns. It returns what f has, which
// the client is to be sent before it is told that they have ended, and how many subscriptions of the kind there are
// after each. It holds f: see Hold. The caller frees unsent.
func (p *Channels) Unsubscribe(mine *Subscriptions, k Kind, names []string, f *Feed) (unsent []byte, left []int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f != nil {
		f.Hold()
		unsent = f.Take() // nothing is published meanwhile
	}
	for _, name := range names {
		p.unsubscribe(mine, k, name, f)
		left = append(left, mine.Len(k))
	}
	return unsent, left
}

// Preconditions: p.mu is held.
func (p *Channels) unsubscribe(mine *Subscriptions, k Kind, name string, f *Feed) {
	if _, there := mine.names[k][name]; !there {
		return
	}
	delete(mine.names[k], name)
	mine.n[k].Add(-1)
	mine.bytes.Add(-int64(subscribeCost + 2*len(name)))
	of := p.of[k][name].of
	if delete(of, f); len(of) == 0 {
		delete(p.of[k], name)
	}
}

// UnsubscribeAll ends all subscriptions of the client with the feed f.
func (p *Channels) UnsubscribeAll(mine *Subscriptions, f *Feed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k := range kinds {
		for name := range mine.names[k] {
			p.unsubscribe(mine, k, name, f)
		}
	}
}

// Mine returns the names of a client's subscriptions of a kind, sorted.
func (p *Channels) Mine(mine *Subscriptions, k Kind) []string {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return slices.Sorted(maps.Keys(mine.names[k]))
}

// Leave ends all subscriptions to channels of SPUBLISH for which gone reports true, and tells their clients.
func (p *Channels) Leave(gone func(channel string) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, of := range p.of[Shard] {
		if !gone(name) {
			continue
		}
		for f, mine := range of.of {
			p.unsubscribe(mine, Shard, name, f)
			f.add(len(name)+96, func(b []byte) []byte {
				return AppendChange(b, f.cfg.Version(), "sunsubscribe", []byte(name), mine.Len(Shard))
			})
		}
	}
}

// AppendChange appends the message that tells a client that one of its subscriptions has begun or ended, and how many
// it has now. The name is nil if there was no subscription to end.
func AppendChange(b []byte, ver int, kind string, name []byte, now int64) []byte {
	b = proto.AppendBulk(proto.AppendPush(b, ver, 3), kind)
	if name == nil {
		b = proto.AppendNull(b, ver)
	} else {
		b = proto.AppendBulk(b, name)
	}
	return proto.AppendInt(b, now)
}

// Publish gives a message to all who have subscribed to the channel and, unless it is a channel of SPUBLISH, to a
// pattern that matches. It returns how many copies of the message that were.
func (p *Channels) Publish(k Kind, channel, message []byte) (n int64) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if of := p.of[k][string(channel)]; of != nil {
		for f := range of.of {
			f.push(k.Prefix()+"message", channel, message)
			n++
		}
	}
	if k == Shard {
		return n
	}
	for name, of := range p.of[Pattern] {
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

// Receivers is how many copies of a message Publish would give to subscribers now.
func (p *Channels) Receivers(k Kind, channel []byte) (n int64) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if of := p.of[k][string(channel)]; of != nil {
		n = int64(len(of.of))
	}
	for _, of := range p.of[Pattern] {
		if k != Shard && of.glob.Match(channel) {
			n += int64(len(of.of))
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

// Names returns the channels of a kind that have subscribers and, if match is not nil, whose names match.
func (p *Channels) Names(k Kind, match glob.Pattern) (names []string) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for name := range p.of[k] {
		if match == nil || match.Match([]byte(name)) {
			names = append(names, name)
		}
	}
	return names
}

// Subscribers is how many clients have subscribed to a channel.
func (p *Channels) Subscribers(k Kind, channel []byte) int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if of := p.of[k][string(channel)]; of != nil {
		return len(of.of)
	}
	return 0
}

// Patterns is how many patterns have subscribers.
func (p *Channels) Patterns() int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return len(p.of[Pattern])
}
