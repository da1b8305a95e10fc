package broker

import "github.com/prometheus/client_golang/prometheus"

// Stats is what a broker does and has done.
type Stats struct {
	Apps       int    // connected applications
	Users      int    // users that have applications, or memory that is not freed yet
	Refused    uint64 // connections turned away
	Violations uint64 // applications disconnected for what they sent
	Nodes      []NodeStats
}

// NodeStats is what a broker does at one node.
type NodeStats struct {
	Addr    string
	Up      bool
	Cause   string `json:",omitempty"` // why it is not up
	Blocks  int    // that applications have
	Bytes   int64  // bytes of Blocks
	Owed    int    // blocks to be freed when the node can be reached
	Allocs  uint64
	Frees   uint64
	Beats   uint64 // signs of life
	Resumes uint64 // sessions taken up after a connection was lost
	Orphans uint64 // chunks that belong to the broker according to the node, but not according to the broker
}

// Stats returns the broker's statistics.
func (b *Broker) Stats() Stats {
	b.mu.Lock()
	s := Stats{Apps: len(b.live), Users: len(b.users), Refused: b.refused.Load(), Violations: b.violations.Load()}
	b.mu.Unlock()
	for _, n := range b.nodes {
		s.Nodes = append(s.Nodes, n.stats())
	}
	return s
}

func (n *node) stats() NodeStats {
	s := NodeStats{
		Addr: n.cfg.Addr, Allocs: n.allocs.Load(), Frees: n.frees.Load(), Beats: n.beats.Load(),
		Resumes: n.resumes.Load(), Orphans: n.orphans.Load(),
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s.Up, s.Owed = n.link != nil, len(n.owed)
	if n.cause != nil {
		s.Cause = n.cause.Error()
	}
	for _, blocks := range n.blocks {
		s.Blocks += len(blocks)
		for _, b := range blocks {
			s.Bytes += n.bytes(b.Class)
		}
	}
	return s
}

// NewCollector returns a Prometheus collector of b's statistics.
func NewCollector(b *Broker) prometheus.Collector { return &collector{b} }

type collector struct{ b *Broker }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("polder_broker_"+name, help, labels, nil)
}

var (
	descApps       = desc("applications", "Connected applications.")
	descUsers      = desc("users", "Users who have applications, or memory that is not freed yet.")
	descRefused    = desc("refused_total", "Connections turned away.")
	descViolations = desc("violations_total", "Applications disconnected for what they sent.")
	descUp         = desc("node_up", "1 if the node can be reached.", "node")
	descBlocks     = desc("blocks", "Blocks that applications have.", "node")
	descBytes      = desc("bytes", "Bytes that applications have.", "node")
	descOwed       = desc("blocks_owed", "Blocks to be freed when the node can be reached.", "node")
	descAllocs     = desc("allocs_total", "Blocks given.", "node")
	descFrees      = desc("frees_total", "Blocks freed.", "node")
	descBeats      = desc("heartbeats_total", "Signs of life.", "node")
	descResumes    = desc("resumes_total", "Sessions taken up after a connection was lost.", "node")
	descOrphans    = desc("orphaned_chunks_total", "Chunks that the node says are the broker's, and nobody's.", "node")
)

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descApps, descUsers, descRefused, descViolations, descUp, descBlocks, descBytes, descOwed,
		descAllocs, descFrees, descBeats, descResumes, descOrphans,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := c.b.Stats()
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(descApps, s.Apps)
	gauge(descUsers, s.Users)
	count(descRefused, s.Refused)
	count(descViolations, s.Violations)
	for _, n := range s.Nodes {
		up := 0
		if n.Up {
			up = 1
		}
		gauge(descUp, up, n.Addr)
		gauge(descBlocks, n.Blocks, n.Addr)
		gauge(descBytes, int(n.Bytes), n.Addr)
		gauge(descOwed, n.Owed, n.Addr)
		count(descAllocs, n.Allocs, n.Addr)
		count(descFrees, n.Frees, n.Addr)
		count(descBeats, n.Beats, n.Addr)
		count(descResumes, n.Resumes, n.Addr)
		count(descOrphans, n.Orphans, n.Addr)
	}
}
