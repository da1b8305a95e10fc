package softdev

import (
	"polder/verbs"
	"polder/verbs/softnic"
)

// Pace calls f, with the lock held, for each queue pair that has something to do, instead of doing it before the lock
// is released. posted says that the host caused it, and not the engine itself or a packet. See softnic.NIC.Pace.
//
// Preconditions: the device is not in use yet.
func (d *Device) Pace(f func(t softnic.Task, posted bool)) {
	d.nic.Pace(func(t softnic.Task) { f(t, !d.inEngine) })
}

// Peek tells what there is to do, and copies the entries ahead into b. See
// softnic.NIC.Peek and softnic.Task.Ahead.
func (d *Device) Peek(t softnic.Task, b []byte) (o softnic.Owed, next softnic.Next, size int) {
	if d.lock() != nil {
		return o, next, 0
	}
	o, next = d.nic.Peek(t)
	size = t.Ahead(b)
	d.g.mu.Unlock()
	return o, next, size
}

// Respond sends one packet. See softnic.NIC.Respond.
func (d *Device) Respond(t softnic.Task) {
	if d.lock() != nil {
		return
	}
	d.inEngine = true
	d.nic.Respond(t)
	d.inEngine = false
	d.unlock()
}

// Execute executes one request. See softnic.NIC.Execute.
func (d *Device) Execute(t softnic.Task) {
	if d.lock() != nil {
		return
	}
	d.inEngine = true
	d.nic.Execute(t)
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
