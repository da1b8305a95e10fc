//go:build ibverbs

package ibv

import (
	"fmt"
	"slices"

	"polder/verbs"
)

// inlineMost is how many bytes of data may travel in the work request itself:
// the device need not fetch them, and management messages are small.
const inlineMost = 128

// IDs of work requests at the device: the queue pair's serial number, whether
// it is a receive, and the place in the ring.
const recvBit = 1 << 32

func requestID(serial, place uint32) uint64 { return uint64(serial)<<33 | uint64(place) }

func serialOf(id uint64) uint32 { return uint32(id >> 33) }

// planned is what becomes of a request of a batch.
type planned struct {
	status verbs.Status // not success: it fails without the device's doing
	here   bool         // the driver has done it
	to     *qp          // not nil: who executes it
	bind   *binding     // BIND_MW and LOCAL_INV
	place  uint32       // in the ring, if to is not nil
}

// PostSend implements verbs.QP.
//
// Hot path: READs, WRITEs, SENDs and atomics become one call of C, without an
// allocation.
func (q *qp) PostSend(wrs ...verbs.SendWR) error {
	for i := range wrs {
		if err := q.check(&wrs[i]); err != nil {
			return fmt.Errorf("cannot post %v to QP %d: %w", wrs[i].Op, q.num, err)
		}
	}
	relays, err := q.enqueue(wrs)
	if err != nil {
		return fmt.Errorf("cannot post %d requests to QP %d: %w", len(wrs), q.num, err)
	}
	q.sendRelays(wrs, relays)
	return nil
}

// enqueue puts a batch into the ring, and gives the device what it is to
// execute here. If others are to execute any, it returns the plan of the batch.
func (q *qp) enqueue(wrs []verbs.SendWR) ([]planned, error) {
	q.post.Lock()
	defer q.post.Unlock()
	state := verbs.State(q.state.Load())
	switch {
	case q.closed:
		return nil, verbs.ErrClosed
	case state == verbs.StateReset || state == verbs.StateInit:
		return nil, fmt.Errorf("it is in state %v: %w", state, verbs.ErrBadState)
	case int(q.send.used.Load())+len(wrs) > int(q.send.depth) && !q.makeRoom(len(wrs)):
		return nil, verbs.ErrQueueFull
	}
	q.batch = q.batch[:0]
	if state == verbs.StateRTS && !q.failing && q.plain(wrs) {
		// The fast path.
		q.send.used.Add(int32(len(wrs)))
		for i := range wrs {
			q.addNative(&wrs[i], nil)
		}
		q.ring()
		return nil, nil
	}
	return q.enqueueSlow(wrs, state == verbs.StateError)
}

// plain reports whether the device executes every request of a batch just as it
// is.
func (q *qp) plain(wrs []verbs.SendWR) bool {
	for i := range wrs {
		switch wr := &wrs[i]; wr.Op {
		case verbs.OpBindMW, verbs.OpLocalInv:
			return false
		case verbs.OpCmpSwap, verbs.OpFetchAdd:
			if wr.RemoteAddr%8 != 0 && q.pd.d.quirks.MisalignedAtomic {
				return false
			}
		}
	}
	return true
}

// enqueueSlow is enqueue for batches that are not plain, or that fail.
func (q *qp) enqueueSlow(wrs []verbs.SendWR, flush bool) ([]planned, error) {
	relayed, err := q.planAll(wrs, flush)
	if err != nil {
		return nil, err
	}
	q.send.used.Add(int32(len(wrs)))
	foreign := false
	for i := range wrs {
		p := &q.plan[i]
		if p.status != verbs.StatusSuccess || p.to != nil || p.here {
			q.addForeign(&wrs[i], p)
			foreign = true
			continue
		}
		q.addNative(&wrs[i], p.bind)
	}
	q.ring()
	if foreign {
		c := q.sendCQ
		c.mu.Lock()
		q.advance()
		c.added()
		c.unlock()
	}
	if relayed {
		return slices.Clone(q.plan), nil
	}
	return nil, nil
}

