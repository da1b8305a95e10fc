package softdev

import (
	"sync"

	"polder/verbs"
)

// Group is a lock that devices share, and the work that is to be done before
// and after it is released.
type Group struct {
	mu sync.Mutex

	busy   []*Device     // guarded by mu: their NICs have something to do
	after  *batch        // guarded by mu: to be done after the unlock; nil if nothing
	runner chan struct{} // guarded by mu: closed when the goroutine runRest ends; nil without one
}

// NewGroup returns a group without devices.
func NewGroup() *Group { return &Group{} }

// batch is what is to be done without the lock, in this order.
type batch struct {
	handlers []*cq
	events   []event
	flushes  []*linkEnd
	unparks  []*parker
}

type event struct {
	f func(verbs.AsyncEvent)
	e verbs.AsyncEvent
}

var batches = sync.Pool{New: func() any { return new(batch) }}

// pending returns the batch to add to. mu must be held.
func (g *Group) pending() *batch {
	if g.after == nil {
		g.after = batches.Get().(*batch)
	}
	return g.after
}

// An unlock makes at most maxTurns NIC.Run calls before it leaves the rest to
// the group's goroutine; one that used up its budget counts as many.
const (
	maxTurns = 64
	longTurn = 16
)

// unlock runs the NICs, releases the lock and does what is pending. mu must be
// held.
func (g *Group) unlock() {
	g.run()
	if len(g.busy) > 0 && g.runner == nil {
		g.runner = make(chan struct{})
		go g.runRest(g.runner)
	}
	g.release()
}

// run lets the busy NICs run. mu must be held.
func (g *Group) run() {
	for turns := 0; turns < maxTurns && len(g.busy) > 0; turns++ {
		d := g.busy[0]
		more := d.nic.Run()
		copy(g.busy, g.busy[1:])
		g.busy[len(g.busy)-1] = nil
		g.busy = g.busy[:len(g.busy)-1]
		d.busy = false
		if more {
			turns += longTurn
		}
		if d.nic.Pending() {
			g.wake(d)
		}
	}
}

// wake notes that d's NIC has something to do. mu must be held.
func (g *Group) wake(d *Device) {
	if !d.busy {
		d.busy = true
		g.busy = append(g.busy, d)
	}
}

// runRest runs what is left over, letting others have the lock in between,
// until nothing is.
func (g *Group) runRest(done chan struct{}) {
	defer close(done)
	for {
		g.mu.Lock()
		g.run()
		last := len(g.busy) == 0
		if last {
			g.runner = nil
		}
		g.release()
		if last {
			return
		}
	}
}

// release unlocks mu and does what was pending.
func (g *Group) release() {
	b := g.after
	g.after = nil
	if b == nil {
		g.mu.Unlock()
		return
	}
	for _, c := range b.handlers {
		c.inBatch = false
	}
	for _, l := range b.flushes {
		l.inBatch = false
	}
	g.mu.Unlock()
	for i, l := range b.flushes {
		l.flusher.Flush()
		b.flushes[i] = nil
	}
	for i, p := range b.unparks {
		p.unpark()
		b.unparks[i] = nil
	}
	for i, c := range b.handlers {
		c.init.Handler(c)
		b.handlers[i] = nil
	}
	for i, e := range b.events {
		e.f(e.e)
		b.events[i] = event{}
	}
	b.handlers, b.events, b.flushes = b.handlers[:0], b.events[:0], b.flushes[:0]
	b.unparks = b.unparks[:0]
	batches.Put(b)
}
