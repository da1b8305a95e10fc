package shm

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"polder/verbs/softnic"
)

// overflowLimit is how much may wait outside the ring. Only what the engine does
// not hold back can get there: rejections, and news of queue pairs that are
// gone. A peer that asks for more and reads none is cut off.
const overflowLimit = 1 << 20

var errOutboxFull = errors.New("the peer asks for more than it reads")

// An outbox is the producing end of a ring.
type outbox struct {
	mu       sync.Mutex
	region   *region
	tail     uint64             // guarded by mu: what has been filled in
	told     uint64             // guarded by mu: the tail that is published
	overflow []byte             // guarded by mu: records for which there was no room
	starved  bool               // guarded by mu: the engine waits to be resumed
	err      error              // guarded by mu: why the connection must end
	closed   bool               // guarded by mu: nothing is added any more
	unmapped bool               // guarded by mu: the region is gone
	waits    atomic.Bool        // relieve has something to do, or will have; changed under mu
	header   [recordHeader]byte // guarded by mu: scratch
	packet   []byte             // guarded by mu: scratch, of softnic.MaxHeader bytes
}

func newOutbox(r *region) *outbox {
	return &outbox{region: r, packet: make([]byte, 0, softnic.MaxHeader)}
}

// free is how much room there is in the ring.
//
// Preconditions: o.mu is held, the region is mapped.
func (o *outbox) free() int {
	used := o.tail - o.region.out.head.Load()
	if used > ringSize {
		o.fail(fmt.Errorf("cannot write: %w", errHead))
		return 0
	}
	return ringSize - int(used)
}

// fail has the connection end.
//
// Preconditions: o.mu is held.
func (o *outbox) fail(err error) {
	if o.err == nil {
		o.err = err
	}
	o.waits.Store(true)
}

var zeros [8]byte

// add adds a record whose body is in two parts.
//
// Preconditions: o.mu is held.
func (o *outbox) add(t recordType, head, body []byte) {
	if o.closed || o.err != nil {
		return
	}
	n := len(head) + len(body)
	size := padded(n)
	putHeader(&o.header, t, n)
	pad := zeros[:size-recordHeader-n]
	if len(o.overflow) > 0 || o.free() < size {
		if len(o.overflow)+size > overflowLimit {
			o.fail(errOutboxFull)
			return
		}
		o.overflow = append(append(append(append(o.overflow, o.header[:]...), head...), body...), pad...)
		o.wantRoom()
		return
	}
	r := &o.region.out
	r.put(o.tail, o.header[:])
	r.put(o.tail+recordHeader, head)
	r.put(o.tail+recordHeader+uint64(len(head)), body)
	r.put(o.tail+recordHeader+uint64(n), pad)
	o.tail += uint64(size)
}

// addPacket adds a packet.
//
// Hot path.
func (o *outbox) addPacket(p *softnic.Packet) {
	o.mu.Lock()
	o.packet = p.AppendHeader(o.packet[:0])
	o.add(recordPacket, o.packet, p.Payload)
	o.mu.Unlock()
}

// control adds a record of another type.
func (o *outbox) control(t recordType, body []byte) {
	o.mu.Lock()
	o.add(t, nil, body)
	o.mu.Unlock()
}

// wantRoom has the peer ring when it has made room.
//
// Preconditions: o.mu is held, the region is mapped.
func (o *outbox) wantRoom() {
	o.waits.Store(true)
	o.region.out.starved.Store(1)
}

// ready reports whether there is room for another packet. If not, relieve says
// when there is.
func (o *outbox) ready() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.err != nil || len(o.overflow) == 0 && o.free() >= maxRecord {
		return true
	}
	o.starved = true
	o.wantRoom()
	// The peer may have made room before it could see that.
	if len(o.overflow) == 0 && o.free() >= maxRecord {
		o.starved = false
		o.waits.Store(false)
		return true
	}
	return false
}

// needy reports whether relieve may have something to do.
func (o *outbox) needy() bool {
	if !o.waits.Load() {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.unmapped:
		return false
	case o.err != nil:
		return true
	case len(o.overflow) > 0:
		return o.free() >= o.first()
	}
	return o.free() >= maxRecord
}

// first is the size of the first record of the overflow.
//
// Preconditions: o.mu is held; there is one.
func (o *outbox) first() int {
	_, body, _, err := nextRecord(o.overflow)
	if err != nil {
		panic("BUG: our own record is malformed: " + err.Error())
	}
	return padded(len(body))
}

// relieve moves what overflowed into the ring, and reports whether the engine
// is to be resumed.
func (o *outbox) relieve() (resume bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.unmapped || o.err != nil || !o.waits.Load() {
		return false
	}
	for len(o.overflow) > 0 {
		size := o.first()
		if o.free() < size {
			o.wantRoom()
			return false
		}
		o.region.out.put(o.tail, o.overflow[:size])
		o.tail += uint64(size)
		o.overflow = o.overflow[size:]
	}
	o.overflow = nil
	if o.starved && o.free() < maxRecord {
		o.wantRoom()
		return false
	}
	resume, o.starved = o.starved, false
	o.waits.Store(false)
	o.region.out.starved.Store(0)
	return resume
}

// flush publishes what was added, and rings the peer if it sleeps. An error
// means that the connection must end.
func (o *outbox) flush() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.unmapped && o.told != o.tail {
		inOrder()
		o.told = o.tail
		o.region.out.tail.Store(o.tail)
		o.region.far.ring()
	}
	return o.err
}

// consumed tells a producer that waits for room that there is some.
func (o *outbox) consumed() {
	if o.region.in.starved.Load() != 0 {
		o.region.far.ring()
	}
}

// close ends what is sent, with a BYE if there is room for it, and wakes both
// ends.
func (o *outbox) close(bye bool) {
	if bye {
		o.control(recordBye, nil)
	}
	_ = o.flush() // the connection ends anyway
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	if !o.unmapped {
		o.region.far.ring()
		o.region.own.ring()
	}
}

// wakeReader wakes this end's reader.
func (o *outbox) wakeReader() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.unmapped {
		o.region.own.ring()
	}
}

// unmap gives the region up.
func (o *outbox) unmap() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.unmapped {
		o.unmapped, o.closed = true, true
		o.region.mem.Close()
	}
}
