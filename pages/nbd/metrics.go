package nbd

import "github.com/prometheus/client_golang/prometheus"

// commands are the names of requests, by number.
var commands = [cmdBlockStatus + 1]string{"read", "write", "disconnect", "flush", "trim", "cache", "write_zeroes", "block_status"}

var (
	requestsDesc = prometheus.NewDesc("polder_block_requests_total", "Requests by command.", []string{"command"}, nil)
	failedDesc   = prometheus.NewDesc("polder_block_failed_total", "Requests that failed for want of memory, or because a page was lost or late.", nil, nil)
	readDesc     = prometheus.NewDesc("polder_block_read_bytes_total", "Bytes that clients have read from pages that take memory.", nil, nil)
	writtenDesc  = prometheus.NewDesc("polder_block_written_bytes_total", "Bytes that clients have written.", nil, nil)
	aheadDesc    = prometheus.NewDesc("polder_block_read_ahead_total", "Pages brought into local memory, or found there, before they were asked for.", nil, nil)
	connsDesc    = prometheus.NewDesc("polder_block_connections", "Connections.", nil, nil)
	acceptedDesc = prometheus.NewDesc("polder_block_connections_total", "Connections that have chosen the export.", nil, nil)
	sizeDesc     = prometheus.NewDesc("polder_block_size_bytes", "Size of the device.", nil, nil)
	usedDesc     = prometheus.NewDesc("polder_block_used_bytes", "Bytes of pages that take memory, local or far.", nil, nil)
)

// Collector returns a Prometheus collector of the server's statistics, with names that start
// with polder_block_. Those of its volume's memory are its heap's.
func (s *Server) Collector() prometheus.Collector { return collector{s} }

type collector struct{ s *Server }

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{requestsDesc, failedDesc, readDesc, writtenDesc, aheadDesc, connsDesc, acceptedDesc, sizeDesc, usedDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, kind prometheus.ValueType, n int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, float64(n), labels...)
	}
	for i, name := range commands {
		if i != cmdDisconnect {
			count(requestsDesc, prometheus.CounterValue, c.s.stats.requests[i].Load(), name)
		}
	}
	c.s.mu.Lock()
	conns := len(c.s.conns)
	c.s.mu.Unlock()
	count(failedDesc, prometheus.CounterValue, c.s.stats.failed.Load())
	count(readDesc, prometheus.CounterValue, c.s.stats.bytesOut.Load())
	count(writtenDesc, prometheus.CounterValue, c.s.stats.bytesIn.Load())
	count(aheadDesc, prometheus.CounterValue, c.s.stats.ahead.Load())
	count(connsDesc, prometheus.GaugeValue, int64(conns))
	count(acceptedDesc, prometheus.CounterValue, c.s.stats.accepted.Load())
	count(sizeDesc, prometheus.GaugeValue, c.s.cfg.Volume.Size())
	count(usedDesc, prometheus.GaugeValue, c.s.cfg.Volume.Stats().Pages*4096)
}
