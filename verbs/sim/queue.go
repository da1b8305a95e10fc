package sim

import (
	"bytes"
	"sync/atomic"
	"time"

	"polder/verbs"
	"polder/verbs/softnic"
)

// queue is what the model knows about a queue pair. Whoever runs events owns
// it, but for what is said otherwise.
type queue struct {
	d   *Device
	num uint32

	pending atomic.Bool  // it has a turn to come, in task
	task    softnic.Task // set before the turn's event, by whoever gives rise to it
	stage   stage        // likewise
	work    softnic.Work

	active bool          // it has had a turn or a packet, and has not come to rest since
	parked bool          // contexts keeps it
	rx     time.Duration // when the last packet is delivered: the next is not before
	coming int           // packets that wait for that

	window []byte // entries as they were fetched
	base   uint64 // index of the first of them
	have   int    // bytes of them
}

// stage is what a queue's event is about.
type stage uint8

const (
	stageTurn stage = iota // its turn begins
	stageLook              // its context is there
	stageUnit              // it wants a processing unit
	stageDone              // the unit is done
	stageStep              // the turn takes effect
)

// queue returns the queue pair of a number.
func (d *Device) queue(num uint32) *queue {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	slot := int(num & 0xffff)
	for len(d.queues) <= slot {
		d.queues = append(d.queues, nil)
	}
	q := d.queues[slot]
	if q == nil || q.num != num {
		q = &queue{d: d, num: num, window: make([]byte, d.w.costs.Window*verbs.WQESize)}
		d.queues[slot] = q
	}
	return q
}

// turn is told that a queue pair has something to do: posted by the host, which
// rings a doorbell, or not. The group's lock is held.
func (d *Device) turn(t softnic.Task, posted bool) {
	q := d.queue(t.QPN())
	q.task, q.stage = t, stageTurn
	q.pending.Store(true)
	var delay time.Duration
	if posted {
		delay = d.w.costs.PCIeWrite
	}
	d.w.after(delay, q)
}

// run goes on with a turn.
func (q *queue) run() {
	d, c := q.d, &q.d.w.costs
	switch q.stage {
	case stageTurn:
		known := q.active || d.contexts.use(q)
		q.active = true
		if !known {
			q.later(stageLook, c.PCIeRead)
			return
		}
		q.look()
	case stageLook:
		q.look()
	case stageUnit:
		d.demand(q)
	case stageDone:
		d.release()
		q.gather()
	case stageStep:
		q.step()
	}
}

// later goes on with another stage some time from now, or at once.
func (q *queue) later(s stage, d time.Duration) {
	q.stage = s
	if d > 0 {
		q.d.w.after(d, q)
	} else {
		q.run()
	}
}

// look decides what the turn needs.
func (q *queue) look() {
	d, c := q.d, &q.d.w.costs
	w, size, ok := d.Peek(q.task, d.ahead)
	q.work = w
	switch {
	case !ok:
		q.step()
	case w.Packet == softnic.KindReadResp:
		q.later(stageStep, d.readMemory(w.Bytes, !w.More))
	case w.Packet == softnic.KindAtomicResp:
		q.later(stageStep, d.lockWord(w.Addr))
	case w.Packet != 0:
		q.step()
	case w.More:
		q.gather()
	case !w.Managed && q.fetch(d.ahead[:size]):
		q.later(stageUnit, c.PCIeRead) // no unit waits for it
	default:
		d.demand(q)
	}
}

// fetch reports whether the entry of the request must be fetched, and fetches
// it and those that follow: ahead.
func (q *queue) fetch(ahead []byte) bool {
	const size = verbs.WQESize
	if len(ahead) < size {
		return false
	}
	if off := q.work.Index - q.base; off < uint64(q.have/size) {
		if at := int(off) * size; bytes.Equal(q.window[at:at+size], ahead[:size]) {
			return false
		}
	}
	q.base, q.have = q.work.Index, copy(q.window, ahead)
	return true
}

// execute is how long a processing unit is busy with the request.
func (q *queue) execute() time.Duration {
	d, c := q.d, &q.d.w.costs
	busy := c.Execute
	if q.work.Managed {
		w, size, ok := d.Peek(q.task, d.ahead)
		if !ok || w.Packet != 0 {
			return 0 // it was overtaken by an error
		}
		q.work = w
		if q.fetch(d.ahead[:size]) {
			busy += c.PCIeRead // the unit cannot go on without it
		}
	}
	if q.work.Op == verbs.OpBindMW || q.work.Op == verbs.OpLocalInv {
		busy += c.Bind
	}
	return busy
}

// gather reads the payload that the request sends.
func (q *queue) gather() {
	w := &q.work
	if w.Bytes == 0 || !w.Managed && !w.More && w.Bytes <= q.d.w.costs.Inline {
		q.step()
		return
	}
	q.later(stageStep, q.d.readMemory(w.Bytes, !w.More))
}

// step has the turn take effect.
func (q *queue) step() {
	q.pending.Store(false)
	q.d.Step(q.task)
	if q.pending.Load() {
		return
	}
	q.active = false
	if q.work.Parks {
		q.d.contexts.park(q)
	}
}

// demand gives q a processing unit, now or when there is one.
func (d *Device) demand(q *queue) {
	if d.units == 0 {
		d.line = append(d.line, q)
		return
	}
	d.units--
	q.stage = stageDone
	d.w.after(d.busy(q), q)
}

// busy is execute, and adds it up.
func (d *Device) busy(q *queue) time.Duration {
	t := q.execute()
	d.usage.Units += t
	return t
}

// release frees a processing unit.
func (d *Device) release() {
	if d.lineHead == len(d.line) {
		d.units++
		return
	}
	q := d.line[d.lineHead]
	d.line[d.lineHead] = nil
	if d.lineHead++; d.lineHead == len(d.line) {
		d.line, d.lineHead = d.line[:0], 0
	}
	q.stage = stageDone
	d.w.after(d.busy(q), q)
}

// readMemory is how long it takes from now to read size bytes across PCIe;
// first says that nobody has asked for them yet.
func (d *Device) readMemory(size uint32, first bool) time.Duration {
	c, now := &d.w.costs, d.w.Now()
	d.reads = max(now, d.reads) + transfer(int64(size), c.PCIeRate)
	t := d.reads - now
	if first {
		t += c.PCIeRead
	}
	return t
}

// lockWord is how long it takes from now to read and write the word of an
// atomic operation, one after the other.
func (d *Device) lockWord(addr uint64) time.Duration {
	now := d.w.Now()
	if len(d.words) > maxWords {
		for a, t := range d.words {
			if t <= now {
				delete(d.words, a)
			}
		}
	}
	t := max(now, d.words[addr]) + d.w.costs.PCIeRead
	d.words[addr] = t
	return t - now
}

// maxWords is how many words the model remembers before it forgets those that
// nobody waits for.
const maxWords = 1024
