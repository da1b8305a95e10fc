// Package prom shows the statistics of a far heap to Prometheus. It is a package of its
// own so that programs that use package far need not link Prometheus.
package prom

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"polder/far"
	"polder/far/heap"
)

// metric is one Prometheus series of a heap, read from its Stats.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*far.Stats) float64
}

// mapMetric is the same of each map.
type mapMetric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*far.MapStats) float64
}

// classMetric is the same of each class.
type classMetric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*far.ClassStats) float64
}

// structureMetric is the same of each data structure.
type structureMetric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*far.StructureStats) float64
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("polder_far_"+name, help, labels, nil)
}

func counterOf[S any](of func(*S) uint64) func(*S) float64 {
	return func(s *S) float64 { return float64(of(s)) }
}

func gaugeOf[S any](of func(*S) int64) func(*S) float64 {
	return func(s *S) float64 { return float64(of(s)) }
}

const (
	isCounter = prometheus.CounterValue
	isGauge   = prometheus.GaugeValue
)

var metrics = []metric{
	{describe("fetches_total", "Reads of entries from far memory."), isCounter, counterOf(func(s *far.Stats) uint64 { return s.Fetches })},
	{describe("read_bytes_total", "Bytes read from far memory."), isCounter, counterOf(func(s *far.Stats) uint64 { return s.BytesIn })},
	{describe("written_bytes_total", "Bytes written to far memory."), isCounter, counterOf(func(s *far.Stats) uint64 { return s.BytesOut })},
	{describe("evacuated_entries_total", "Entries written to far memory and dropped here."), isCounter, counterOf(func(s *far.Stats) uint64 { return s.Evacuated })},
	{describe("evacuated_clean_entries_total", "Entries dropped here without being written, since their far copy was good."), isCounter, counterOf(func(s *far.Stats) uint64 { return s.EvacuatedClean })},
	{describe("evacuated_segments_total", "Local segments emptied."), isCounter, counterOf(func(s *far.Stats) uint64 { return s.EvacuatedSegments })},
	{describe("cleaned_segments_total", "Far segments cleaned."), isCounter, counterOf(func(s *far.Stats) uint64 { return s.CleanedSegments })},
	{describe("cleaned_bytes_total", "Bytes moved by cleaning."), isCounter, counterOf(func(s *far.Stats) uint64 { return s.CleanedBytes })},
	{describe("lost_entries_total", "Entries lost with their far memory."), isCounter, counterOf(func(s *far.Stats) uint64 { return s.Lost })},
	{describe("corrupt_reads_total", "Reads that brought other bytes than were written."), isCounter, counterOf(func(s *far.Stats) uint64 { return s.Corrupt })},
	{describe("unreturned_segments_total", "Far segments that the store did not take back."), isCounter, counterOf(func(s *far.Stats) uint64 { return s.Unreturned })},
	{describe("local_budget_bytes", "Budget of local memory (--local)."), isGauge, gaugeOf(func(s *far.Stats) int64 { return s.Budget })},
	{describe("local_resident_bytes", "Local memory that the heap has resident, of its budget."), isGauge, gaugeOf(func(s *far.Stats) int64 { return s.Resident })},
	{describe("local_fillable_bytes", "Local memory that can be filled at once. While it is 0, writers wait for the evacuator."), isGauge, gaugeOf(func(s *far.Stats) int64 { return s.Free })},
	{describe("segments", "Far segments in use."), isGauge, gaugeOf(func(s *far.Stats) int64 { return int64(s.FarSegments) })},
	{describe("live_bytes", "Bytes in far segments that are referred to."), isGauge, gaugeOf(func(s *far.Stats) int64 { return s.FarLive })},
	{describe("dead_bytes", "Bytes in far segments that nothing refers to, which the cleaner can get back."), isGauge, gaugeOf(func(s *far.Stats) int64 { return s.FarDead })},
	{describe("index_leaf_bytes", "Bytes of far memory that are leaves of the index."), isGauge, gaugeOf(func(s *far.Stats) int64 { return s.LeavesFar })},
	{describe("index_leaf_reads_total", "Reads of leaves of the index, which keys wait for that were not used for long."), isCounter, counterOf(func(s *far.Stats) uint64 { return s.LeafReads })},
	{describe("index_found_total", "Entries that memory nodes have found by leaves of the index, so that these were not read."), isCounter, counterOf(func(s *far.Stats) uint64 { return s.Found })},
	{describe("index_settled_total", "Times that the words of a table were settled in leaves."), isCounter, counterOf(func(s *far.Stats) uint64 { return s.Settled })},
}

