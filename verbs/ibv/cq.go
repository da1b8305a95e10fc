//go:build ibverbs

package ibv

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"polder/verbs"
)

// cq implements verbs.CQ over a completion queue of the device's and a stash of
// completions that have been taken from it and not yet been polled.
type cq struct {
	d    *device
	num  uint32
	init verbs.CQInit
	hw   hwCQ
	done chan struct{} // closed by Close

	mu       sync.Mutex
	closed   bool            // guarded by mu
	users    int             // guarded by mu: queue pairs, twice if both their queues complete here
	qps      map[uint32]*qp  // guarded by mu: by serial number
	latest   *qp             // guarded by mu: that qpOf returned
	stash    []verbs.WC      // guarded by mu
	from     int             // guarded by mu: stash[:from] have been polled
	raw      [pollBatch]hwWC // guarded by mu
	results  []result        // guarded by mu: results of relays, to be handed over
	awaited  map[*cq]int     // guarded by mu: queues where relays for this queue complete
	watching bool            // guarded by mu: watcher runs
	waiting  chan struct{}   // guarded by mu: closed when there may be something to poll; nil if nobody waits
	watcher  *watcher        // guarded by mu
	fresh    bool            // guarded by mu: completions came since the handler was called
	looks    uint64          // guarded by mu: how often the device's queue was looked into
	relays   int             // guarded by mu: requests of other queue pairs' that complete here
	gap      time.Duration   // guarded by mu: between arrivals, averaged
	last     time.Duration   // guarded by mu: of the last arrival, by clock
}

// Adaptive polling. Under load the next completion is a few microseconds away,
// and going to sleep costs more than that. At rest it is not, and nobody polls:
// an arrival that is further away than spinMost has the poller sleep at once,
// until arrivals are dense again.
const (
	spinMost = 50 * time.Microsecond
	// restingGap is what an interval counts for at most in the average, so
	// that one pause is soon made up for.
	restingGap = 4 * spinMost
	// pollTries is how often the device's queue is looked into by one call
	// of C under load: a microsecond or two. To come back from C and go there
	// again takes as long as several looks, in which nobody looks.
	pollTries = 128
)

// slack is the room in the device's queue for completions that the driver asks
// for and nobody sees: two of every queue pair that posts without asking for
// any, and those of binds.
const slack = 256

// CreateCQ implements verbs.Device.
func (d *device) CreateCQ(init verbs.CQInit) (verbs.CQ, error) {
	c, err := d.createCQ(init)
	if err != nil {
		return nil, fmt.Errorf("cannot create a CQ: %w", err)
	}
	return c, nil
}

func (d *device) createCQ(init verbs.CQInit) (*cq, error) {
	most := d.caps.maxCQE - slack
	switch {
	case init.Depth < 1 || init.Depth > most:
		return nil, fmt.Errorf("a depth of %d, want 1 to %d: %w", init.Depth, most, verbs.ErrInvalid)
	case init.IgnoreOverrun:
		return nil, fmt.Errorf("%s cannot ignore overruns: that is for WAIT, which it has not: %w", d.name, verbs.ErrInvalid)
	}
	if err := d.stay(); err != nil {
		return nil, err
	}
	defer d.life.RUnlock()
	hw, err := hwCreateCQ(d.ctx, init.Depth+slack)
	if err != nil {
		return nil, err
	}
	c := &cq{
		d: d, num: d.nextCQ.Add(1), init: init, hw: hw, gap: restingGap,
		done: make(chan struct{}), qps: make(map[uint32]*qp), awaited: make(map[*cq]int),
	}
	d.mu.Lock()
	d.cqs[c] = struct{}{}
	d.mu.Unlock()
	if init.Handler != nil {
		c.mu.Lock()
		err = c.watch()
		c.mu.Unlock()
		if err != nil {
			c.close()
			return nil, err
		}
	}
	return c, nil
}

// Num implements verbs.CQ.
func (c *cq) Num() uint32 { return c.num }

