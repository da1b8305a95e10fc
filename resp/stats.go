package resp

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"polder/resp/keyspace"
)

// counters count since the server was made.
type counters struct {
	errors, connections, rejected          atomic.Int64
	hits, misses                           atomic.Int64
	protocolErrors, authFailures           atomic.Int64
	outputDrops, idleDrops                 atomic.Int64
	fetches, fetchedKeys, waits, handovers atomic.Int64
	lost, timeouts, forwarded, untold      atomic.Int64

	rounds, fetchTimes prometheus.Histogram
}

func newCounters() *counters {
	c := new(counters)
	c.rounds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "polder_resp_round_seconds",
		Help:    "Time from when requests were there to be read until their replies were written, for what did not wait for far memory. Requests that come together count once.",
		Buckets: prometheus.ExponentialBuckets(2e-6, 2, 20),
	})
	c.fetchTimes = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "polder_resp_fetch_seconds",
		Help:    "Time that commands waited until a batch of keys had been fetched from far memory.",
		Buckets: prometheus.ExponentialBuckets(5e-6, 2, 20),
	})
	return c
}

// Stats is a snapshot of what a server has done.
type Stats struct {
	Commands        int64 // commands run
	Errors          int64 // error replies
	Hits            int64 // keys read and found, as Redis counts them
	Misses          int64 // keys read and not found
	Connections     int64 // clients that came
	Rejected        int64 // clients that came and were turned away for MaxClients
	Clients         int64 // clients connected now
	ProtocolErrors  int64 // clients disconnected for what they sent
	AuthFailures    int64 // wrong passwords
	OutputDrops     int64 // clients disconnected for not reading
	IdleDrops       int64 // clients disconnected for silence
	Fetches         int64 // batches of keys fetched
	FetchedKeys     int64 // keys in these batches
	Waits           int64 // commands that waited: for far memory with locks held, for the journal, or another server
	Handovers       int64 // times an event loop went on in another goroutine
	Lost            int64 // LOST replies
	Timeouts        int64 // TRYAGAIN replies
	Forwarded       int64 // commands that another server was asked to carry out
	Untold          int64 // messages that another server was perhaps not told of
	Keys            int64 // keys stored
	LargeHashes     int64 // hashes kept in blocks
	HashBlocks      int64 // blocks of these hashes
	ClientMemory    int64 // bytes that clients of all servers with this budget hold
	MaxClientMemory int64 // the budget
	EvictedClients  int64 // clients disconnected for what they held, by all these servers
}

// Stats returns what the server has done so far.
func (srv *Server) Stats() Stats {
	c := srv.stats
	keys, hashes, blocks := 0, 0, 0
	for _, at := range srv.stores() {
		keys += at.Len()
		h, b := at.LargeHashes()
		hashes, blocks = hashes+h, blocks+b
	}
	return Stats{
		Commands:        srv.latency.Calls(),
		Errors:          c.errors.Load(),
		Hits:            c.hits.Load(),
		Misses:          c.misses.Load(),
		Connections:     c.connections.Load(),
		Rejected:        c.rejected.Load(),
		Clients:         srv.clients.Load(),
		ProtocolErrors:  c.protocolErrors.Load(),
		AuthFailures:    c.authFailures.Load(),
		OutputDrops:     c.outputDrops.Load(),
		IdleDrops:       c.idleDrops.Load(),
		Fetches:         c.fetches.Load(),
		FetchedKeys:     c.fetchedKeys.Load(),
		Waits:           c.waits.Load(),
		Handovers:       c.handovers.Load(),
		Lost:            c.lost.Load(),
		Timeouts:        c.timeouts.Load(),
		Forwarded:       c.forwarded.Load(),
		Untold:          c.untold.Load(),
		Keys:            int64(keys),
		LargeHashes:     int64(hashes),
		HashBlocks:      int64(blocks),
		ClientMemory:    srv.cfg.ClientMemory.Held(),
		MaxClientMemory: srv.cfg.ClientMemory.Max(),
		EvictedClients:  srv.cfg.ClientMemory.Evicted(),
	}
}

// memory is what INFO and CONFIG GET say of the server's memory.
func (srv *Server) memory() keyspace.Memory {
	m := srv.data.Memory()
	for p := range srv.parts {
		if at := srv.parts[p].Load(); at != nil {
			more := at.Memory()
			m.Used, m.Max = m.Used+more.Used, m.Max+more.Max
		}
	}
	return m
}

// metric is a line of Stats, for POLDER STATS and Prometheus.
type metric struct {
	name, help string
	gauge      bool
	get        func(*Stats) int64
	when       func(*Server) bool // whether Prometheus sees it; nil for always
}

// overFar is for metrics that do not concern a cache, which is in soft memory.
func overFar(srv *Server) bool { return !srv.data.IsCache() }

