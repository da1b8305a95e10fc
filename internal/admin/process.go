package admin

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"

	"polder/internal/console"
	"polder/internal/hostmem"
)

// buildInfo is the metric that says which program this is.
func buildInfo(a console.About) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "polder_build_info", Help: "Which daemon this is, and the version that it was built from. Always 1.",
		ConstLabels: prometheus.Labels{"service": a.Service, "version": a.Version, "goversion": runtime.Version()},
	})
	g.Set(1)
	return g
}

var (
	memoryAvailable = prometheus.NewDesc("polder_memory_available_bytes", "Memory that this process could allocate now without swapping or being killed.", nil, nil)
	memoryLimit     = prometheus.NewDesc("polder_memory_limit_bytes", "Memory that there is for this process; the label says what sets the limit.", []string{"bound"}, nil)
)

// memoryCollector shows how much memory there is for this process, where that can
// be told.
type memoryCollector struct{}

// Describe implements prometheus.Collector.
func (memoryCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- memoryAvailable
	ch <- memoryLimit
}

// Collect implements prometheus.Collector.
func (memoryCollector) Collect(ch chan<- prometheus.Metric) {
	m, err := (hostmem.Host{}).Read()
	if err != nil {
		return
	}
	ch <- prometheus.MustNewConstMetric(memoryAvailable, prometheus.GaugeValue, float64(m.Available))
	ch <- prometheus.MustNewConstMetric(memoryLimit, prometheus.GaugeValue, float64(m.Total), m.Bound)
}