// Poll implements verbs.CQ.
//
// Hot path.
func (c *cq) Poll(wcs []verbs.WC) int {
	c.mu.Lock()
	n := c.pop(wcs)
	if n < len(wcs) && !c.closed {
		c.reap()
		n += c.pop(wcs[n:])
	}
	c.unlock()
	return n
}

// pop moves completions from the stash to wcs.
func (c *cq) pop(wcs []verbs.WC) int {
	n := copy(wcs, c.stash[c.from:])
	if c.from += n; c.from == len(c.stash) {
		c.stash, c.from = c.stash[:0], 0
	}
	return n
}

func (c *cq) stashed() int { return len(c.stash) - c.from }

// reap takes one batch of completions from the device and from the queues where relays complete. It reports whether
// anything came to the stash or may soon.
//
// Preconditions: c.mu is held, and c is open.
func (c *cq) reap() bool {
	before := len(c.stash)
	n := c.hw.poll(c.raw[:], c.tries())
	for i := range c.raw[:n] {
		w := &c.raw[i]
		if q := c.qpOf(serialOf(uint64(w.id))); q != nil {
			q.completed(w)
		} // or it was destroyed: its unfinished requests give no completion
	}
	return n == len(c.raw) || len(c.stash) > before
}

// qpOf returns the queue pair that a completion is of, or nil.
func (c *cq) qpOf(serial uint32) *qp {
	if c.latest == nil || c.latest.serial != serial {
		c.latest = c.qps[serial]
	}
	return c.latest
}

// push puts a completion into the stash. What does not fit is an overrun.
func (c *cq) push(wc verbs.WC) {
	if c.stashed() >= c.init.Depth {
		c.overrunLocked()
		return
	}
	if c.from > 0 && len(c.stash) == cap(c.stash) {
		c.stash = c.stash[:copy(c.stash, c.stash[c.from:])]
		c.from = 0
	}
	c.stash, c.fresh = append(c.stash, wc), true
}

// epoch is what clock counts from. Reading the monotonic clock alone takes half
// as long as time.Now does.
var epoch = time.Now()

func clock() time.Duration { return time.Since(epoch) }

// arrived keeps the average of gaps between arrivals.
func (c *cq) arrived() {
	now := clock()
	gap := min(now-c.last, restingGap)
	c.last = now
	c.gap += (gap - c.gap) / 4
}

// tries is how often to look into the device's queue at a time: under load, it
// is likely that something is about to come.
func (c *cq) tries() int {
	if c.gap > spinMost {
		return 1
	}
	return pollTries
}

// spin is for how long it pays to poll before sleeping.
func (c *cq) spin() time.Duration {
	if c.gap > spinMost {
		return 0
	}
	return 2 * c.gap
}

// overrun ends every queue pair that completes here: completions were lost.
func (c *cq) overrun() {
	c.mu.Lock()
	c.overrunLocked()
	c.mu.Unlock()
}

func (c *cq) overrunLocked() {
	for _, q := range c.qps {
		q.fail(verbs.EventCQErr)
	}
}

// unlock releases the lock, wakes the waiters if there is something to poll, and hands the results of relays over to
// the queues that they belong to.
func (c *cq) unlock() {
	results := c.results
	c.results = nil
	c.wakeLocked()
	c.mu.Unlock()
	for _, r := range results {
		r.deliver((*mw).revoke)
	}
}

func (c *cq) wakeLocked() {
	if c.waiting != nil && c.stashed() > 0 {
		close(c.waiting)
		c.waiting = nil
	}
}

// added tells waiters and the handler of completions that did not come from the device's queue.
//
// Preconditions: c.mu is held.
func (c *cq) added() {
	c.wakeLocked()
	if c.init.Handler != nil && c.fresh {
		c.watcher.wake()
	}
}

// Wait implements verbs.CQ.
func (c *cq) Wait(ctx context.Context) error {
	if err := c.wait(ctx); err != nil {
		return fmt.Errorf("cannot wait for completions: %w", err)
	}
	return nil
}