var metrics = []metric{
	{"commands", "Commands run.", false, func(s *Stats) int64 { return s.Commands }, nil},
	{"errors", "Error replies.", false, func(s *Stats) int64 { return s.Errors }, nil},
	{"keyspace_hits", "Keys that were read and found, as Redis counts them.", false, func(s *Stats) int64 { return s.Hits }, nil},
	{"keyspace_misses", "Keys that were read and not found, as Redis counts them.", false, func(s *Stats) int64 { return s.Misses }, nil},
	{"connections", "Clients that connected.", false, func(s *Stats) int64 { return s.Connections }, nil},
	{"rejected_connections", "Clients turned away.", false, func(s *Stats) int64 { return s.Rejected }, nil},
	{"clients", "Clients connected now.", true, func(s *Stats) int64 { return s.Clients }, nil},
	{"protocol_errors", "Clients disconnected for what they sent.", false, func(s *Stats) int64 { return s.ProtocolErrors }, nil},
	{"auth_failures", "Wrong passwords.", false, func(s *Stats) int64 { return s.AuthFailures }, func(srv *Server) bool { return srv.password() != "" }},
	{"output_drops", "Clients disconnected for not reading replies.", false, func(s *Stats) int64 { return s.OutputDrops }, nil},
	{"idle_drops", "Clients disconnected for silence.", false, func(s *Stats) int64 { return s.IdleDrops }, func(srv *Server) bool { return srv.cfg.IdleTimeout > 0 }},
	{"fetches", "Batches of keys fetched from far memory.", false, func(s *Stats) int64 { return s.Fetches }, overFar},
	{"fetched_keys", "Keys asked for in these batches.", false, func(s *Stats) int64 { return s.FetchedKeys }, overFar},
	{"waits", "Times that a command waited for far memory, for room or for another server.", false, func(s *Stats) int64 { return s.Waits }, overFar},
	{"loop_handovers", "Times an event loop went on in another goroutine.", false, func(s *Stats) int64 { return s.Handovers }, nil},
	{"lost_replies", "Replies that a value is lost.", false, func(s *Stats) int64 { return s.Lost }, overFar},
	{"timeout_replies", "Replies that far memory did not answer.", false, func(s *Stats) int64 { return s.Timeouts }, overFar},
	{"untold", "Messages published here that another server was perhaps not told of, and so its subscribers.", false, func(s *Stats) int64 { return s.Untold }, func(srv *Server) bool { return srv.parts != nil }},
	{"forwarded", "Commands that another server, which has the partition, was asked to carry out.", false, func(s *Stats) int64 { return s.Forwarded }, func(srv *Server) bool { return srv.parts != nil }},
	{"keys", "Keys stored.", true, func(s *Stats) int64 { return s.Keys }, nil},
	{"large_hashes", "Hashes kept in blocks.", true, func(s *Stats) int64 { return s.LargeHashes }, overFar},
	{"client_memory_bytes", "Memory that clients hold: input, replies, transactions, watched keys.", true, func(s *Stats) int64 { return s.ClientMemory }, nil},
	{"client_memory_limit_bytes", "Memory that clients may hold (--client-memory).", true, func(s *Stats) int64 { return s.MaxClientMemory }, nil},
	{"evicted_clients", "Clients disconnected because they held most when the limit was exceeded.", false, func(s *Stats) int64 { return s.EvictedClients }, nil},
	{"hash_blocks", "Blocks of large hashes.", true, func(s *Stats) int64 { return s.HashBlocks }, overFar},
}

// statLines are the lines of POLDER STATS.
func (srv *Server) statLines() []Stat {
	st := srv.Stats()
	lines := make([]Stat, 0, len(metrics))
	for _, m := range metrics {
		lines = append(lines, Stat{m.name, itoa(m.get(&st))})
	}
	if srv.cfg.ExtraStats != nil {
		lines = append(lines, srv.cfg.ExtraStats()...)
	}
	return lines
}

// Collector returns a Prometheus collector of the server's statistics, with
// names that start with polder_resp_.
func (srv *Server) Collector() prometheus.Collector {
	c := &collector{srv: srv, histograms: []prometheus.Histogram{srv.stats.rounds}}
	if !srv.data.IsCache() {
		c.histograms = append(c.histograms, srv.stats.fetchTimes)
	}
	for _, m := range metrics {
		name := "polder_resp_" + m.name
		if !m.gauge {
			name += "_total"
		}
		c.descs = append(c.descs, prometheus.NewDesc(name, m.help, nil, nil))
	}
	return c
}

type collector struct {
	srv        *Server
	descs      []*prometheus.Desc // in the order of metrics
	histograms []prometheus.Histogram
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
	for _, h := range c.histograms {
		h.Describe(ch)
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	st := c.srv.Stats()
	for i, m := range metrics {
		if m.when != nil && !m.when(c.srv) {
			continue
		}
		kind := prometheus.CounterValue
		if m.gauge {
			kind = prometheus.GaugeValue
		}
		ch <- prometheus.MustNewConstMetric(c.descs[i], kind, float64(m.get(&st)))
	}
	for _, h := range c.histograms {
		h.Collect(ch)
	}
}