// check refuses work requests that are malformed, or that are not for this device.
func (q *qp) check(wr *verbs.SendWR) error {
	switch wr.Op {
	case verbs.OpNop, verbs.OpSend, verbs.OpRead, verbs.OpWrite, verbs.OpBindMW, verbs.OpLocalInv:
	case verbs.OpCmpSwap, verbs.OpFetchAdd:
		if len(wr.SGL) != 1 || wr.SGL[0].Length != 8 {
			return fmt.Errorf("an atomic needs one SGE of 8 bytes: %w", verbs.ErrInvalid)
		}
	default:
		return fmt.Errorf("%s does not have it: %w", q.pd.d.name, verbs.ErrInvalid)
	}
	switch {
	case wr.Flags&verbs.SendSGLIndirect != 0:
		return fmt.Errorf("%s has no indirect SGLs: %w", q.pd.d.name, verbs.ErrInvalid)
	case len(wr.SGL) > q.pd.d.attr.MaxSGE:
		return fmt.Errorf("%d SGEs, %s has %d: %w", len(wr.SGL), q.pd.d.name, q.pd.d.attr.MaxSGE, verbs.ErrInvalid)
	case length(wr.SGL) > uint64(q.pd.d.attr.MaxMsgSize):
		return fmt.Errorf("%d bytes, a message has at most %d: %w", length(wr.SGL), q.pd.d.attr.MaxMsgSize, verbs.ErrInvalid)
	}
	return nil
}

func length(sgl []verbs.SGE) (n uint64) {
	for i := range sgl {
		n += uint64(sgl[i].Length)
	}
	return n
}

// makeRoom takes completions from the device, which give places back, and
// reports whether there are n now.
func (q *qp) makeRoom(n int) bool {
	c := q.sendCQ
	c.mu.Lock()
	for int(q.send.used.Load())+n > int(q.send.depth) && !c.closed && c.reap() {
	}
	c.added()
	c.unlock()
	return int(q.send.used.Load())+n <= int(q.send.depth)
}

// planAll decides what becomes of each request of a batch, and reports whether
// another queue pair is to execute any. It fails, and nothing has changed, if
// one has no room.
func (q *qp) planAll(wrs []verbs.SendWR, flush bool) (relays bool, err error) {
	q.plan = q.plan[:0]
	failing := q.failing || flush
	for i := range wrs {
		var p planned
		switch wr := &wrs[i]; {
		case failing:
			p.status = verbs.StatusWRFlushErr
		case wr.Op == verbs.OpBindMW:
			p = q.planBind(wr)
		case wr.Op == verbs.OpLocalInv:
			p = q.planInvalidate(wr)
		case wr.Op == verbs.OpCmpSwap || wr.Op == verbs.OpFetchAdd:
			if wr.RemoteAddr%8 != 0 && q.pd.d.quirks.MisalignedAtomic {
				p.status = verbs.StatusRemInvReqErr
			}
		}
		failing = failing || p.status != verbs.StatusSuccess
		if p.to != nil {
			relays = true
			if p.to.room.Add(-1) < 0 {
				p.to.room.Add(1)
				p.undo()
				for k := range q.plan {
					if q.plan[k].to != nil {
						q.plan[k].to.room.Add(1)
					}
					q.plan[k].undo()
				}
				return false, fmt.Errorf("QP %d has no room for it: %w", p.to.num, verbs.ErrQueueFull)
			}
		}
		q.plan = append(q.plan, p)
	}
	q.failing = failing && !flush
	return relays, nil
}

// addNative puts a request into the ring and the batch for the device.
func (q *qp) addNative(wr *verbs.SendWR, bind *binding) {
	place := q.send.tail.Load()
	signaled := wr.Flags&verbs.SendSignaled != 0
	s := q.send.at(place)
	*s = slot{id: wr.ID, op: wr.Op, signaled: signaled, bind: bind}
	if bind != nil && bind.mw.typ == verbs.MWType1 {
		s.held, q.holds = true, true
	}
	switch wr.Op {
	case verbs.OpRead, verbs.OpCmpSwap, verbs.OpFetchAdd:
		s.bytes = uint32(length(wr.SGL))
	}
	q.batch = append(q.batch, hwWR{})
	w := &q.batch[len(q.batch)-1]
	q.translate(w, wr, bind)
	q.given(w, place, signaled || bind != nil)
}

// given numbers a request for the device, and asks for a completion if the
// program does, or if nobody has for so long that places would run out.
func (q *qp) given(w *hwWR, place uint32, signal bool) {
	w.id = hwWord(requestID(q.serial, place))
	if q.quiet++; signal || q.quiet >= max(1, int(q.send.depth)/2) {
		w.flags |= hwSignaled
		q.quiet = 0
	}
	q.send.tail.Store(place + 1)
}

