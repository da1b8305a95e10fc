package bytemap

import "polder/far/heap"

// Totals is what the maps of a heap have done, and how they stand.
type Totals struct {
	Maps []Stats // freed maps last, by name

	// Local is an estimate of the bytes of local entries, and Hot of the bytes of those local entries that the
	// evacuator would keep, since they were used of late.
	Local, Hot float64

	LeavesFar                 int64  // bytes of leaves in far memory
	Settled, LeafReads, Found uint64 // tables that were settled; reads of leaves; entries that the store has found
}

// Totals returns the statistics. It takes every shard's lock for a moment.
func (h *Maps) Totals() (t Totals) {
	for _, m := range *h.maps.Load() {
		if !m.freed.Load() {
			t.Maps = append(t.Maps, m.stats(&t))
		}
	}
	h.mu.Lock()
	for name, st := range h.past.All() {
		st.Name = name
		t.Maps = append(t.Maps, st)
	}
	h.mu.Unlock()
	t.Settled, t.LeafReads, t.Found = h.settled.Load(), h.leafReads.Load(), h.found.Load()
	h.core.Far.All(func(f *heap.FarSegment) {
		if f.HasPages() {
			t.LeavesFar += f.Live.Load()
		}
	})
	return t
}

// StatsOf returns the statistics of one map.
func StatsOf(m *Map) Stats { return m.stats(new(Totals)) }

// Stats is what one map has done and how it stands.
type Stats struct {
	Name       string
	Entries    int
	LostNow    int    // lost entries that have been neither set nor deleted
	Hits       uint64 // reads served locally at once
	Misses     uint64 // calls that needed a far entry
	Absent     uint64 // reads of keys that were not there
	Coalesced  uint64 // misses that joined somebody else's fetch
	Prefetched uint64 // keys that Prefetch found far; a read that follows is a hit
	Sets       uint64
	Deletes    uint64
	Expired    uint64
	Computed   uint64 // entries that the store has looked through, for Aggregate and Count
}

// Add adds o to s, so that maps of one name count as one.
func (s *Stats) Add(o *Stats) {
	s.Entries += o.Entries
	s.LostNow += o.LostNow
	s.Hits += o.Hits
	s.Misses += o.Misses
	s.Absent += o.Absent
	s.Coalesced += o.Coalesced
	s.Prefetched += o.Prefetched
	s.Sets += o.Sets
	s.Deletes += o.Deletes
	s.Expired += o.Expired
	s.Computed += o.Computed
}

// stats returns the statistics of m, and adds to t what is local of m.
func (m *Map) stats(t *Totals) Stats {
	s := Stats{Name: m.name, Computed: m.computed.Load()}
	for i := range m.shards() {
		sh := m.at(i)
		sh.mu.Lock()
		n := &sh.count
		s.Add(&Stats{Entries: sh.entries, LostNow: sh.lost, Hits: n.hits, Misses: n.misses, Absent: n.absent, Coalesced: n.coalesced,
			Prefetched: n.prefetched, Sets: n.sets, Deletes: n.deletes, Expired: n.expired})
		local, hot := sh.t.Sample(max(sampled/m.h.shards, 1))
		t.Local, t.Hot = t.Local+local, t.Hot+hot
		sh.mu.Unlock()
	}
	return s
}

// sampled is how many buckets of a map's index Totals looks at to estimate how much of what is local was used of
// late. The estimate is off by a few per cent; looking at all buckets would hold up whoever uses the maps.
const sampled = 2048
