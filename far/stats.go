package far

import (
	"sync/atomic"
	"time"
)

// counters are those of the slow paths; those of the fast ones are in the
// shards.
type counters struct {
	fetches, bytesIn, bytesOut         atomic.Uint64
	evacuated, evacuatedClean          atomic.Uint64
	evacuatedSegments, cleanedSegments atomic.Uint64
	cleanedBytes, lost, corrupt        atomic.Uint64
	unreturned, passes                 atomic.Uint64
}

// Stats is what a heap has done since it was made, and how it stands.
type Stats struct {
	Maps       []MapStats
	Classes    []ClassStats     // of objects of pointers; those of freed ones last, by name
	Structures []StructureStats // that exist

	Pointers          int    // that have been made and not freed
	Fetches           uint64 // reads of entries from the store
	BytesIn           uint64 // read from the store
	BytesOut          uint64 // written to the store, by the evacuator and the cleaner
	Evacuated         uint64 // entries written to the store and dropped
	EvacuatedClean    uint64 // entries dropped whose far copy was good
	EvacuatedSegments uint64 // local segments emptied
	CleanedSegments   uint64 // far segments cleaned
	CleanedBytes      uint64 // of BytesOut, moved by that
	Lost              uint64 // entries lost with their far memory
	Corrupt           uint64 // reads that brought other bytes
	Unreturned        uint64 // far segments that the store did not take back
	Passes            uint64 // of the evacuator over objects

	// What prefetching has measured: how much it may have in flight, in bytes,
	// from the rate of what comes in, in bytes a second, and the least time of
	// a read. The latter two are 0 until something was prefetched.
	PrefetchWindow, PrefetchRate int64
	PrefetchLatency              time.Duration

	// Local memory, in bytes: Resident is the sum of Logs, Index, Buffers and
	// Staging, and never exceeds Budget.
	Budget, Resident              int64
	Logs, Index, Buffers, Staging int64
	LocalLive                     int64 // of entries and objects, in the logs
	Free                          int64 // of the logs, in whole segments

	// Far memory. FarLive and FarDead are bytes of what has been written.
	FarSegments      int
	FarLive, FarDead int64
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
}

// Stats returns the statistics. It takes every shard's lock for a moment.
func (h *Heap) Stats() Stats {
	c := &h.count
	s := Stats{
		Fetches:           c.fetches.Load(),
		BytesIn:           c.bytesIn.Load(),
		BytesOut:          c.bytesOut.Load(),
		Evacuated:         c.evacuated.Load(),
		EvacuatedClean:    c.evacuatedClean.Load(),
		EvacuatedSegments: c.evacuatedSegments.Load(),
		CleanedSegments:   c.cleanedSegments.Load(),
		CleanedBytes:      c.cleanedBytes.Load(),
		Lost:              c.lost.Load(),
		Corrupt:           c.corrupt.Load(),
		Unreturned:        c.unreturned.Load(),
		Passes:            c.passes.Load(),
		PrefetchWindow:    h.ahead.inFlight(),
		PrefetchRate:      h.ahead.rate.Load(),
		PrefetchLatency:   time.Duration(h.ahead.latency.Load()),
		Budget:            h.local.Load(),
	}
	for _, m := range *h.maps.Load() {
		s.Maps = append(s.Maps, m.stats())
	}
	s.Classes = h.classStats()
	s.Structures = h.Structures()
	s.Pointers = h.pointers()
	l := &h.logs
	l.mu.Lock()
	for i := range l.segs[:l.top] {
		s.LocalLive += l.segs[i].live.Load()
	}
	s.Logs = int64(l.resident) * int64(l.segSize)
	s.Index = l.index
	s.Free = int64(max(l.available(), 0)) * int64(l.segSize)
	l.mu.Unlock()
	s.Buffers = int64(h.bufs.size)
	s.Staging = 2 * int64(len(h.far.staging))
	s.Resident = s.Logs + s.Index + s.Buffers + s.Staging
	h.far.all(func(f *farSegment) {
		s.FarSegments++
		live := f.live.Load()
		s.FarLive += live
		s.FarDead += f.filled.Load() - live
	})
	return s
}

func (m *ByteMap) stats() MapStats {
	s := MapStats{Name: m.name}
	for i := range m.shards {
		sh := &m.shards[i]
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
		sh.mu.Unlock()
	}
	return s
}
