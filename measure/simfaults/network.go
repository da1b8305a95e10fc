package simfaults

import (
	"time"

	"polder/internal/turns"
)

// hop returns how long a message takes that no fault delays.
func (c *cluster) hop() time.Duration {
	d := 50*time.Microsecond + time.Duration(c.w.Rand.Int64N(int64(200*time.Microsecond)))
	if c.w.Rand.IntN(1000) == 0 { // it was lost, and is sent again
		d += time.Duration(c.w.Rand.Int64N(int64(40 * time.Millisecond)))
	}
	return d
}

// retransmit is the time after which a message that could not get through is tried again.
const retransmit = 20 * time.Millisecond

// A pipe is one direction of a connection: what is sent arrives in order, or not at all.
type pipe struct {
	c     *cluster
	to    *turns.Process
	cut   func() bool          // nothing gets through now
	lag   func() time.Duration // the receiver's delay, added to the network's; nil for none
	queue []packet
	last  time.Duration // when the newest packet arrives, at the earliest
	ended bool
}

type packet struct {
	at time.Duration
	f  func()
}

func (p *pipe) send(f func()) {
	d := p.c.hop()
	if p.lag != nil {
		d += p.lag()
	}
	p.last = max(p.last, p.c.w.Now()+d)
	p.queue = append(p.queue, packet{p.last, f})
	p.to.After(p.last-p.c.w.Now(), p.pump)
}

// pump delivers what has arrived.
func (p *pipe) pump() {
	for len(p.queue) > 0 && p.queue[0].at <= p.c.w.Now() {
		switch {
		case p.ended:
			p.queue = nil
			return
		case p.cut():
			p.to.After(retransmit, p.pump)
			return
		}
		f := p.queue[0].f
		p.queue = p.queue[1:]
		f()
	}
}

// pair is one direction between two of the cluster's hosts: from a to b.
type pair struct{ a, b string }

// severed reports whether nothing gets from a to b.
func (c *cluster) severed(a, b string) bool { return c.w.Now() < c.cuts[pair{a, b}] }
