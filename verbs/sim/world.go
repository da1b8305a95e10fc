package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"polder/verbs"
	"polder/verbs/inproc"
	"polder/verbs/internal/softdev"
)

// World is a clock, the events to come, and the devices that they concern.
// Use New.
type World struct {
	costs  Costs
	group  *softdev.Group
	fabric *inproc.Fabric

	now     atomic.Int64 // time.Duration; set by whoever runs events
	current *Proc        // whose turn it is; nil outside Run
	procs   int          // processes that have not ended, without daemons
	alive   []*Proc      // those and the daemons
	failed  error        // of the first process that failed

	loss Loss       // set while nothing runs
	dice *rand.Rand // for loss; of whoever runs events

	free    []*parcel                   // guarded by group's lock: to be used again
	bridges map[[2]*Device]end          // links that Join made
	devices map[*softdev.Device]*Device // guarded by mu

	shared bool          // FreeRun was called; before that nobody takes mu
	mu     sync.Mutex    // the lock methods' own
	events heap          // guarded by mu
	seq    uint64        // guarded by mu: orders events of one instant
	closed bool          // guarded by mu
	pump   chan struct{} // guarded by mu: closed when the goroutine ends; nil without one
}

// end is one end of a link of Join's, seen from a device.
type end struct{ local, remote *inproc.End }

// New returns a world at time 0 without devices.
func New(c Costs) (*World, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("cannot make a simulation: %w: %w", err, verbs.ErrInvalid)
	}
	w := &World{costs: c, group: softdev.NewGroup(), bridges: make(map[[2]*Device]end)}
	w.fabric = inproc.NewFabricOver(w.group, w.carry)
	return w, nil
}

// Now is the time that the clock shows, from the world's beginning.
func (w *World) Now() time.Duration { return time.Duration(w.now.Load()) }

// lock takes mu, if another goroutine could hold it.
func (w *World) lock() {
	if w.shared {
		w.mu.Lock()
	}
}

func (w *World) unlock() {
	if w.shared {
		w.mu.Unlock()
	}
}

// An action is what an event does.
type action interface{ run() }

// at has a run at a time, which is not before now.
func (w *World) at(t time.Duration, a action) {
	w.lock()
	w.seq++
	w.events.push(event{at: t, seq: w.seq, do: a})
	if w.shared && w.pump == nil && !w.closed {
		w.pump = make(chan struct{})
		go w.run(w.pump)
	}
	w.unlock()
}

// after has a run some time from now.
func (w *World) after(d time.Duration, a action) { w.at(w.Now()+d, a) }

// take takes the next event and sets the clock to it. mu must be held.
func (w *World) take() (a action, ok bool) {
	if len(w.events) == 0 || w.closed {
		return nil, false
	}
	e := w.events.pop()
	w.now.Store(int64(e.at))
	return e.do, true
}

// FreeRun lets events run by themselves, in a goroutine of the world's, as soon
// as there are any: for code that is not written as processes. What happens in
// which order then depends on the wall clock, too.
func (w *World) FreeRun() {
	w.shared = true
	w.lock()
	start := len(w.events) > 0 && w.pump == nil && !w.closed
	if start {
		w.pump = make(chan struct{})
		go w.run(w.pump)
	}
	w.unlock()
}

// run runs events until there are none.
func (w *World) run(done chan struct{}) {
	defer close(done)
	for {
		w.lock()
		a, ok := w.take()
		if !ok {
			w.pump = nil
		}
		w.unlock()
		if !ok {
			return
		}
		a.run()
	}
}

// Close ends the world: no event runs any more. Close the devices first or
// afterwards. It is idempotent.
func (w *World) Close() error {
	w.lock()
	w.closed = true
	w.events = nil
	pump := w.pump
	w.unlock()
	if pump != nil {
		<-pump
	}
	return nil
}

// errStuck is returned by Run when nothing can happen any more.
var errStuck = errors.New("processes wait for what cannot happen any more")

// Run runs events until every process but the daemons has ended. The first error of a process stops the others, and
// Run returns it. Events that are left over stay for the next Run.
func (w *World) Run(ctx context.Context) error {
	defer w.stop()
	for i := 0; w.procs > 0; i++ {
		if i&0xfff == 0 && ctx.Err() != nil {
			return fmt.Errorf("cannot finish the simulation: %w", ctx.Err())
		}
		w.lock()
		a, ok := w.take()
		w.unlock()
		if !ok {
			return fmt.Errorf("cannot go on at %v: %d %w", w.Now(), w.procs, errStuck)
		}
		a.run()
		if w.failed != nil {
			return w.failed
		}
	}
	return nil
}

// event is something to be done at a time.
type event struct {
	at  time.Duration
	seq uint64
	do  action
}

func (a *event) before(b *event) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

// heap is a binary heap of events.
type heap []event

func (h *heap) push(e event) {
	s := append(*h, e)
	i := len(s) - 1
	for i > 0 {
		up := (i - 1) / 2
		if s[up].before(&e) {
			break
		}
		s[i] = s[up]
		i = up
	}
	s[i] = e
	*h = s
}

// Preconditions: h is not empty.
func (h *heap) pop() event {
	s := *h
	top, last := s[0], s[len(s)-1]
	s[len(s)-1] = event{}
	s = s[:len(s)-1]
	*h = s
	if len(s) == 0 {
		return top
	}
	i := 0
	for {
		down := 2*i + 1
		if down >= len(s) {
			break
		}
		if down+1 < len(s) && s[down+1].before(&s[down]) {
			down++
		}
		if last.before(&s[down]) {
			break
		}
		s[i] = s[down]
		i = down
	}
	s[i] = last
	return top
}
