package daemon

import (
	"strconv"

	"polder/far"
	"polder/pool"
	"polder/resp"
)

// extraStats are the lines of POLDER STATS about the heap and the pool.
func extraStats(h far.Stats, p pool.Stats) []resp.Stat {
	var list []resp.Stat
	add := func(name string, n int64) {
		list = append(list, resp.Stat{Name: name, Value: strconv.FormatInt(n, 10)})
	}
	var hits, misses, coalesced uint64
	lostNow := 0
	for _, m := range h.Maps {
		hits += m.Hits - min(m.Prefetched, m.Hits) // a hit on a prefetched entry counts as a miss
		misses += m.Misses
		coalesced += m.Coalesced
		lostNow += m.LostNow
	}
	add("local_budget_bytes", h.Budget)
	add("local_resident_bytes", h.Resident)
	add("local_live_bytes", h.LocalLive)
	add("local_index_bytes", h.Index)
	add("local_hits", int64(hits))
	add("far_misses", int64(misses))
	add("far_misses_coalesced", int64(coalesced))
	add("far_fetches", int64(h.Fetches))
	add("far_read_bytes", int64(h.BytesIn))
	add("far_written_bytes", int64(h.BytesOut))
	add("far_segments", int64(h.FarSegments))
	add("far_live_bytes", h.FarLive)
	add("far_dead_bytes", h.FarDead)
	add("evacuated_entries", int64(h.Evacuated))
	add("lost_entries", int64(h.Lost))
	add("lost_entries_now", int64(lostNow))
	add("corrupt_reads", int64(h.Corrupt))
	up := 0
	for _, n := range p.Nodes {
		if n.State == "up" {
			up++
		}
	}
	add("nodes", int64(len(p.Nodes)))
	add("nodes_up", int64(up))
	return list
}
