package turns

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// Process is what code runs in. nil is this process, with its goroutines and the machine's clock.
type Process struct {
	w      *World
	name   string
	ppm    int64         // how much faster its clock is than the world's, in millionths
	dead   bool          // it was killed
	asleep time.Duration // the time in the world until which it is paused
	tasks  map[*task]struct{}
	parked []*task // tasks that wait, in the order in which they began to wait
}

// Now is the time by the process's clock.
func (p *Process) Now() time.Time {
	if p == nil { // fast path
		return time.Now()
	}
	return start.Add(p.w.now + time.Duration(int64(p.w.now)/1e6*p.ppm))
}

// Since is how long ago t was.
func (p *Process) Since(t time.Time) time.Duration { return p.Now().Sub(t) }

// Uint64 is a random number.
func (p *Process) Uint64() uint64 {
	if p == nil {
		return rand.Uint64()
	}
	return p.w.Rand.Uint64()
}

// Go runs f in a goroutine of its own.
func (p *Process) Go(f func()) {
	if p == nil {
		go f()
		return
	}
	p.start(f)
}

// A Timer ends a Wait or Recv, or runs a function, after some time.
type Timer struct {
	t *time.Timer

	p     *Process
	c     chan struct{} // capacity 1
	f     func()
	round int // events of earlier rounds do nothing
}

// NewTimer makes a timer for Wait and Recv.
func (p *Process) NewTimer(d time.Duration) *Timer {
	if p == nil {
		return &Timer{t: time.NewTimer(d)}
	}
	t := &Timer{p: p, c: make(chan struct{}, 1)}
	t.Reset(d)
	return t
}

// AfterFunc runs f in a goroutine of its own after d.
func (p *Process) AfterFunc(d time.Duration, f func()) *Timer {
	if p == nil {
		return &Timer{t: time.AfterFunc(d, f)}
	}
	t := &Timer{p: p, f: f}
	t.Reset(d)
	return t
}

// Stop makes the timer do nothing any more, if it has not gone off yet.
func (t *Timer) Stop() {
	if t.t != nil {
		t.t.Stop()
		return
	}
	t.round++
	select {
	case <-t.c:
	default:
	}
}

// Reset makes the timer go off after d.
func (t *Timer) Reset(d time.Duration) {
	if t.t != nil {
		t.t.Reset(d)
		return
	}
	t.Stop()
	round := t.round
	d = max(d, 0)
	t.p.w.after(d-time.Duration(int64(d)/1e6*t.p.ppm), t.p, "timer", func() {
		switch {
		case round != t.round:
		case t.f != nil:
			t.p.start(t.f)
		default:
			t.c <- struct{}{}
		}
	})
}

// over is the channel of a real timer, or nil if t is nil.
func (t *Timer) over() <-chan time.Time {
	if t == nil {
		return nil
	}
	return t.t.C
}

// rang receives what a simulated timer has sent, and reports whether there was anything.
func (t *Timer) rang() bool {
	if t == nil {
		return false
	}
	select {
	case <-t.c:
		return true
	default:
		return false
	}
}

// Late is what Wait returns if the timer went off first.
const Late = -1

// mostSignals is how many signals Wait can wait for.
const mostSignals = 4

// Wait waits for one of up to four signals or, if t is not nil, for the timer. It returns the index of the signal
// that has come, or Late.
func (p *Process) Wait(t *Timer, signals ...<-chan struct{}) int {
	var s [mostSignals]<-chan struct{}
	if copy(s[:], signals) < len(signals) {
		panic("BUG: more signals than Wait can wait for")
	}
	if p != nil {
		return p.wait(t, s)
	}
	select {
	case <-s[0]:
		return 0
	case <-s[1]:
		return 1
	case <-s[2]:
		return 2
	case <-s[3]:
		return 3
	case <-t.over():
		return Late
	}
}

func (p *Process) wait(t *Timer, s [mostSignals]<-chan struct{}) (which int) {
	p.park(func() bool {
		first := p.w.Rand.IntN(mostSignals + 1)
		for k := range mostSignals + 1 {
			if which = (first + k) % (mostSignals + 1); which == mostSignals {
				if which = Late; t.rang() {
					return true
				}
				continue
			}
			select {
			case <-s[which]:
				return true
			default:
			}
		}
		return false
	})
	return which
}

// Recv receives from c. It returns false if the timer went off first. t may be nil.
func Recv[T any](p *Process, c <-chan T, t *Timer) (v T, ok bool) {
	if p != nil {
		p.park(func() bool {
			select {
			case v = <-c:
				ok = true
			default:
			}
			return ok || t.rang()
		})
		return v, ok
	}
	select {
	case v = <-c:
		return v, true
	case <-t.over():
		return v, false
	}
}

// WithTimeout is context.WithTimeout.
func (p *Process) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if p == nil {
		return context.WithTimeout(ctx, d)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	t := p.AfterFunc(d, func() { cancel(context.DeadlineExceeded) })
	return ctx, func() {
		t.Stop()
		cancel(context.Canceled)
	}
}

// A Group is goroutines that somebody waits for.
type Group struct {
	wg sync.WaitGroup
	n  int // number of simulated tasks
}

// Go runs f in a goroutine of the group.
func (g *Group) Go(p *Process, f func()) {
	if p == nil {
		g.wg.Go(f)
		return
	}
	g.n++
	p.start(func() {
		defer func() { g.n-- }()
		f()
	})
}

// Wait returns when all goroutines of the group have ended.
func (g *Group) Wait(p *Process) {
	if p == nil {
		g.wg.Wait()
		return
	}
	p.park(func() bool { return g.n == 0 })
}

// A Cond is a sync.Cond.
type Cond struct {
	L     sync.Locker
	c     sync.Cond
	count uint64 // of broadcasts; guarded by L
}

// Wait waits for a Broadcast. L must be held; Wait unlocks it while it waits.
func (c *Cond) Wait(p *Process) {
	if p == nil {
		c.c.L = c.L
		c.c.Wait()
		return
	}
	count := c.count
	c.L.Unlock()
	defer c.L.Lock()
	p.park(func() bool { return c.count != count })
}

// Broadcast wakes all goroutines that wait. L must be held.
func (c *Cond) Broadcast() {
	c.count++
	c.c.Broadcast()
}
