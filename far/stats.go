package far

import (
	"time"

	"polder/far/heap"
)

// Stats is what a heap has done since it was made, and how it stands.
type Stats struct {
	heap.Stats
	Maps       []MapStats       // those of freed ones last, by name
	Classes    []ClassStats     // of objects of pointers; those of freed ones last, by name
	Structures []StructureStats // that exist

	// LocalHot is how many bytes of LocalLive were used of late, by a sample: entries
	// that the evacuator would keep, and objects used since it last passed over them.
	LocalHot int64

	// Of what is known of the entries of maps: bytes of leaves in far memory, where words go that
	// tables have no room for; how often the words of a table were settled in leaves; reads of leaves; entries that
	// the store has found by them, so that they were not read.
	LeavesFar                 int64
	Settled, LeafReads, Found uint64

	Pointers int // that have been made and not freed
	// What prefetching has measured: how much it may have in flight, in bytes,
	// from the rate of what comes in, in bytes a second, and the least time of
	// a read. The latter two are 0 until something was prefetched.
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

// sampled is how many pointers Stats looks at to say how much of what is local was used of late: see bytemap.Totals.
const sampled = 512

// hot estimates the bytes of local memory that were used of late, of live in all, of which local are entries, and of these
// some hot.
func (h *Heap) hot(hot, local float64, live int64) int64 {
	if part, found := h.objects.Sample(sampled); found > 0 {
		hot += part * max(float64(live)-local, 0)
	} else if local > 0 {
		hot *= float64(live) / local
	}
	return min(int64(hot), live)
}
