package files

import (
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// codes are the statuses that a server answers with.
var codes = []int{200, 206, 301, 304, 403, 404, 405, 412, 416, 500, 503}

// counters are what a server has done.
type counters struct {
	sent  atomic.Int64
	codes [600]atomic.Int64
}

// answered counts an answer.
func (c *counters) answered(code int) {
	if code < len(c.codes) {
		c.codes[code].Add(1)
	}
}

var (
	requestsDesc = prometheus.NewDesc("polder_files_requests_total", "Requests by the status of their answers.", []string{"code"}, nil)
	sentDesc     = prometheus.NewDesc("polder_files_sent_bytes_total", "Bytes of bodies sent.", nil, nil)
	connsDesc    = prometheus.NewDesc("polder_files_connections", "Connections.", nil, nil)
)

// Collector returns a Prometheus collector of the server's statistics, with names that start with polder_files_. What
// is read from disk and from memory is among the statistics of its heap.
func (s *Server) Collector() prometheus.Collector { return collector{s} }

type collector struct{ s *Server }

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{requestsDesc, sentDesc, connsDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	for _, code := range codes {
		ch <- prometheus.MustNewConstMetric(requestsDesc, prometheus.CounterValue, float64(c.s.count.codes[code].Load()), strconv.Itoa(code))
	}
	ch <- prometheus.MustNewConstMetric(sentDesc, prometheus.CounterValue, float64(c.s.count.sent.Load()))
	ch <- prometheus.MustNewConstMetric(connsDesc, prometheus.GaugeValue, float64(c.s.conns()))
}
