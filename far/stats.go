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

// MapStats is what one map has done and how it stands.
type MapStats struct {
	Name       string
	Entries    int
	LostNow    int    // lost entries that have been neither set nor deleted
	Hits       uint64 // reads served locally at once
	Misses     uint64 // calls that needed a far entry
	Absent     uint64 // reads of keys that were not there
	Coalesced  uint64 // misses that joined somebody else's fetch
	Prefetched uint64 // keys that Fetch found far; a read that follows is a hit
	Sets       uint64
	Deletes    uint64
	Expired    uint64
	Computed   uint64 // entries that the store has looked through, for Aggregate and Count
}

// Stats returns the statistics. It takes every shard's lock for a moment.
func (h *Heap) Stats() Stats {
	s := Stats{
		Stats:           h.core.Stats(),
		PrefetchWindow:  h.ahead.inFlight(),
		PrefetchRate:    h.ahead.rate.Load(),
		PrefetchLatency: time.Duration(h.ahead.latency.Load()),
	}
	var t temperature
	for _, m := range *h.maps.Load() {
		if !m.freed.Load() {
			s.Maps = append(s.Maps, m.stats(&t))
		}
	}
	h.mu.Lock()
	for name, st := range h.pastMaps.All() {
		st.Name = name
		s.Maps = append(s.Maps, st)
	}
	h.mu.Unlock()
	s.LocalHot = h.hot(t, s.LocalLive)
	s.Classes = h.objects.ClassStats()
	s.Structures = h.Structures()
	s.Pointers = h.objects.Pointers()
	s.Settled = h.settled.Load()
	s.LeafReads = h.leafReads.Load()
	s.Found = h.found.Load()
	h.core.Far.All(func(f *heap.FarSegment) {
		if f.HasPages() {
			s.LeavesFar += f.Live.Load()
		}
	})
	return s
}

// stats also adds what is local of m to t.
func (m *ByteMap) stats(t *temperature) MapStats {
	s := MapStats{Name: m.name, Computed: m.computed.Load()}
	for i := range m.shards() {
		sh := m.at(i)
		sh.mu.Lock()
		s.Entries += sh.entries
		s.LostNow += sh.lost
		s.Hits += sh.count.hits
		s.Misses += sh.count.misses
		s.Absent += sh.count.absent
		s.Coalesced += sh.count.coalesced
		s.Prefetched += sh.count.prefetched
		s.Sets += sh.count.sets
		s.Deletes += sh.count.deletes
		s.Expired += sh.count.expired
		sh.sample(t, max(sampled/m.h.shards, 1))
		sh.mu.Unlock()
	}
	return s
}
