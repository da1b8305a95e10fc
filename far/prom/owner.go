package prom

import (
	"github.com/prometheus/client_golang/prometheus"

	"polder/far/named"
)

var (
	ownerEpoch    = prometheus.NewDesc("polder_heap_epoch", "Epoch in which this process owns the heap.", []string{"heap"}, nil)
	ownerEvidence = prometheus.NewDesc("polder_heap_evidence_age_seconds", "Age of the newest evidence that no other process owns the heap.", []string{"heap"}, nil)
	ownerShown    = prometheus.NewDesc("polder_heap_register_answers", "Whether that evidence is younger than a lease, so that no reply waits for it.", []string{"heap"}, nil)
)

// NewOwnerCollector returns a Prometheus collector of what o knows of its ownership of a heap.
func NewOwnerCollector(heap string, o *named.Owner) prometheus.Collector {
	return &ownerCollector{heap, o}
}

type ownerCollector struct {
	heap  string
	owner *named.Owner
}

// Describe implements prometheus.Collector.
func (c *ownerCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- ownerEpoch
	ch <- ownerEvidence
	ch <- ownerShown
}

// Collect implements prometheus.Collector.
func (c *ownerCollector) Collect(ch chan<- prometheus.Metric) {
	st := c.owner.Stats()
	shown := 0.0
	if st.Shown {
		shown = 1
	}
	ch <- prometheus.MustNewConstMetric(ownerEpoch, isGauge, float64(st.Epoch), c.heap)
	ch <- prometheus.MustNewConstMetric(ownerEvidence, isGauge, st.Evidence, c.heap)
	ch <- prometheus.MustNewConstMetric(ownerShown, isGauge, shown, c.heap)
}