func (c *cq) wait(ctx context.Context) error {
	begun := time.Duration(-1)
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return verbs.ErrClosed
		}
		if c.stashed() > 0 || c.reap() {
			found := c.stashed() > 0
			if found {
				c.arrived()
			}
			c.unlock()
			if found {
				return nil
			}
			continue
		}
		if spin := c.spin(); spin > 0 {
			now := clock()
			if begun < 0 {
				begun = now
			}
			if now-begun < spin {
				c.unlock()
				c.reapAwaited()
				runtime.Gosched()
				continue
			}
		}
		if err := c.watch(); err != nil {
			c.unlock()
			return err
		}
		if err := c.hw.arm(); err != nil {
			c.unlock()
			return err
		}
		if c.reap() { // it came before it was asked for
			c.unlock()
			continue
		}
		if c.waiting == nil {
			c.waiting = make(chan struct{})
		}
		waiting := c.waiting
		c.unlock()
		select {
		case <-waiting:
		case <-c.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reapAwaited polls where relays of queue pairs that complete here complete.
func (c *cq) reapAwaited() {
	c.mu.Lock()
	var other *cq
	for other = range c.awaited {
		break
	}
	c.mu.Unlock()
	if other == nil {
		return
	}
	other.mu.Lock()
	if !other.closed {
		other.reap()
		other.added()
	}
	other.unlock()
}

// watch starts the goroutine that waits for the device's events, once.
//
// Preconditions: c.mu is held.
func (c *cq) watch() error {
	if c.watching {
		return nil
	}
	w, err := watch(c.hw.fd(), c.hw.event)
	if err != nil {
		return err
	}
	c.watching, c.watcher = true, w
	c.d.watchers.Add(1) // before Close can wait: the queue is open
	go c.serve(w)
	return nil
}

// serve waits for events until the queue is closed, and then destroys it.
func (c *cq) serve(w *watcher) {
	defer c.d.watchers.Done()
	for {
		c.drain()
		if err := w.wait(); err != nil {
			// Nothing else looks at the queue: it is closed.
			_ = c.hw.destroy()
			return
		}
	}
}

// drain takes the completions that have come, calls the handler or wakes waiters, and goes on until nothing more
// comes although the device was asked to raise an event.
func (c *cq) drain() {
	armed := false
	idle := time.Duration(-1) // since when nothing has come
	for {
		c.mu.Lock()
		if c.closed {
			c.unlock()
			return
		}
		more := c.reap()
		fresh := c.fresh
		if c.fresh = false; fresh {
			c.arrived()
		}
		c.wakeLocked()
		wanted := c.init.Handler != nil || c.waiting != nil || c.relays > 0
		spin := c.spin()
		if !more && !fresh && !armed && wanted {
			now := clock()
			if idle < 0 {
				idle = now
			}
			if spin == 0 || now-idle >= spin {
				armed = c.hw.arm() == nil
			}
			c.unlock()
			runtime.Gosched()
			continue
		}
		c.unlock()
		if !more && !fresh {
			return
		}
		armed, idle = false, -1
		if fresh && c.init.Handler != nil {
			c.init.Handler(c)
		}
	}
}

// Close implements verbs.CQ.
func (c *cq) Close() error { return c.d.closing(c.close) }

func (c *cq) close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	if c.users > 0 {
		c.mu.Unlock()
		return fmt.Errorf("cannot close a CQ that %d queues complete into: %w", c.users, verbs.ErrBusy)
	}
	c.closed = true
	close(c.done)
	w := c.watcher
	c.mu.Unlock()
	c.d.mu.Lock()
	delete(c.d.cqs, c)
	c.d.mu.Unlock()
	if w != nil {
		w.hangUp() // whose goroutine destroys the queue: it may be this very one
		return nil
	}
	if err := c.hw.destroy(); err != nil {
		return fmt.Errorf("cannot close a CQ: %w", err)
	}
	return nil
}
