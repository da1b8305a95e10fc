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
	Pattern             // those of channels whose names match
	Shard               // messages of SPUBLISH
	kinds
)

// Prefix is what the commands and messages of a kind have before their names.
func (k Kind) Prefix() string { return [kinds]string{"", "p", "s"}[k] }

// Channels knows who has subscribed to what. Messages go to the feeds of those: who publishes waits for nobody. The zero value has
// no subscribers, and is ready for use by any number of goroutines.
type Channels struct {
	mu sync.RWMutex
	of [kinds]map[string]*subscribers // guarded by mu
}

// subscribers are those of a channel, or of a pattern.
type subscribers struct {
	glob glob.Pattern // of a pattern
	of   map[*Feed]*Subscriptions
}

// Subscriptions are a client's. Zero are none. They change with Channels.mu held, and anybody may count them.
type Subscriptions struct {
	names [kinds]map[string]struct{} // guarded by Channels.mu
	n     [kinds]atomic.Int64        // how many there are
	bytes atomic.Int64
}

// Len is how many there are of a kind.
func (b *Subscriptions) Len(k Kind) int64 { return b.n[k].Load() }

// Any reports whether there are any.
func (b *Subscriptions) Any() bool { return b.Len(Channel)+b.Len(Pattern)+b.Len(Shard) > 0 }

// Held is how many bytes they take here and in the tables of Channels.
func (b *Subscriptions) Held() int { return int(b.bytes.Load()) }

// subscribeCost is about what a subscription takes beside its name, in bytes.
const subscribeCost = 400

// Subscribe adds a client to those of a channel, or of a pattern. It fails if the pattern is no good. The feed is asked for when it is
// needed.
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

// Unsubscribe takes the client of a feed from those of a channel, or of a pattern.
func (p *Channels) Unsubscribe(mine *Subscriptions, k Kind, name string, f *Feed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unsubscribe(mine, k, name, f)
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

// UnsubscribeAll ends all subscriptions of the client of a feed.
func (p *Channels) UnsubscribeAll(mine *Subscriptions, f *Feed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k := range kinds {
		for name := range mine.names[k] {
			p.unsubscribe(mine, k, name, f)
		}
	}
}

// Mine are a client's subscriptions of a kind, in order.
func (p *Channels) Mine(mine *Subscriptions, k Kind) []string {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return slices.Sorted(maps.Keys(mine.names[k]))
}

// Leave ends the subscriptions to those channels of SPUBLISH that gone reports, and tells their clients.
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

// AppendChange appends what a client is told of one of its subscriptions that has begun or ended, and how many there are now. The name is nil if
// there was none to end.
func AppendChange(b []byte, ver int, kind string, name []byte, now int64) []byte {
	b = proto.AppendBulk(proto.AppendPush(b, ver, 3), kind)
	if name == nil {
		b = proto.AppendNull(b, ver)
	} else {
		b = proto.AppendBulk(b, name)
	}
	return proto.AppendInt(b, now)
}

// Publish gives a message to all who have subscribed to a channel, or if it is not one of SPUBLISH to a pattern, and returns how often.
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

// Names are the channels of a kind that have subscribers, and a name that matches, if match is not nil.
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

// Subscribers is how many have subscribed to a channel.
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