// pointerMetrics are of heaps that have pointers.
var pointerMetrics = []metric{
	{describe("passes_total", "Passes of the evacuator over objects."), isCounter, counterOf(func(s *far.Stats) uint64 { return s.Passes })},
	{describe("prefetch_window_bytes", "Bytes that may be prefetched ahead of their use."), isGauge, gaugeOf(func(s *far.Stats) int64 { return s.PrefetchWindow })},
	{describe("prefetch_bytes_per_second", "Bytes a second that prefetching brings in."), isGauge, gaugeOf(func(s *far.Stats) int64 { return s.PrefetchRate })},
	{describe("pointers", "Pointers that have been made and not freed."), isGauge, gaugeOf(func(s *far.Stats) int64 { return int64(s.Pointers) })},
}

// uses are the parts of the local budget.
var uses = []struct {
	use string
	of  func(*far.Stats) int64
}{
	{"hot", func(s *far.Stats) int64 { return min(s.LocalHot, s.Lines[heap.InLogs]) }},
	{"cold", func(s *far.Stats) int64 {
		return min(s.LocalLive, s.Lines[heap.InLogs]) - min(s.LocalHot, s.Lines[heap.InLogs])
	}},
	{"dead", func(s *far.Stats) int64 { return max(s.Lines[heap.InLogs]-s.LocalLive, 0) }},
	{"index", func(s *far.Stats) int64 { return s.Index }},
	{"buffers", func(s *far.Stats) int64 {
		return s.Lines[heap.Settling] + s.Lines[heap.Checkpoint] + s.Lines[heap.Staging] + s.Lines[heap.Cleaning] + s.Lines[heap.Fetching]
	}},
	{"free", func(s *far.Stats) int64 {
		return s.Lines[heap.ForScopes] + s.Lines[heap.Evacuating] + max(s.Lines[heap.Unused], 0)
	}},
}

var localBytes = describe("local_bytes", "The local budget by what it is used for: hot (entries and objects that were used of late, estimated), cold (the others), "+
	"dead (what is left of the logs), index, buffers (of fetches and evacuation) and free.", "use")

var budgetBytes = describe("budget_bytes", "How the local budget is divided. The lines sum to it: logs (segments in which something is), tables (words of maps' entries; at half of the budget, or a fifth in a heap with a name, they go to leaves in far memory), "+
	"leaves (where those are), words (of pointers), nodes (of lists), buffers for settling (of leaves), checkpoint (a copy of indexes, while it is written), staging (what is evacuated), cleaning and fetching, empty segments set aside for scopes and for evacuating, and what is unused: less than 0 while the budget shrinks.", "line")

var mapMetrics = []mapMetric{
	{describe("entries", "Entries of the map.", "map"), isGauge, gaugeOf(func(s *far.MapStats) int64 { return int64(s.Entries) })},
	{describe("lost_entries", "Lost entries that have been neither set nor deleted.", "map"), isGauge, gaugeOf(func(s *far.MapStats) int64 { return int64(s.LostNow) })},
	{describe("hits_total", "Reads served locally at once.", "map"), isCounter, counterOf(func(s *far.MapStats) uint64 { return s.Hits })},
	{describe("misses_total", "Times that a far entry was needed.", "map"), isCounter, counterOf(func(s *far.MapStats) uint64 { return s.Misses })},
	{describe("coalesced_total", "Misses that joined a fetch under way.", "map"), isCounter, counterOf(func(s *far.MapStats) uint64 { return s.Coalesced })},
	{describe("prefetched_total", "Far keys that were fetched before their reads, which are hits then.", "map"), isCounter, counterOf(func(s *far.MapStats) uint64 { return s.Prefetched })},
	{describe("absent_total", "Reads of keys that were not there.", "map"), isCounter, counterOf(func(s *far.MapStats) uint64 { return s.Absent })},
	{describe("sets_total", "Entries stored.", "map"), isCounter, counterOf(func(s *far.MapStats) uint64 { return s.Sets })},
	{describe("deletes_total", "Entries deleted.", "map"), isCounter, counterOf(func(s *far.MapStats) uint64 { return s.Deletes })},
	{describe("expired_total", "Entries removed because their time had come.", "map"), isCounter, counterOf(func(s *far.MapStats) uint64 { return s.Expired })},
}