// addForeign puts a request into the ring that the device is not given here.
func (q *qp) addForeign(wr *verbs.SendWR, p *planned) {
	if q.quiet > 0 { // somebody must say when what comes before has completed
		if n := len(q.batch); n > 0 {
			q.batch[n-1].flags |= hwSignaled
		} else {
			place := q.send.tail.Load()
			*q.send.at(place) = slot{op: verbs.OpNop, hidden: true}
			q.batch = append(q.batch, hwWR{op: hwWrite})
			q.given(&q.batch[0], place, true)
		}
		q.quiet = 0
	}
	place := q.send.tail.Load()
	*q.send.at(place) = slot{
		id: wr.ID, op: wr.Op, signaled: wr.Flags&verbs.SendSignaled != 0, foreign: true,
		done: p.to == nil, status: p.status, bind: p.bind,
	}
	p.place = place
	q.send.tail.Store(place + 1)
}

// translate fills in what the device is given.
func (q *qp) translate(w *hwWR, wr *verbs.SendWR, bind *binding) {
	if wr.Flags&verbs.SendFence != 0 {
		w.flags |= hwFence
	}
	w.remote, w.rkey = hwWord(wr.RemoteAddr), hwKey(wr.RKey)
	w.compare, w.swap = hwWord(wr.Compare), hwWord(wr.Swap)
	switch wr.Op {
	case verbs.OpNop:
		// No device has it: a WRITE of nothing to nowhere, which is checked
		// against no key.
		w.op, w.remote, w.rkey = hwWrite, 0, 0
		return
	case verbs.OpBindMW:
		bind.translate(w, wr)
		return
	case verbs.OpLocalInv:
		w.op = hwLocalInv
		return
	case verbs.OpSend:
		w.op = hwSend
	case verbs.OpRead:
		w.op = hwRead
	case verbs.OpWrite:
		w.op = hwWrite
	case verbs.OpCmpSwap:
		w.op = hwCmpSwap
	case verbs.OpFetchAdd:
		w.op = hwFetchAdd
	}
	w.sges = hwByte(putSGL(&w.sge, wr.SGL))
	if (wr.Op == verbs.OpSend || wr.Op == verbs.OpWrite) && q.inlines(wr.SGL) {
		w.flags |= hwInline
	}
}

// putSGL translates an SGL. Elements of no length are left out: to some devices
// 0 is 2 GiB.
func putSGL(to *[maxSGE]hwSGE, sgl []verbs.SGE) (n int) {
	for i := range sgl {
		if e := &sgl[i]; e.Length > 0 {
			setSGE(&to[n], e)
			n++
		}
	}
	return n
}

// inlines reports whether the data of a request is small, and the program's to
// send. The processor copies it, not the device, so nobody else would check.
func (q *qp) inlines(sgl []verbs.SGE) bool {
	if n := length(sgl); n == 0 || n > uint64(q.hw.inline) {
		return false
	}
	for i := range sgl {
		m := q.regionOf(sgl[i].LKey)
		if m == nil || !m.covers(sgl[i].Addr, uint64(sgl[i].Length)) {
			return false
		}
	}
	return true
}

// regionOf returns the region of that key, or nil. It remembers the last.
//
// Preconditions: q.post is held.
func (q *qp) regionOf(key verbs.LKey) *mr {
	if m := q.region; m != nil && m.lkey == key && !m.gone.Load() {
		return m
	}
	q.region = q.pd.d.mrOf(key, q.pd)
	return q.region
}

// ring gives the batch to the device, or puts it behind the gate.
//
// Preconditions: q.post is held.
func (q *qp) ring() {
	switch {
	case len(q.batch) == 0:
		return
	case q.gated:
		q.waiting = append(q.waiting, q.batch...)
		return
	}
	q.submit(q.batch)
}

// submit gives requests to the device. What it does not take fails.
//
// Preconditions: q.post is held.
func (q *qp) submit(wrs []hwWR) {
	n, err := q.hw.postSend(wrs)
	if q.holds {
		q.release(wrs)
	}
	if err != nil {
		q.refuse(wrs[n:], verbs.StatusLocQPOpErr)
		return
	}
	if verbs.State(q.state.Load()) == verbs.StateError {
		q.nudge()
	}
}

// release lets requests complete that were held until they had been posted.
//
// Preconditions: q.post is held.
func (q *qp) release(wrs []hwWR) {
	q.holds = false
	c := q.sendCQ
	c.mu.Lock()
	for i := range wrs {
		q.send.at(uint32(wrs[i].id)).held = false
	}
	q.advance()
	c.added()
	c.unlock()
}

