package sim

import (
	"bytes"
	"sync/atomic"
	"time"

	"polder/verbs"
	"polder/verbs/softnic"
)

// queue is what the model knows about a queue pair. The goroutine that runs events owns it, unless a field says
// otherwise.
//
// It responds to its peer and executes requests side by side, one of each at a
// time.
type queue struct {
	d   *Device
	num uint32

	told atomic.Bool  // an event will look at it
	task softnic.Task // set once, before the first such event

	active   bool          // it has had something to do, and has not come to rest since
	fetching bool          // its context is being fetched
	parked   bool          // contexts keeps it
	rx       time.Duration // when the last packet is delivered; the next one comes no earlier
	coming   int           // packets that wait for their delivery

	responding bool
	owed       softnic.Owed
	asked      []time.Duration // when the READs and atomics came that it has not answered

	executing bool
	next      softnic.Next
	stage     stage
	parks     bool // what it executed last was a WAIT that has to wait

	window []byte // entries as they were fetched
	base   uint64 // index of the first of them
	have   int    // bytes of them
}

// stage is how far a request is.
type stage uint8

const (
	stageFetched  stage = iota // its entry is there
	stageExecuted              // the processing unit is done
	stageGathered              // its payload is there
)

// A queue's events.
type (
	lookEvent    queue // something has given it something to do
	contextEvent queue // its context is there
	respondEvent queue // the response is due
	executeEvent queue // the request has come to its stage
)

