package softdev

import (
	"polder/verbs"
	"polder/verbs/softnic"
)

// Pace hands the turns of the device's queue pairs to f, with the lock held,
// instead of taking them before the lock is released. posted says that the host
// gave rise to the turn, and not the engine itself or a packet. See
// softnic.NIC.Pace.
//
// Preconditions: the device is not in use yet.
func (d *Device) Pace(f func(t softnic.Task, posted bool)) {
	d.nic.Pace(func(t softnic.Task) { f(t, !d.inEngine) })
}

// Peek tells what Step would do now, and copies the entries ahead into b. See
// softnic.NIC.Peek and softnic.Task.Ahead.
func (d *Device) Peek(t softnic.Task, b []byte) (w softnic.Work, size int, ok bool) {
	if d.lock() != nil {
		return w, 0, false
	}
	w, ok = d.nic.Peek(t)
	size = t.Ahead(b)
	d.g.mu.Unlock()
	return w, size, ok
}

// Step takes a turn.
func (d *Device) Step(t softnic.Task) {
	if d.lock() != nil {
		return
	}
	d.inEngine = true
	d.nic.Step(t)
	d.inEngine = false
	d.unlock()
}

// Len is how many completions of the queue, one of this package's, can be
// polled.
func Len(v verbs.CQ) int {
	c := v.(*cq)
	c.d.g.mu.Lock()
	defer c.d.g.mu.Unlock()
	if c.closed || c.d.closed {
		return 0
	}
	return c.d.nic.CQLen(c.num)
}
