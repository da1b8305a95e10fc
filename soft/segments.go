package soft

import "errors"

// segmentList says where each segment is. It is guarded by Heap.mu.
//
// A segment is in exactly one place: free, open (an appender has it), young
// (sealed, written by appenders), old (sealed, written by the evacuator),
// taken by the evacuator, or away (not granted). The lists young and old are
// in the order in which they were sealed.
type segmentList struct {
	state  []segmentState
	end    []uint32 // where a sealed segment's log ends, in bytes
	free   []uint32
	young  queue
	old    queue
	counts [segmentStates]int
	target int // how many segments the heap should have
}

type segmentState uint8

const (
	segAway segmentState = iota
	segFree
	segOpen
	segYoung
	segOld
	segTaken
	segmentStates
)

func (l *segmentList) init(n, granted int) {
	l.state = make([]segmentState, n)
	l.end = make([]uint32, n)
	l.counts[segAway] = n - granted
	l.counts[segFree] = granted
	l.target = granted
	for i := range granted {
		l.state[i] = segFree
	}
}

func (l *segmentList) granted() int { return len(l.state) - l.counts[segAway] }

func (l *segmentList) set(seg uint32, s segmentState) {
	l.counts[l.state[seg]]--
	l.state[seg] = s
	l.counts[s]++
}

// popFree takes a free segment, leaving at least keep behind.
func (l *segmentList) popFree(keep int) (uint32, bool) {
	n := len(l.free)
	if n <= keep {
		return 0, false
	}
	seg := l.free[n-1]
	l.free = l.free[:n-1]
	l.set(seg, segOpen)
	return seg, true
}

func (l *segmentList) pushFree(seg uint32) {
	l.set(seg, segFree)
	l.free = append(l.free, seg)
}

// queue is a FIFO of segments from which any one can be struck out.
type queue struct {
	items []uint32
	head  int
}

func (q *queue) push(seg uint32) {
	if q.head > 1024 && q.head > len(q.items)/2 {
		q.items = append(q.items[:0], q.items[q.head:]...)
		q.head = 0
	}
	q.items = append(q.items, seg)
}

func (q *queue) len() int { return len(q.items) - q.head }

// each visits the queue from its oldest segment until f returns false.
func (q *queue) each(f func(seg uint32) bool) {
	for _, seg := range q.items[q.head:] {
		if !f(seg) {
			return
		}
	}
}

// pop takes the oldest segment.
func (q *queue) pop() (uint32, bool) {
	if q.len() == 0 {
		return 0, false
	}
	seg := q.items[q.head]
	q.head++
	return seg, true
}

// remove strikes a segment out, wherever it is.
func (q *queue) remove(seg uint32) bool {
	for i := q.head; i < len(q.items); i++ {
		if q.items[i] == seg {
			q.items = append(q.items[:i], q.items[i+1:]...)
			return true
		}
	}
	return false
}

// resize makes the heap have n segments.
func (h *Heap) resize(n int) error {
	for seg := range uint32(h.n) {
		h.mu.Lock()
		if h.list.granted() >= n {
			h.mu.Unlock()
			break
		}
		if h.list.state[seg] == segAway && h.ctl.Grant(seg) {
			h.list.pushFree(seg)
		}
		h.mu.Unlock()
	}
	var failed error
	err := h.giveBack(n, func(seg uint32) bool {
		failed = h.discard(seg)
		return failed == nil
	})
	return errors.Join(err, failed)
}

// giveBack revokes segments until the heap has at most n, but never fewer than minSegments. When no free segment is
// left to revoke, it has the evacuator empty one. It passes each segment that it has revoked to released, and stops
// early if released returns false.
func (h *Heap) giveBack(n int, released func(seg uint32) bool) error {
	n = max(n, minSegments)
	for {
		h.mu.Lock()
		if h.list.granted() <= n {
			h.mu.Unlock()
			return nil
		}
		seg, ok := h.list.popFree(1)
		if ok {
			h.list.set(seg, segAway)
		}
		h.mu.Unlock()
		if !ok {
			if err := h.evac.collectOne(); err != nil {
				return err
			}
			continue
		}
		if h.ctl.Revoke(seg) && !released(seg) {
			return nil
		}
	}
}

// takeGranted puts the segments that a coordinator has granted on the free list.
func (h *Heap) takeGranted() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for seg := range uint32(h.n) {
		if h.list.state[seg] == segAway && h.ctl.Granted(seg) {
			h.huge[seg].Store(false)
			h.list.pushFree(seg)
		}
	}
}