// queue returns the queue pair of a number.
func (d *Device) queue(num uint32) *queue {
	d.w.lock()
	defer d.w.unlock()
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

// newQueue returns the queue pair of a number that another had.
func (d *Device) newQueue(num uint32) *queue {
	d.w.lock()
	d.queues[num&0xffff] = nil
	d.w.unlock()
	return d.queue(num)
}

// turn is told that a queue pair has something to do: posted by the host, which
// rings a doorbell, or not. The group's lock is held.
func (d *Device) turn(t softnic.Task, posted bool) {
	q := d.queue(t.QPN())
	if q.task != t {
		if q.task != (softnic.Task{}) { // its number is another's now
			q = d.newQueue(t.QPN())
		}
		q.task = t
	}
	q.told.Store(true)
	var delay time.Duration
	if posted {
		delay = d.w.costs.PCIeWrite
	}
	d.w.after(delay, (*lookEvent)(q))
}

func (e *lookEvent) run() {
	q := (*queue)(e)
	q.told.Store(false)
	if q.fetching {
		return // it will be looked at then
	}
	known := q.active || q.d.contexts.use(q)
	q.active = true
	if !known {
		q.fetching = true
		q.d.w.after(q.d.w.costs.PCIeRead, (*contextEvent)(q))
		return
	}
	q.proceed()
}

func (e *contextEvent) run() {
	q := (*queue)(e)
	q.fetching = false
	q.proceed()
}

// proceed begins what q can begin.
func (q *queue) proceed() {
	d := q.d
	for {
		owed, next, size := d.Peek(q.task, d.ahead)
		if owed.Packet != 0 && !q.responding {
			q.owed = owed
			if due := q.answer(); due > 0 {
				q.responding = true
				d.w.after(due, (*respondEvent)(q))
			} else {
				d.Respond(q.task)
				continue
			}
		}
		if next.Ready && !q.executing {
			q.next, q.executing = next, true
			q.begin(d.ahead[:size])
		}
		break
	}
	if !q.responding && !q.executing && !q.told.Load() {
		q.active = false
		if q.parks {
			d.contexts.park(q)
		}
	}
}

// answer is how long it takes until the packet that q owes can leave.
func (q *queue) answer() time.Duration {
	d, c := q.d, &q.d.w.costs
	if q.owed.Packet != softnic.KindReadResp && q.owed.Packet != softnic.KindAtomicResp {
		if q.owed.Packet != softnic.KindAck {
			q.asked = q.asked[:0] // they will not be answered
		}
		return 0
	}
	now := d.w.Now()
	start := now
	if !q.owed.More && len(q.asked) > 0 {
		start = q.asked[0]
		q.asked = q.asked[:copy(q.asked, q.asked[1:])]
	}
	if q.owed.Packet == softnic.KindAtomicResp {
		return max(0, d.lockWord(q.owed.Addr, start)-now) + d.w.lost()
	}
	if q.owed.More {
		start -= c.PCIeRead // it was asked for with the first part
		return d.readMemory(q.owed.Bytes, start)
	}
	return d.readMemory(q.owed.Bytes, start) + d.w.lost()
}

func (e *respondEvent) run() {
	q := (*queue)(e)
	q.responding = false
	q.d.Respond(q.task)
	q.proceed()
}

// ask notes the arrival of a request that needs a response.
func (q *queue) ask() {
	if len(q.asked) < softnic.MaxRdAtom {
		q.asked = append(q.asked, q.d.w.Now())
	}
}

// begin begins with the request.
func (q *queue) begin(ahead []byte) {
	switch {
	case q.next.More:
		q.gather()
	case !q.next.Managed && q.fetch(ahead):
		q.stage = stageFetched
		q.d.w.after(q.d.w.costs.PCIeRead, (*executeEvent)(q)) // no unit waits for it
	default:
		q.d.demand(q)
	}
}

func (e *executeEvent) run() {
	q := (*queue)(e)
	switch q.stage {
	case stageFetched:
		q.d.demand(q)
	case stageExecuted:
		q.d.release()
		q.gather()
	case stageGathered:
		q.finish()
	}
}

// fetch reports whether the entry of the request must be fetched, and fetches
// it and those that follow: ahead.
func (q *queue) fetch(ahead []byte) bool {
	const size = verbs.WQESize
	if len(ahead) < size {
		return false
	}
	if off := q.next.Index - q.base; off < uint64(q.have/size) {
		if at := int(off) * size; bytes.Equal(q.window[at:at+size], ahead[:size]) {
			return false
		}
	}
	q.base, q.have = q.next.Index, copy(q.window, ahead)
	return true
}

// occupy is how long a processing unit is busy with the request.
func (q *queue) occupy() time.Duration {
	d, c := q.d, &q.d.w.costs
	busy := c.Execute
	if q.next.Managed {
		_, next, size := d.Peek(q.task, d.ahead)
		if !next.Ready {
			return 0 // it was overtaken by an error
		}
		q.next = next
		if q.fetch(d.ahead[:size]) {
			busy += c.PCIeRead // the unit cannot go on without it
		}
	}
	if q.next.Op == verbs.OpBindMW || q.next.Op == verbs.OpLocalInv {
		busy += c.Bind
	}
	return busy
}

// gather reads the payload that the request sends.
func (q *queue) gather() {
	next, c := &q.next, &q.d.w.costs
	if next.Bytes == 0 || !next.Managed && !next.More && next.Bytes <= c.Inline {
		q.finish()
		return
	}
	start := q.d.w.Now()
	if next.More {
		start -= c.PCIeRead
	}
	q.stage = stageGathered
	q.d.w.after(q.d.readMemory(next.Bytes, start), (*executeEvent)(q))
}

// finish has the request take effect.
func (q *queue) finish() {
	q.executing = false
	q.parks = q.next.Parks
	if q.next.Peer != 0 {
		switch q.next.Op {
		case verbs.OpRead, verbs.OpCmpSwap, verbs.OpFetchAdd, verbs.OpMaskedFetchAdd, verbs.OpAlloc:
			q.d.queue(q.next.Peer).ask()
		}
	}
	q.d.Execute(q.task)
	q.proceed()
}

// demand gives q a processing unit, now or when there is one.
func (d *Device) demand(q *queue) {
	if d.units == 0 {
		d.line = append(d.line, q)
		return
	}
	d.units--
	d.occupy(q)
}

// occupy gives q a processing unit.
func (d *Device) occupy(q *queue) {
	t := q.occupy()
	d.usage.Units += t
	q.stage = stageExecuted
	d.w.after(t, (*executeEvent)(q))
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
	d.occupy(q)
}

// readMemory is how long it takes from now to read size bytes across PCIe that
// were asked for at start.
func (d *Device) readMemory(size uint32, start time.Duration) time.Duration {
	c, now := &d.w.costs, d.w.Now()
	d.reads = max(start+c.PCIeRead, d.reads) + transfer(int64(size), c.PCIeRate)
	return max(0, d.reads-now)
}

// lockWord is when the word of an atomic operation that came at start has been
// read and written, which is done one after the other.
func (d *Device) lockWord(addr uint64, start time.Duration) time.Duration {
	if len(d.words) > maxWords {
		for a, t := range d.words {
			if t <= d.w.Now() {
				delete(d.words, a)
			}
		}
	}
	t := max(start, d.words[addr]) + d.w.costs.PCIeRead
	d.words[addr] = t
	return t
}

// maxWords is how many words the model remembers before it forgets those that
// nobody waits for.
const maxWords = 1024
