package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	"polder/far"
)

// heapCollector makes Prometheus metrics of a heap's statistics.
type heapCollector struct {
	heap    *far.Heap
	metrics []heapMetric
	perMap  []mapMetric
}

type heapMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*far.Stats) float64
}

type mapMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*far.MapStats) float64
}

func newHeapCollector(h *far.Heap) *heapCollector {
	c := &heapCollector{heap: h}
	gauge := func(name, help string, value func(*far.Stats) int64) {
		c.metrics = append(c.metrics, heapMetric{prometheus.NewDesc("polder_far_"+name, help, nil, nil),
			prometheus.GaugeValue, func(s *far.Stats) float64 { return float64(value(s)) }})
	}
	counter := func(name, help string, value func(*far.Stats) uint64) {
		c.metrics = append(c.metrics, heapMetric{prometheus.NewDesc("polder_far_"+name+"_total", help, nil, nil),
			prometheus.CounterValue, func(s *far.Stats) float64 { return float64(value(s)) }})
	}
	gauge("local_budget_bytes", "Budget of resident memory.", func(s *far.Stats) int64 { return s.Budget })
	gauge("local_resident_bytes", "Resident memory: logs, index, buffers.", func(s *far.Stats) int64 { return s.Resident })
	gauge("local_live_bytes", "Entries in the local logs.", func(s *far.Stats) int64 { return s.LocalLive })
	gauge("local_index_bytes", "The indexes.", func(s *far.Stats) int64 { return s.Index })
	gauge("segments", "Far segments borrowed.", func(s *far.Stats) int64 { return int64(s.FarSegments) })
	gauge("live_bytes", "Far memory that is in use.", func(s *far.Stats) int64 { return s.FarLive })
	gauge("dead_bytes", "Far memory that was written and is not used any more.", func(s *far.Stats) int64 { return s.FarDead })
	counter("fetches", "Entries read from far memory.", func(s *far.Stats) uint64 { return s.Fetches })
	counter("read_bytes", "Bytes read from far memory.", func(s *far.Stats) uint64 { return s.BytesIn })
	counter("written_bytes", "Bytes written to far memory.", func(s *far.Stats) uint64 { return s.BytesOut })
	counter("evacuated_entries", "Entries written to far memory and dropped.", func(s *far.Stats) uint64 { return s.Evacuated })
	counter("evacuated_clean_entries", "Entries dropped whose far copy was good.", func(s *far.Stats) uint64 { return s.EvacuatedClean })
	counter("cleaned_segments", "Far segments cleaned.", func(s *far.Stats) uint64 { return s.CleanedSegments })
	counter("lost_entries", "Entries lost with their far memory.", func(s *far.Stats) uint64 { return s.Lost })
	counter("corrupt_reads", "Reads of far memory that brought other bytes.", func(s *far.Stats) uint64 { return s.Corrupt })

	perMap := func(name, help string, kind prometheus.ValueType, value func(*far.MapStats) float64) {
		c.perMap = append(c.perMap, mapMetric{prometheus.NewDesc("polder_far_map_"+name, help, []string{"map"}, nil), kind, value})
	}
	perMap("entries", "Entries.", prometheus.GaugeValue, func(s *far.MapStats) float64 { return float64(s.Entries) })
	perMap("lost_entries", "Lost entries that have been neither set nor deleted.", prometheus.GaugeValue,
		func(s *far.MapStats) float64 { return float64(s.LostNow) })
	perMap("hits_total", "Reads served locally.", prometheus.CounterValue, func(s *far.MapStats) float64 { return float64(s.Hits) })
	perMap("misses_total", "Calls that needed a far entry.", prometheus.CounterValue, func(s *far.MapStats) float64 { return float64(s.Misses) })
	perMap("sets_total", "Entries set.", prometheus.CounterValue, func(s *far.MapStats) float64 { return float64(s.Sets) })
	perMap("deletes_total", "Entries deleted.", prometheus.CounterValue, func(s *far.MapStats) float64 { return float64(s.Deletes) })
	perMap("expired_total", "Entries that expired.", prometheus.CounterValue, func(s *far.MapStats) float64 { return float64(s.Expired) })
	return c
}

// Describe implements prometheus.Collector.
func (c *heapCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range c.metrics {
		ch <- m.desc
	}
	for _, m := range c.perMap {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c *heapCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.heap.Stats()
	for _, m := range c.metrics {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(&s))
	}
	for i := range s.Maps {
		for _, m := range c.perMap {
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(&s.Maps[i]), s.Maps[i].Name)
		}
	}
}
