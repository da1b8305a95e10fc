package rebind

import (
	"time"

	"polder/internal/failpoint"
	"polder/memnode/twolayer"
	"polder/verbs"
)

// Times between the worker's looks at what was freed.
const (
	// Gap is the time between looks while the worker is awake and has little to do. It is long enough that many
	// windows are bound at a time, and bounds what a client that frees now and then costs the node.
	Gap = 50 * time.Microsecond
	// SlowPoll is the time between looks while the worker sleeps, for doorbells that got lost, and the time until it
	// tries again after a batch that could not be bound.
	SlowPoll = time.Second
)

// Doorbells is how many receives each client's queue pair needs: one for a doorbell
// that has come since the worker said that it sleeps, and one for the next.
const Doorbells = 2

// batchSections is the most sections that are looked through for one batch.
const batchSections = 64

// Worker gives what was freed new keys.
type Worker struct {
	backlog // sections with frees

	table  *twolayer.Table
	keys   *keyring
	seen   []uint64 // by section: its count of frees at the last look
	swept  uint32   // the next section of the sweep over all sections; Sections() when there is none
	failed bool     // the last batch could not be bound
	state  uint64   // what the worker's word says
	since  int      // how many grains have got new keys since the last turn

	step func() // if set, is called before the word is changed or looks begin: for tests
}

// New makes a worker, and binds windows over all of the memory that t describes.
func New(dev verbs.Device, mem Memory, t *twolayer.Table) (*Worker, error) {
	keys, err := newKeyring(dev, mem, t)
	if err != nil {
		return nil, err
	}
	return &Worker{
		backlog: newBacklog(t.Sections()), table: t, keys: keys,
		seen: make([]uint64, t.Sections()), swept: t.Sections(),
	}, nil
}

// Close deallocates all windows.
func (w *Worker) Close() error { return w.keys.close() }

// Idle reports whether there is nothing to do for Batch.
func (w *Worker) Idle() bool { return w.empty() }

// Turn looks for what was freed, and returns how soon the next turn must come, unless a doorbell comes or Again says
// so before. Until then, the caller must call Batch unless the worker is Idle.
//
// Preconditions: a new receive has been posted for each doorbell that has come.
func (w *Worker) Turn() (rest time.Duration) {
	w.since = 0
	w.say(false)
	w.sweep()
	w.Look()
	switch {
	case w.failed:
		w.failed = false
		return SlowPoll
	case !w.empty():
		return Gap
	}
	w.say(true)
	if w.Look() {
		w.say(false)
		return Gap
	}
	return SlowPoll
}

// Again reports whether so much was freed that the next turn should come as soon as the worker is Idle: if every lane
// has had something to do, another look is worth it, even if it finds less.
func (w *Worker) Again() bool { return w.since >= lanes }

// say publishes whether the worker sleeps.
func (w *Worker) say(sleeps bool) {
	if (w.state&1 == 1) != sleeps {
		w.stepped()
		w.state++
		w.table.SetWorker(w.state)
	}
}

func (w *Worker) stepped() {
	if w.step != nil {
		w.step()
	}
}

// sweep enqueues the next few sections of a sweep over all sections, which begins when grains could not be bound.
func (w *Worker) sweep() {
	for range min(batchSections, w.table.Sections()-w.swept) {
		w.enqueue(w.swept)
		w.swept++
	}
}

// Look enqueues the sections in which clients have counted a free since the last look, and reports whether there are
// any.
func (w *Worker) Look() (found bool) {
	w.stepped()
	for i := range w.seen {
		if v := w.table.Frees(uint32(i)); v != w.seen[i] {
			w.seen[i] = v
			w.enqueue(uint32(i))
			found = true
		}
	}
	return found
}

// Batch gives one batch of freed grains new keys, from the oldest sections of the backlog: as much as may be bound at
// a time, of at most batchSections sections. It returns how many grains got new keys, and why the others failed;
// those are tried again later.
func (w *Worker) Batch() (n int, err error) {
	full := false
	for i := 0; i < batchSections && !full && !w.empty(); i++ {
		if full = w.keys.collect(w.first()); !full {
			w.dequeue()
		}
	}
	n, err = w.keys.renew()
	w.since += n
	if err != nil {
		w.failed, w.swept = true, 0
		if full {
			w.dequeue()
		}
	}
	return n, err
}

// Rebind gives everything that was freed in a section new keys, and returns how many grains that were.
func (w *Worker) Rebind(section uint32) (n int, err error) {
	for full := true; full; {
		full = w.keys.collect(section)
		done, err := w.keys.renew()
		n += done
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// Backlog is the value that Done will have when everything that has been freed by now has new keys. It looks for
// frees first; clients count a section's frees up before they free there.
func (w *Worker) Backlog() uint64 {
	w.Look()
	return w.end()
}

// Done counts the sections that have left the backlog.
func (w *Worker) Done() uint64 { return w.done }

// CloseIdle closes the spans of a section in which nobody has anything.
func (w *Worker) CloseIdle(section uint32) { w.table.CloseIdle(section, failpoint.Hit) }
