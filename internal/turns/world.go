package turns

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"time"
)

// start is the time at which every world begins.
var start = time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)

// mostWait is the longest that a task that can go on waits for its turn. The wait is random, so that the order of
// tasks varies.
const mostWait = 30 * time.Microsecond

// World is a set of simulated processes with one queue of events.
type World struct {
	// Rand decides whatever is left to chance.
	Rand *rand.Rand
	// Trace, if not nil, is called with every line that Note writes.
	Trace func(line string)

	now     time.Duration
	seq     uint64
	events  queue
	procs   []*Process // processes that live
	current *task
	steps   uint64
	sum     uint64 // checksum of all events so far
}

// NewWorld makes a world without processes.
func NewWorld(seed uint64) *World {
	return &World{Rand: rand.New(rand.NewPCG(seed, 0x7475726e73)), sum: 14695981039346656037 ^ seed}
}

// Now is the time since the world began.
func (w *World) Now() time.Duration { return w.now }

// Steps is how many events there have been.
func (w *World) Steps() uint64 { return w.steps }

// Sum is a checksum of all events so far, and of all calls of Note. Two runs that did the same have the same
// checksum.
func (w *World) Sum() uint64 { return w.sum }

// Note writes a line about something that has happened to the trace.
func (w *World) Note(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	w.add(line, 0)
	if w.Trace != nil {
		w.Trace(fmt.Sprintf("%12.6f %s", w.now.Seconds(), line))
	}
}

// add adds an event to the checksum, which is FNV-1a.
func (w *World) add(what string, n uint64) {
	const prime = 1099511628211
	sum := w.sum
	for _, v := range [2]uint64{uint64(w.now), n} {
		for range 8 {
			sum = (sum ^ v&0xff) * prime
			v >>= 8
		}
	}
	for i := range len(what) {
		sum = (sum ^ uint64(what[i])) * prime
	}
	w.sum = sum
}

// Process makes a process whose clock is faster than the world's by ppm millionths.
func (w *World) Process(name string, ppm int64) *Process {
	p := &Process{w: w, name: name, ppm: ppm, tasks: make(map[*task]struct{})}
	w.procs = append(w.procs, p)
	return p
}

// After runs f after d. f must not wait.
func (w *World) After(d time.Duration, f func()) { w.after(d, nil, "event", f) }

// After runs f in the process after d, unless the process has ended by then. f must not wait.
func (p *Process) After(d time.Duration, f func()) { p.w.after(d, p, "event", f) }

func (w *World) after(d time.Duration, p *Process, kind string, f func()) {
	w.seq++
	w.events.push(event{at: w.now + max(d, 0), seq: w.seq, p: p, kind: kind, f: f})
}

// Run lets the world go on until the time until.
func (w *World) Run(until time.Duration) {
	for len(w.events) > 0 && w.events[0].at <= until {
		e := w.events.pop()
		if e.p != nil && e.p.dead {
			continue
		}
		if e.p != nil && e.p.asleep > e.at {
			e.at = e.p.asleep
			w.events.push(e) // it keeps its place among events of the same time
			continue
		}
		w.now = e.at
		w.steps++
		w.add(e.kind, e.seq)
		e.f()
		if e.p != nil {
			e.p.wake()
			continue
		}
		for _, p := range w.procs {
			p.wake()
		}
	}
	w.now = max(w.now, until)
}

// Close ends all tasks.
func (w *World) Close() {
	for len(w.procs) > 0 {
		w.procs[0].Kill()
	}
	w.events = nil
}

// A task is a goroutine of a simulated process.
type task struct {
	p     *Process
	seq   uint64
	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool
	ready func() bool
}

// killed is the panic that ends a task of a killed process.
type killed struct{}

// start starts a task.
func (p *Process) start(f func()) {
	if p.dead {
		return
	}
	w := p.w
	w.seq++
	t := &task{p: p, seq: w.seq}
	t.next, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		t.yield = yield
		defer func() {
			if r := recover(); r != nil {
				if _, ok := r.(killed); !ok {
					panic(r)
				}
			}
		}()
		f()
	})
	p.tasks[t] = struct{}{}
	t.resume()
}

// resume gives t its turn after a short random wait.
func (t *task) resume() {
	w := t.p.w
	w.after(time.Duration(w.Rand.Int64N(int64(mostWait))), t.p, "turn", func() {
		w.current = t
		_, on := t.next()
		w.current = nil
		if !on {
			delete(t.p.tasks, t)
		}
	})
}

// park returns once ready has returned true. Other tasks have their turns meanwhile.
func (p *Process) park(ready func() bool) {
	t := p.w.current
	switch {
	case t == nil:
		panic("BUG: only a task can wait")
	case t.p.dead:
		panic(killed{})
	case ready():
		return
	}
	t.ready = ready
	t.p.parked = append(t.p.parked, t)
	if !t.yield(struct{}{}) {
		panic(killed{})
	}
}

// wake gives a turn to those tasks that need not wait any longer.
func (p *Process) wake() {
	n := 0
	for _, t := range p.parked {
		if t.ready() {
			t.ready = nil
			t.resume()
			continue
		}
		p.parked[n] = t
		n++
	}
	clear(p.parked[n:])
	p.parked = p.parked[:n]
}

// Kill ends the process. No task of the process itself may call it.
func (p *Process) Kill() {
	if p.dead {
		return
	}
	w := p.w
	p.dead, p.parked = true, nil
	outer := w.current
	for t := range p.tasks { // the order does not matter, since nothing that the tasks do has an effect any more
		w.current = t
		t.stop()
	}
	w.current, p.tasks = outer, nil
	for i, o := range w.procs {
		if o == p {
			w.procs = append(w.procs[:i:i], w.procs[i+1:]...)
			break
		}
	}
}

// Dead reports whether the process was killed.
func (p *Process) Dead() bool { return p.dead }

// Pause lets nothing happen in the process for d.
func (p *Process) Pause(d time.Duration) { p.asleep = max(p.asleep, p.w.now+d) }

// Sleep lets time pass for a task.
func (p *Process) Sleep(d time.Duration) { p.Wait(p.NewTimer(d)) }

// An event is something that happens at a time.
type event struct {
	at   time.Duration
	seq  uint64
	p    *Process // nil if it is the world's
	kind string
	f    func()
}

// queue is a heap of events, the next one first.
type queue []event

func (q queue) before(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}

func (q *queue) push(e event) {
	*q = append(*q, e)
	for i := len(*q) - 1; i > 0; {
		up := (i - 1) / 2
		if !q.before(i, up) {
			break
		}
		(*q)[i], (*q)[up] = (*q)[up], (*q)[i]
		i = up
	}
}

func (q *queue) pop() event {
	old := *q
	e, last := old[0], len(old)-1
	old[0] = old[last]
	old[last] = event{}
	*q = old[:last]
	for i := 0; ; {
		least := i
		for _, k := range [2]int{2*i + 1, 2*i + 2} {
			if k < last && q.before(k, least) {
				least = k
			}
		}
		if least == i {
			return e
		}
		old[i], old[least] = old[least], old[i]
		i = least
	}
}