var classMetrics = []classMetric{
	{describe("object_misses_total", "Dereferences that waited for a fetch.", "class"), isCounter, counterOf(func(s *far.ClassStats) uint64 { return s.Misses })},
	{describe("object_coalesced_total", "Dereferences that joined a fetch under way.", "class"), isCounter, counterOf(func(s *far.ClassStats) uint64 { return s.Coalesced })},
	{describe("object_warmed_total", "Dereferences of local objects for the first time in a pass.", "class"), isCounter, counterOf(func(s *far.ClassStats) uint64 { return s.Warmed })},
	{describe("object_rescued_total", "Dereferences that met an object that was to be moved.", "class"), isCounter, counterOf(func(s *far.ClassStats) uint64 { return s.Rescued })},
	{describe("object_prefetched_total", "Objects fetched before anybody asked.", "class"), isCounter, counterOf(func(s *far.ClassStats) uint64 { return s.Prefetched })},
	{describe("object_read_bytes_total", "Bytes of objects fetched.", "class"), isCounter, counterOf(func(s *far.ClassStats) uint64 { return s.BytesIn })},
	{describe("object_written_bytes_total", "Bytes of objects written to the store.", "class"), isCounter, counterOf(func(s *far.ClassStats) uint64 { return s.BytesOut })},
	{describe("object_evacuated_total", "Objects that became far.", "class"), isCounter, counterOf(func(s *far.ClassStats) uint64 { return s.Evacuated })},
	{describe("object_evacuated_clean_total", "Objects that became far without being written, since their far copy was good.", "class"), isCounter, counterOf(func(s *far.ClassStats) uint64 { return s.EvacuatedClean })},
	{describe("object_computed_total", "Objects that the store looked through where they lay.", "class"), isCounter, counterOf(func(s *far.ClassStats) uint64 { return s.Computed })},
}

var structureMetrics = []structureMetric{
	{describe("structure_elements", "Elements of the structure.", "structure", "kind"), isGauge, gaugeOf(func(s *far.StructureStats) int64 { return int64(s.Len) })},
	{describe("structure_prefetched_total", "Objects that prefetchers asked for.", "structure", "kind"), isCounter, counterOf(func(s *far.StructureStats) uint64 { return s.Prefetch.Issued })},
	{describe("structure_prefetched_used_total", "Objects that prefetchers asked for and that were used.", "structure", "kind"), isCounter, counterOf(func(s *far.StructureStats) uint64 { return s.Prefetch.Used })},
	{describe("structure_prefetched_unused_total", "Objects that prefetchers asked for and that were evacuated before they were used.", "structure", "kind"), isCounter, counterOf(func(s *far.StructureStats) uint64 { return s.Prefetch.Unused })},
	{describe("structure_prefetch_dropped_total", "Objects that were not asked for since all who prefetch were busy.", "structure", "kind"), isCounter, counterOf(func(s *far.StructureStats) uint64 { return s.Prefetch.Dropped })},
}

// NewCollector returns a Prometheus collector of the heap's statistics.
func NewCollector(h *far.Heap) prometheus.Collector { return collector{h} }

type collector struct{ h *far.Heap }

func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range slices.Concat(metrics, pointerMetrics) {
		ch <- m.desc
	}
	ch <- localBytes
	ch <- budgetBytes
	for _, m := range mapMetrics {
		ch <- m.desc
	}
	for _, m := range classMetrics {
		ch <- m.desc
	}
	for _, m := range structureMetrics {
		ch <- m.desc
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	s := c.h.Stats()
	show := func(metrics []metric) {
		for _, m := range metrics {
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.of(&s))
		}
	}
	show(metrics)
	if len(s.Classes)+len(s.Structures) > 0 {
		show(pointerMetrics)
	}
	for _, u := range uses {
		ch <- prometheus.MustNewConstMetric(localBytes, isGauge, float64(u.of(&s)), u.use)
	}
	for u, n := range s.Lines {
		ch <- prometheus.MustNewConstMetric(budgetBytes, isGauge, float64(n), heap.Line(u).String())
	}
	// Maps of one name count as one, and so do classes and structures.
	maps := map[string]*far.MapStats{}
	for i := range s.Maps {
		m := &s.Maps[i]
		if sum := maps[m.Name]; sum != nil {
			sum.Add(m)
		} else {
			maps[m.Name] = m
		}
	}
	for name, sum := range maps {
		for _, m := range mapMetrics {
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.of(sum), name)
		}
	}
	type named struct{ name, kind string }
	structures := map[named]*far.StructureStats{}
	for i := range s.Structures {
		st := &s.Structures[i]
		if sum := structures[named{st.Name, st.Kind}]; sum != nil {
			sum.Len += st.Len
			sum.Prefetch.Add(st.Prefetch)
		} else {
			structures[named{st.Name, st.Kind}] = st
		}
	}
	for key, sum := range structures {
		for _, m := range structureMetrics {
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.of(sum), key.name, key.kind)
		}
	}
	byName := map[string]*far.ClassStats{}
	for i := range s.Classes {
		c := &s.Classes[i]
		if sum := byName[c.Name]; sum != nil {
			sum.Add(c)
		} else {
			byName[c.Name] = c
		}
	}
	for name, c := range byName {
		for _, m := range classMetrics {
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.of(c), name)
		}
	}
}
