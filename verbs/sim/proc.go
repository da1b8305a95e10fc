package sim

import (
	"errors"
	"fmt"
	"iter"
	"time"
)

// ErrStopped is what a process's calls return when Run has given up.
var ErrStopped = errors.New("the simulation was stopped")

// Proc is a process: ordinary sequential code that takes no time except in
// Sleep, Until and CQ.Wait, where others have their turn. Its methods are for
// its own code only.
type Proc struct {
	w      *World
	weight int // 1 if Run waits for it, otherwise 0

	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool
	gone  bool // stopped
	due   bool // its event is among the world's
	index int  // in the world's alive
}

// Go starts a process, which begins when Run does or now. An error of f's ends
// the simulation. f must return when a call of its gets ErrStopped.
func (w *World) Go(name string, f func(*Proc) error) { w.start(name, f, 1) }

// Daemon starts a process that Run does not wait for, but stops when the others
// have ended.
func (w *World) Daemon(name string, f func(*Proc) error) { w.start(name, f, 0) }

func (w *World) start(name string, f func(*Proc) error, weight int) {
	p := &Proc{w: w, weight: weight}
	p.next, p.stop = iter.Pull(func(yield func(struct{}) bool) {
		p.yield = yield
		if err := f(p); err != nil && w.failed == nil && !p.gone {
			w.failed = fmt.Errorf("process %s failed at %v: %w", name, w.Now(), err)
		}
	})
	p.index = len(w.alive)
	w.alive = append(w.alive, p)
	w.procs += weight
	p.resume(0)
}

// resume has p go on some time from now, unless that is arranged already.
func (p *Proc) resume(d time.Duration) {
	if !p.due {
		p.due = true
		p.w.after(d, p)
	}
}

// run is p's turn.
func (p *Proc) run() {
	p.due = false
	if p.gone {
		return
	}
	outer := p.w.current
	p.w.current = p
	_, on := p.next()
	p.w.current = outer
	if !on {
		p.end()
	}
}

// end is the end of p.
func (p *Proc) end() {
	w := p.w
	p.gone = true
	w.procs -= p.weight
	last := len(w.alive) - 1
	w.alive[last].index = p.index
	w.alive[p.index] = w.alive[last]
	w.alive[last] = nil
	w.alive = w.alive[:last]
}

// park gives others their turn until p is resumed.
func (p *Proc) park() error {
	if p.gone || !p.yield(struct{}{}) {
		return ErrStopped
	}
	return nil
}

// stop ends the processes that are left.
func (w *World) stop() {
	for len(w.alive) > 0 {
		p := w.alive[len(w.alive)-1]
		p.end()
		w.current = p // so that its calls fail, and do not wait in wall-clock time
		p.stop()
		w.current = nil
	}
	w.failed = nil
}

// Now is the time.
func (p *Proc) Now() time.Duration { return p.w.Now() }

// Sleep lets time pass: the process computes, or rests.
func (p *Proc) Sleep(d time.Duration) error {
	p.resume(max(d, 0))
	return p.park()
}

// Until returns when cond holds. It looks at once, and again whenever a message
// has arrived for one of the device's queue pairs, as a processor would that
// polls a word which a peer's WRITE changes.
func (p *Proc) Until(d *Device, cond func() bool) error {
	for !cond() {
		d.watchers = append(d.watchers, watcher{p, cond})
		if err := p.park(); err != nil {
			return err
		}
	}
	return nil
}

// watcher is a process in Until.
type watcher struct {
	p    *Proc
	cond func() bool
}

// arrived resumes the processes that wait in Until, after a message has come.
func (d *Device) arrived() {
	kept := d.watchers[:0]
	for _, w := range d.watchers {
		if w.cond() {
			w.p.resume(d.w.costs.PCIeWrite)
		} else {
			kept = append(kept, w)
		}
	}
	clear(d.watchers[len(kept):])
	d.watchers = kept
}

// Mutex is a lock for processes, which get it in the order in which they ask. The zero value is unlocked.
type Mutex struct {
	held bool
	line []*Proc
}

// Lock waits until p has the lock.
func (m *Mutex) Lock(p *Proc) error {
	if !m.held {
		m.held = true
		return nil
	}
	m.line = append(m.line, p)
	return p.park()
}

// Unlock gives the lock to the process that has waited longest.
func (m *Mutex) Unlock() {
	if len(m.line) == 0 {
		m.held = false
		return
	}
	p := m.line[0]
	m.line = m.line[1:]
	p.resume(0)
}

// Cond is for processes that wait until something has changed. The zero value is ready.
type Cond struct{ line []*Proc }

// Wait returns after the next Broadcast.
func (c *Cond) Wait(p *Proc) error {
	c.line = append(c.line, p)
	return p.park()
}

// Broadcast lets those that wait go on, in the order in which they came.
func (c *Cond) Broadcast() {
	for _, p := range c.line {
		p.resume(0)
	}
	c.line = c.line[:0]
}
