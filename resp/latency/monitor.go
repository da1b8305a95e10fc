package latency

import (
	"fmt"
	"math/bits"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"polder/resp/proto"
	"polder/resp/reply"
	"polder/resp/table"
)

// Monitor is what LATENCY knows: for every command a histogram of how long it took, and when something took as long
// as the threshold or longer. Both count time as the slow log does.
type Monitor struct {
	calls     []histogram  // by table.Command.ID
	Threshold atomic.Int64 // in milliseconds; 0: no events

	mu     sync.Mutex
	events [numEvents]event // guarded by mu
}

// New makes a monitor for so many commands.
func New(commands int) *Monitor { return &Monitor{calls: make([]histogram, commands)} }

// histogram counts calls: calls[i] counts those that took less than 1<<i microseconds and are not in an earlier
// bucket.
type histogram struct{ calls [32]atomic.Int64 }

func (h *histogram) observe(took time.Duration) {
	h.calls[min(bits.Len64(uint64(took.Microseconds())), len(h.calls)-1)].Add(1)
}

func (h *histogram) count() (n int64) {
	for i := range h.calls {
		n += h.calls[i].Load()
	}
	return n
}

// The events that LATENCY tells apart.
const (
	EventCommand = iota
	EventFast    // of a command that Redis calls fast
	EventFetch   // from far memory, for the commands of many clients
	numEvents
)

var eventNames = [numEvents]string{"command", "fast-command", "far-fetch"}

// maxSamples is how many samples of an event are remembered, each of a second in which the event happened.
const maxSamples = 160

// event has the last times when something took long.
type event struct {
	samples []sample // at most one for each second, oldest first
	worst   int64    // the longest ever, in milliseconds
}

type sample struct{ at, ms int64 } // at is in seconds since 1970

// Note adds an event if it took as long as the threshold or longer.
func (l *Monitor) Note(e int, took time.Duration) {
	ms, least := took.Milliseconds(), l.Threshold.Load()
	if least == 0 || ms < least {
		return
	}
	now := time.Now().Unix()
	l.mu.Lock()
	defer l.mu.Unlock()
	ev := &l.events[e]
	ev.worst = max(ev.worst, ms)
	if n := len(ev.samples); n > 0 && ev.samples[n-1].at == now {
		ev.samples[n-1].ms = max(ev.samples[n-1].ms, ms)
		return
	}
	if len(ev.samples) == maxSamples {
		ev.samples = ev.samples[:copy(ev.samples, ev.samples[1:])]
	}
	ev.samples = append(ev.samples, sample{now, ms})
}

// Observe counts a command that took so long. id is its place in the table; fast says whether Redis calls it fast.
func (l *Monitor) Observe(id int, fast bool, took time.Duration) {
	l.calls[id].observe(took)
	e := EventCommand
	if fast {
		e = EventFast
	}
	l.Note(e, took)
}

// Calls is how many commands were counted.
func (l *Monitor) Calls() (n int64) {
	for i := range l.calls {
		n += l.calls[i].count()
	}
	return n
}

// Latest replies to LATENCY LATEST.
func (l *Monitor) Latest(w *reply.Writer, a [][]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, ev := range l.events {
		if len(ev.samples) > 0 {
			n++
		}
	}
	w.Array(n)
	for i, ev := range l.events {
		if len(ev.samples) == 0 {
			continue
		}
		last := ev.samples[len(ev.samples)-1]
		w.Array(4)
		w.Str(eventNames[i])
		w.Int(last.at)
		w.Int(last.ms)
		w.Int(ev.worst)
	}
	return nil
}

// History replies to LATENCY HISTORY.
func (l *Monitor) History(w *reply.Writer, a [][]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, ev := range l.events {
		if !proto.Is(a[2], eventNames[i]) {
			continue
		}
		w.Array(len(ev.samples))
		for _, smp := range ev.samples {
			w.Array(2)
			w.Int(smp.at)
			w.Int(smp.ms)
		}
		return nil
	}
	w.Array(0)
	return nil
}

// Reset replies to LATENCY RESET.
func (l *Monitor) Reset(w *reply.Writer, a [][]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := int64(0)
	for i := range l.events {
		named := len(a) == 2
		for _, name := range a[2:] {
			named = named || proto.Is(name, eventNames[i])
		}
		if named && len(l.events[i].samples) > 0 {
			l.events[i] = event{}
			n++
		}
	}
	w.Int(n)
	return nil
}

// Histogram replies to LATENCY HISTOGRAM, for the commands of a table.
func (l *Monitor) Histogram(t *table.Table, w *reply.Writer, a [][]byte) error {
	var list []*table.Command
	add := func(c *table.Command) {
		if l.calls[c.ID].count() > 0 {
			list = append(list, c)
		}
		for _, n := range table.SortedNames(c.Subs) {
			if sub := c.Subs[n]; l.calls[sub.ID].count() > 0 {
				list = append(list, sub)
			}
		}
	}
	if len(a) == 2 {
		for _, n := range table.SortedNames(t.By) {
			add(t.By[n])
		}
	}
	for _, n := range a[2:] {
		if c := t.Full(n); c != nil {
			add(c)
		}
	}
	w.Map(len(list))
	for _, c := range list {
		w.Str(c.Name)
		w.Map(2)
		w.Str("calls")
		type bucket struct{ below, calls int64 } // how many calls took less than below, in microseconds
		var upTo []bucket
		n := int64(0)
		h := &l.calls[c.ID]
		for i := range h.calls {
			if k := h.calls[i].Load(); k > 0 {
				n += k
				upTo = append(upTo, bucket{1 << i, n})
			}
		}
		w.Int(n)
		w.Str("histogram_usec")
		w.Map(len(upTo))
		for _, b := range upTo {
			w.Int(b.below)
			w.Int(b.calls)
		}
		if err := w.Over(); err != nil {
			return err
		}
	}
	return nil
}

// Doctor replies to LATENCY DOCTOR.
func (l *Monitor) Doctor(w *reply.Writer, a [][]byte) error {
	least := l.Threshold.Load()
	if least == 0 {
		w.Verbatim("No events are recorded. CONFIG SET latency-monitor-threshold MILLISECONDS records what takes longer.\n")
		return nil
	}
	var b strings.Builder
	l.mu.Lock()
	for i, ev := range l.events {
		if len(ev.samples) == 0 {
			continue
		}
		sum := int64(0)
		for _, smp := range ev.samples {
			sum += smp.ms
		}
		fmt.Fprintf(&b, "%s: %d seconds in which it took %d ms or more, %d ms on average, %d ms at worst.\n",
			eventNames[i], len(ev.samples), least, sum/int64(len(ev.samples)), ev.worst)
	}
	fetched := len(l.events[EventFetch].samples) > 0
	l.mu.Unlock()
	switch {
	case b.Len() == 0:
		fmt.Fprintf(&b, "Nothing took %d ms or more.\n", least)
	case fetched:
		b.WriteString("Far memory answers slowly: look at the nodes (polder status), and whether more local memory (CONFIG SET maxmemory) would need fewer fetches.\n")
	default:
		b.WriteString("Far memory was not to blame: SLOWLOG GET names the commands; large values and long pipelines are the likely ones, or a busy machine.\n")
	}
	w.Verbatim(b.String())
	return nil
}
