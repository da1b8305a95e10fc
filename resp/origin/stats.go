package origin

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// counters count from when the server was made.
type counters struct {
	hits, misses, joined, passed, settled          atomic.Int64
	invalidations, overtaken, flushes, connections atomic.Int64
}

// Stats is a snapshot of what a server has done.
type Stats struct {
	Hits          int64 // reads answered from the cache alone
	Misses        int64 // reads that were fetched for the cache
	Joined        int64 // keys of these misses that were being fetched already
	Passed        int64 // commands passed on over the clients' own connections
	Settled       int64 // times that replies waited for the cache
	Invalidations int64 // keys forgotten because the origin said so
	Overtaken     int64 // fetched values that were not cached because they were out of date already
	Flushes       int64 // times that everything was forgotten
	Connections   int64 // clients that came
	Clients       int64 // clients connected now
	Keys          int64 // keys cached
	Up            bool  // the origin is cached at the moment
}

// Stats returns what the server has done so far.
func (s *Server) Stats() Stats {
	c := &s.tracker.stats
	s.mu.Lock()
	clients := len(s.clients)
	s.mu.Unlock()
	return Stats{
		Hits: c.hits.Load(), Misses: c.misses.Load(), Joined: c.joined.Load(), Passed: c.passed.Load(), Settled: c.settled.Load(),
		Invalidations: c.invalidations.Load(), Overtaken: c.overtaken.Load(), Flushes: c.flushes.Load(),
		Connections: c.connections.Load(), Clients: int64(clients), Keys: int64(s.items.Len()), Up: s.tracker.up.Load(),
	}
}

var metrics = []struct {
	name, help string
	kind       prometheus.ValueType
	get        func(*Stats) int64
}{
	{"hits_total", "Reads answered from the cache alone.", prometheus.CounterValue, func(s *Stats) int64 { return s.Hits }},
	{"misses_total", "Reads that were fetched from the origin for the cache.", prometheus.CounterValue, func(s *Stats) int64 { return s.Misses }},
	{"joined_total", "Keys that were on their way for another read already.", prometheus.CounterValue, func(s *Stats) int64 { return s.Joined }},
	{"passed_total", "Commands passed on to the origin over connections of their clients' own.", prometheus.CounterValue, func(s *Stats) int64 { return s.Passed }},
	{"settled_total", "Times that replies to passed commands waited for the cache to know as much.", prometheus.CounterValue, func(s *Stats) int64 { return s.Settled }},
	{"invalidations_total", "Keys forgotten because the origin said that they have changed.", prometheus.CounterValue, func(s *Stats) int64 { return s.Invalidations }},
	{"overtaken_total", "Fetched values that were not cached because an invalidation had come before.", prometheus.CounterValue, func(s *Stats) int64 { return s.Overtaken }},
	{"flushes_total", "Times that everything was forgotten: the connection broke, or the origin was flushed.", prometheus.CounterValue, func(s *Stats) int64 { return s.Flushes }},
	{"connections_total", "Clients that connected.", prometheus.CounterValue, func(s *Stats) int64 { return s.Connections }},
	{"clients", "Clients connected now.", prometheus.GaugeValue, func(s *Stats) int64 { return s.Clients }},
	{"keys", "Keys cached.", prometheus.GaugeValue, func(s *Stats) int64 { return s.Keys }},
	{"up", "1 while the origin is cached; otherwise everything is passed on.", prometheus.GaugeValue, func(s *Stats) int64 {
		if s.Up {
			return 1
		}
		return 0
	}},
}

// Collector returns a Prometheus collector of the server's statistics, with names that
// start with polder_origin_.
func (s *Server) Collector() prometheus.Collector {
	c := &collector{s: s}
	for _, m := range metrics {
		c.descs = append(c.descs, prometheus.NewDesc("polder_origin_"+m.name, m.help, nil, nil))
	}
	return c
}

type collector struct {
	s     *Server
	descs []*prometheus.Desc // as metrics
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	st := c.s.Stats()
	for i, m := range metrics {
		ch <- prometheus.MustNewConstMetric(c.descs[i], m.kind, float64(m.get(&st)))
	}
}
