package pager

import "github.com/prometheus/client_golang/prometheus"

var (
	faultsDesc   = prometheus.NewDesc("polder_pager_faults_total", "Accesses that waited for a page.", nil, nil)
	writesDesc   = prometheus.NewDesc("polder_pager_write_faults_total", "Accesses that waited to write to a page that was there, and protected.", nil, nil)
	aheadDesc    = prometheus.NewDesc("polder_pager_read_ahead_total", "Pages brought before they were touched.", nil, nil)
	evictedDesc  = prometheus.NewDesc("polder_pager_evicted_total", "Pages taken out of the memory of mappings.", nil, nil)
	placesDesc   = prometheus.NewDesc("polder_pager_place_calls_total", "System calls that put pages in a row into the memory of mappings.", nil, nil)
	dropsDesc    = prometheus.NewDesc("polder_pager_drop_calls_total", "System calls that took pages in a row out of the memory of mappings.", nil, nil)
	protectsDesc = prometheus.NewDesc("polder_pager_protect_calls_total", "System calls that protected pages in a row before they were written to far memory.", nil, nil)
	poisonedDesc = prometheus.NewDesc("polder_pager_poisoned_total", "Pages that could not be read in time, or were lost: accesses to them fail.", nil, nil)
	refusedDesc  = prometheus.NewDesc("polder_pager_refused_total", "Clients that were refused.", nil, nil)
	mappingsDesc = prometheus.NewDesc("polder_pager_mappings", "Mappings.", nil, nil)
	sizeDesc     = prometheus.NewDesc("polder_pager_mapped_bytes", "Size of all mappings.", nil, nil)
	framesDesc   = prometheus.NewDesc("polder_pager_local_bytes", "Bytes of mappings that may be local.", nil, nil)
)

// Collector returns a Prometheus collector of the server's statistics, with names that start with polder_pager_. The
// heap's collector has those of its far memory.
func (s *Server) Collector() prometheus.Collector { return collector{s} }

type collector struct{ s *Server }

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{faultsDesc, writesDesc, aheadDesc, evictedDesc, placesDesc, dropsDesc, protectsDesc, poisonedDesc, refusedDesc, mappingsDesc, sizeDesc, framesDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	put := func(d *prometheus.Desc, kind prometheus.ValueType, n int64) {
		ch <- prometheus.MustNewConstMetric(d, kind, float64(n))
	}
	st := &c.s.stats
	put(faultsDesc, prometheus.CounterValue, st.faults.Load())
	put(writesDesc, prometheus.CounterValue, st.writes.Load())
	put(aheadDesc, prometheus.CounterValue, st.ahead.Load())
	put(evictedDesc, prometheus.CounterValue, st.evicted.Load())
	put(placesDesc, prometheus.CounterValue, st.places.Load())
	put(dropsDesc, prometheus.CounterValue, st.drops.Load())
	put(protectsDesc, prometheus.CounterValue, st.protects.Load())
	put(poisonedDesc, prometheus.CounterValue, st.poisoned.Load())
	put(refusedDesc, prometheus.CounterValue, st.refused.Load())
	c.s.mu.Lock()
	mappings, size, frames := int64(c.s.mappings), c.s.size, c.s.frames
	c.s.mu.Unlock()
	put(mappingsDesc, prometheus.GaugeValue, mappings)
	put(sizeDesc, prometheus.GaugeValue, size)
	put(framesDesc, prometheus.GaugeValue, frames)
}
