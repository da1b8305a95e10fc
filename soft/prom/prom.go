// Package prom exports the statistics of a heap in soft memory to Prometheus.
package prom

import (
	"github.com/prometheus/client_golang/prometheus"

	"polder/soft"
)

// metric is one Prometheus series of a heap, read from its Stats.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*soft.Stats) float64
	when func(*soft.Heap, *soft.Stats) bool // nil for always
}

// rebuilds reports whether any value of the heap was made anew.
func rebuilds(_ *soft.Heap, s *soft.Stats) bool { return s.Rebuilds > 0 }

// revocable reports whether somebody could take segments away.
func revocable(h *soft.Heap, _ *soft.Stats) bool { return h.Coordinator() != "" }

func describe(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("polder_soft_"+name, help, nil, nil)
}

func describeUse(use string) *prometheus.Desc {
	return prometheus.NewDesc("polder_soft_memory_bytes", "The budget by what it is used for: live (objects), dead (what is left of segments that hold some) and free.",
		nil, prometheus.Labels{"use": use})
}

const (
	isCounter = prometheus.CounterValue
	isGauge   = prometheus.GaugeValue
)

var metrics = []metric{
	{describe("budget_bytes", "Soft memory that the heap may use now."), isGauge, func(s *soft.Stats) float64 { return float64(s.Budget) }, nil},
	{describeUse("live"), isGauge, func(s *soft.Stats) float64 { return float64(min(s.Live, s.Budget)) }, nil},
	{describeUse("dead"), isGauge, func(s *soft.Stats) float64 { return float64(max(s.Budget-s.Free-s.Live, 0)) }, nil},
	{describeUse("free"), isGauge, func(s *soft.Stats) float64 { return float64(s.Free) }, nil},
	{describe("objects", "Objects."), isGauge, func(s *soft.Stats) float64 { return float64(s.Objects) }, nil},
	{describe("hits_total", "Lookups that found something."), isCounter, func(s *soft.Stats) float64 { return float64(s.Hits) }, nil},
	{describe("misses_total", "Lookups that found nothing."), isCounter, func(s *soft.Stats) float64 { return float64(s.Misses) }, nil},
	{describe("rebuilds_total", "Values rebuilt."), isCounter, func(s *soft.Stats) float64 { return float64(s.Rebuilds) }, rebuilds},
	{describe("rebuild_seconds_total", "Time spent rebuilding."), isCounter, func(s *soft.Stats) float64 { return s.RebuildTime.Seconds() }, rebuilds},
	{describe("evicted_objects_total", "Objects evicted by the heap itself."), isCounter, func(s *soft.Stats) float64 { return float64(s.EvictedObjects) }, nil},
	{describe("saved_bytes_total", "Bytes copied by the evacuator because they were hot."), isCounter, func(s *soft.Stats) float64 { return float64(s.SavedBytes) }, nil},
	{describe("revoked_segments_total", "Segments that the coordinator has taken back."), isCounter, func(s *soft.Stats) float64 { return float64(s.RevokedSegments) }, revocable},
	{describe("revoked_objects_total", "Objects that were in the segments that the coordinator took."), isCounter, func(s *soft.Stats) float64 { return float64(s.LostObjects) }, revocable},
}

// NewCollector returns a Prometheus collector of a heap's statistics, with
// names that start with polder_soft_.
func NewCollector(h *soft.Heap) prometheus.Collector { return collector{h} }

type collector struct{ h *soft.Heap }

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range metrics {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	s := c.h.Stats()
	for _, m := range metrics {
		if m.when == nil || m.when(c.h, &s) {
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.of(&s))
		}
	}
}