// refuse completes requests that the device was not given.
func (q *qp) refuse(wrs []hwWR, status verbs.Status) {
	if verbs.State(q.state.Load()) == verbs.StateError {
		status = verbs.StatusWRFlushErr
	}
	c := q.sendCQ
	c.mu.Lock()
	for i := range wrs {
		s := q.send.at(uint32(wrs[i].id))
		s.foreign, s.done, s.held, s.status = true, true, false, status
		status = verbs.StatusWRFlushErr
	}
	q.advance()
	c.added()
	c.unlock()
}

// nudge makes the device flush what was posted while the queue pair went to the error state.
func (q *qp) nudge() {
	q.ctl.Lock()
	if !q.gone {
		_ = q.hw.toError()
	}
	q.ctl.Unlock()
}

// open lets requests through that waited for the peer to be ready.
func (q *qp) open() {
	q.post.Lock()
	defer q.post.Unlock()
	if !q.gated {
		return
	}
	q.gated = false
	waiting := q.waiting
	q.waiting = nil
	switch {
	case len(waiting) == 0 || q.closed:
	case verbs.State(q.state.Load()) == verbs.StateError:
		q.refuse(waiting, verbs.StatusWRFlushErr)
	default:
		q.submit(waiting)
	}
}

// PostRecv implements verbs.QP.
func (q *qp) PostRecv(wrs ...verbs.RecvWR) error {
	for i := range wrs {
		if n := len(wrs[i].SGL); n > q.pd.d.attr.MaxSGE {
			return fmt.Errorf("cannot post a receive to QP %d: %d SGEs, %s has %d: %w", q.num, n, q.pd.d.name, q.pd.d.attr.MaxSGE, verbs.ErrInvalid)
		}
	}
	q.post.Lock()
	defer q.post.Unlock()
	if q.closed {
		return fmt.Errorf("cannot post a receive to QP %d: %w", q.num, verbs.ErrClosed)
	}
	if int(q.recv.used.Load())+len(wrs) > int(q.recv.depth) {
		return fmt.Errorf("cannot post %d receives to QP %d: %w", len(wrs), q.num, verbs.ErrQueueFull)
	}
	q.state.CompareAndSwap(uint32(verbs.StateReset), uint32(verbs.StateInit))
	q.recv.used.Add(int32(len(wrs)))
	flush := verbs.State(q.state.Load()) == verbs.StateError
	q.rbatch = q.rbatch[:0]
	for i := range wrs {
		place := q.recv.tail.Load()
		*q.recv.at(place) = slot{id: wrs[i].ID, op: verbs.OpRecv, foreign: flush, done: flush,
			sound: !q.pd.d.quirks.ReceiveStatus || q.writable(wrs[i].SGL)}
		if flush {
			q.recv.at(place).status = verbs.StatusWRFlushErr
		} else {
			q.rbatch = append(q.rbatch, hwRR{id: hwWord(requestID(q.serial, place) | recvBit)})
			r := &q.rbatch[len(q.rbatch)-1]
			r.sges = hwUint(putSGL(&r.sge, wrs[i].SGL))
		}
		q.recv.tail.Store(place + 1)
	}
	if len(q.rbatch) > 0 {
		n, err := q.hw.postRecv(q.rbatch)
		if err != nil {
			q.refuseRecv(q.rbatch[n:])
		}
		if verbs.State(q.state.Load()) == verbs.StateError {
			q.nudge()
		}
	}
	if flush {
		q.refuseRecv(nil)
	}
	return nil
}

// writable reports whether an SGL is of memory that may be written.
func (q *qp) writable(sgl []verbs.SGE) bool {
	for i := range sgl {
		m := q.regionOf(sgl[i].LKey)
		if m == nil || !m.access.Has(verbs.AccessLocalWrite) || !m.covers(sgl[i].Addr, uint64(sgl[i].Length)) {
			return false
		}
	}
	return true
}

// refuseRecv completes receives that the device was not given.
func (q *qp) refuseRecv(wrs []hwRR) {
	c := q.recvCQ
	c.mu.Lock()
	for i := range wrs {
		s := q.recv.at(uint32(wrs[i].id))
		s.foreign, s.done, s.status = true, true, verbs.StatusLocQPOpErr
	}
	q.advanceRecv()
	c.added()
	c.unlock()
}
