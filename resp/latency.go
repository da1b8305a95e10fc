package resp

import (
	"fmt"
	"math/bits"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"polder/resp/proto"
	"polder/resp/table"
)

// latency is what LATENCY knows: for every command a histogram of how long it
// took, and the times when something took longer than the threshold. Both count
// time as the slow log does.
type latency struct {
	calls     []histogram  // by command.id
	threshold atomic.Int64 // in milliseconds; 0: no events

	mu     sync.Mutex
	events [numEvents]event // guarded by mu
}

// histogram counts calls: calls[i] those that took less than 1<<i microseconds,
// and are in no bucket before.
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
	eventCommand = iota
	eventFast    // of a command that Redis calls fast
	eventFetch   // from far memory, for the commands of many clients
	numEvents
)

var eventNames = [numEvents]string{"command", "fast-command", "far-fetch"}

// maxSamples is how many seconds in which an event happened are remembered.
const maxSamples = 160

// event is the last times something took long.
type event struct {
	samples []sample // one a second at most, oldest first
	worst   int64    // milliseconds, ever
}

type sample struct{ at, ms int64 } // at is in seconds since 1970

// note adds an event if it took longer than the threshold.
func (l *latency) note(e int, took time.Duration) {
	ms, least := took.Milliseconds(), l.threshold.Load()
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

// observe counts a command that has run: began is when it was first tried.
func (s *session) observe(cmd *table.Command, args [][]byte) {
	s.clock = time.Since(s.srv.since)
	took := s.clock - s.began
	s.srv.latency.calls[cmd.ID].observe(took)
	s.srv.slow.note(s, cmd, args, took)
	e := eventCommand
	if cmd.Flags&table.Fast != 0 {
		e = eventFast
	}
	s.srv.latency.note(e, took)
}

func cmdLatencyLatest(s *session, a [][]byte) error {
	l := &s.srv.latency
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, ev := range l.events {
		if len(ev.samples) > 0 {
			n++
		}
	}
	s.Array(n)
	for i, ev := range l.events {
		if len(ev.samples) == 0 {
			continue
		}
		last := ev.samples[len(ev.samples)-1]
		s.Array(4)
		s.Str(eventNames[i])
		s.Int(last.at)
		s.Int(last.ms)
		s.Int(ev.worst)
	}
	return nil
}

func cmdLatencyHistory(s *session, a [][]byte) error {
	l := &s.srv.latency
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, ev := range l.events {
		if !proto.Is(a[2], eventNames[i]) {
			continue
		}
		s.Array(len(ev.samples))
		for _, smp := range ev.samples {
			s.Array(2)
			s.Int(smp.at)
			s.Int(smp.ms)
		}
		return nil
	}
	s.Array(0)
	return nil
}

func cmdLatencyReset(s *session, a [][]byte) error {
	l := &s.srv.latency
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
	s.Int(n)
	return nil
}

func cmdLatencyHistogram(s *session, a [][]byte) error {
	var list []*table.Command
	add := func(c *table.Command) {
		if s.srv.latency.calls[c.ID].count() > 0 {
			list = append(list, c)
		}
		for _, n := range table.SortedNames(c.Subs) {
			if sub := c.Subs[n]; s.srv.latency.calls[sub.ID].count() > 0 {
				list = append(list, sub)
			}
		}
	}
	if len(a) == 2 {
		for _, n := range table.SortedNames(s.srv.table.By) {
			add(s.srv.table.By[n])
		}
	}
	for _, n := range a[2:] {
		if c := s.srv.table.Full(n); c != nil {
			add(c)
		}
	}
	s.Map(len(list))
	for _, c := range list {
		s.Str(c.Name)
		s.Map(2)
		s.Str("calls")
		type bucket struct{ below, calls int64 } // microseconds, and how many calls took less
		var upTo []bucket
		n := int64(0)
		h := &s.srv.latency.calls[c.ID]
		for i := range h.calls {
			if k := h.calls[i].Load(); k > 0 {
				n += k
				upTo = append(upTo, bucket{1 << i, n})
			}
		}
		s.Int(n)
		s.Str("histogram_usec")
		s.Map(len(upTo))
		for _, b := range upTo {
			s.Int(b.below)
			s.Int(b.calls)
		}
		if err := s.Over(); err != nil {
			return err
		}
	}
	return nil
}

func cmdLatencyDoctor(s *session, a [][]byte) error {
	l := &s.srv.latency
	least := l.threshold.Load()
	if least == 0 {
		s.Verbatim("No events are recorded. CONFIG SET latency-monitor-threshold MILLISECONDS records what takes longer.\n")
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
	fetched := len(l.events[eventFetch].samples) > 0
	l.mu.Unlock()
	switch {
	case b.Len() == 0:
		fmt.Fprintf(&b, "Nothing took %d ms or more.\n", least)
	case fetched:
		b.WriteString("Far memory answers slowly: look at the nodes (polder status), and whether more local memory (CONFIG SET maxmemory) would need fewer fetches.\n")
	default:
		b.WriteString("Far memory was not to blame: SLOWLOG GET names the commands; large values and long pipelines are the likely ones, or a busy machine.\n")
	}
	s.Verbatim(b.String())
	return nil
}
