package far

import (
	"time"

	"polder/far/heap"
)

// Stats is what has happened on a heap since it was made, and its present state.
type Stats struct {
	heap.Stats
	Maps       []MapStats       // those of freed maps come last, one for each name
	Classes    []ClassStats     // of objects; those of freed classes come last, one for each name
	Structures []StructureStats // those not freed

	// LocalHot is an estimate, from a sample, of how many bytes of LocalLive were used of late: entries that the
	// evacuator would keep, and objects used since the evacuator last passed over them.
	LocalHot int64

	// The index of maps has leaves in far memory, for words that its tables have no room for. LeavesFar is how many
	// bytes the leaves take; Settled how often the words of a table were moved to leaves; LeafReads how many reads of
	// leaves there were; Found how many entries the store has looked up in leaves, so that the leaves were not read.
	LeavesFar                 int64
	Settled, LeafReads, Found uint64

	Pointers int // pointers that have been made and not freed
	// What prefetching has measured: PrefetchRate is the rate at which data comes in, in bytes a second, and
	// PrefetchLatency the least time of a read; both are 0 until something was prefetched. PrefetchWindow follows
	// from them: how many bytes prefetching may have in flight.
	PrefetchWindow, PrefetchRate int64
	PrefetchLatency              time.Duration
}

// Stats returns the statistics. It takes every shard's lock for a moment.
func (h *Heap) Stats() Stats {
	s := Stats{
		Stats:          h.core.Stats(),
		PrefetchWindow: h.ahead.InFlight(),
	}
	s.PrefetchRate, s.PrefetchLatency = h.ahead.Measured()
	t := h.maps.Totals()
	s.Maps = t.Maps
	s.LeavesFar, s.Settled, s.LeafReads, s.Found = t.LeavesFar, t.Settled, t.LeafReads, t.Found
	s.LocalHot = h.hot(t.Hot, t.Local, s.LocalLive)
	s.Classes = h.objects.ClassStats()
	s.Structures = h.Structures()
	s.Pointers = h.objects.Pointers()
	return s
}

// sampled is how many pointers Stats looks at to estimate how much of local memory was used of late: see
// bytemap.Totals.
const sampled = 512

// hot estimates how many of the live bytes of local memory were used of late. An estimated local of these bytes are
// entries, and hot of them were used of late; the rest are objects, of which hot looks at a sample. If the sample has
// no local object, hot supposes that objects are used as entries are.
func (h *Heap) hot(hot, local float64, live int64) int64 {
	if part, found := h.objects.Sample(sampled); found > 0 {
		hot += part * max(float64(live)-local, 0)
	} else if local > 0 {
		hot *= float64(live) / local
	}
	return min(int64(hot), live)
}
