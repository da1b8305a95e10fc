package pool

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// counters are the counters of a node.
type counters struct {
	reads, writes, atomics  atomic.Int64 // work requests that succeeded
	readsInPlace            atomic.Int64 // of reads
	bytesRead, bytesWritten atomic.Int64
	allocs, frees, lost     atomic.Int64
	retries, reconnects     atomic.Int64

	took [3]prometheus.Histogram // how long READs, WRITEs and atomic operations took over the fabric
}

// How long operations over a fabric take: from 5 µs to 2.6 s.
var latencyBuckets = prometheus.ExponentialBuckets(5e-6, 2, 20)

func (c *counters) init(node string) {
	for i, op := range []string{"read", "write", "atomic"} {
		c.took[i] = prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:        "polder_pool_operation_seconds",
			Help:        "Time of operations at nodes, from submission until all that was submitted with them has been answered. What is accessed in place is not timed.",
			Buckets:     latencyBuckets,
			ConstLabels: prometheus.Labels{"node": node, "op": op},
		})
	}
}

// count counts an operation that succeeded. took is its time, or 0 if it was done in place.
func (c *counters) count(k OpKind, n int, took time.Duration) {
	kind := 2
	switch k {
	case OpRead:
		kind = 0
		c.reads.Add(1)
		c.bytesRead.Add(int64(n))
	case OpWrite:
		kind = 1
		c.writes.Add(1)
		c.bytesWritten.Add(int64(n))
	default:
		c.atomics.Add(1)
	}
	if took > 0 {
		c.took[kind].Observe(took.Seconds())
	}
}

// Stats is a pool's state.
type Stats struct {
	Buffer     int // bytes of the slab
	BufferUsed int
	Nodes      []NodeStats
}

// NodeStats is the state of one node, and what was done on it.
type NodeStats struct {
	Name   string
	State  string // connecting, up, leaving, down, closed
	Chunks int    // borrowed now, in units of Pool.ChunkSize, as are the fields below
	Space  int    // chunks that could still be borrowed, as far as is known

	Reads, Writes, Atomics  int64 // pieces, of at most 64 KiB, that succeeded
	ReadsInPlace            int64 // those of Reads from memory that is mapped into this process
	BytesRead, BytesWritten int64
	Allocs, Frees           int64
	Lost                    int64 // chunks
	Retries                 int64 // pieces repeated after a connection was lost
	Reconnects              int64 // connections lost
}

// leavingState is the NodeStats.State of a node that is up, but will end when nothing is lent any more.
const leavingState = "leaving"

// Stats returns the pool's statistics. They are not taken at one instant.
func (p *Pool) Stats() Stats {
	var s Stats
	s.Buffer, s.BufferUsed = p.slab.size()
	for _, n := range p.all() {
		leaving := n.leaving()
		n.mu.Lock()
		state, chunks := n.state.String(), 0
		if leaving && n.state == nodeUp {
			state = leavingState
		}
		for _, x := range n.extents {
			chunks += x.chunks
		}
		n.mu.Unlock()
		c := &n.counters
		s.Nodes = append(s.Nodes, NodeStats{
			Name: n.name, State: state, Chunks: chunks, Space: int(n.space()),
			Reads: c.reads.Load(), Writes: c.writes.Load(), Atomics: c.atomics.Load(),
			ReadsInPlace: c.readsInPlace.Load(),
			BytesRead:    c.bytesRead.Load(), BytesWritten: c.bytesWritten.Load(),
			Allocs: c.allocs.Load(), Frees: c.frees.Load(), Lost: c.lost.Load(),
			Retries: c.retries.Load(), Reconnects: c.reconnects.Load(),
		})
	}
	return s
}

// NewCollector returns a Prometheus collector of p's statistics.
func NewCollector(p *Pool) prometheus.Collector {
	c := &collector{
		pool:   p,
		buffer: prometheus.NewDesc("polder_pool_buffer_used_bytes", "Bytes of the buffer in use.", nil, nil),
	}
	add := func(name, help string, kind prometheus.ValueType, value func(*NodeStats) float64) {
		desc := prometheus.NewDesc("polder_pool_"+name, help, []string{"node"}, nil)
		c.perNode = append(c.perNode, nodeMetric{desc, kind, value})
	}
	gauge := func(name, help string, value func(*NodeStats) float64) {
		add(name, help, prometheus.GaugeValue, value)
	}
	counter := func(name, help string, value func(*NodeStats) int64) {
		add(name+"_total", help, prometheus.CounterValue, func(s *NodeStats) float64 { return float64(value(s)) })
	}
	gauge("node_up", "Whether the node is connected.", func(s *NodeStats) float64 {
		if s.State == nodeUp.String() || s.State == leavingState {
			return 1
		}
		return 0
	})
	gauge("node_leaving", "Whether the node is being drained.", func(s *NodeStats) float64 {
		if s.State == leavingState {
			return 1
		}
		return 0
	})
	gauge("borrowed_bytes", "Memory borrowed from the node.", func(s *NodeStats) float64 { return float64(s.Chunks * p.ChunkSize()) })
	gauge("available_bytes", "Memory that could still be borrowed from the node, as far as is known.", func(s *NodeStats) float64 { return float64(s.Space * p.ChunkSize()) })
	counter("reads", "READs done.", func(s *NodeStats) int64 { return s.Reads })
	counter("reads_in_place", "READs done in place, of memory of a node on this machine; they count among all READs, too.", func(s *NodeStats) int64 { return s.ReadsInPlace })
	counter("writes", "WRITEs done.", func(s *NodeStats) int64 { return s.Writes })
	counter("atomics", "Atomic operations done.", func(s *NodeStats) int64 { return s.Atomics })
	counter("read_bytes", "Bytes read.", func(s *NodeStats) int64 { return s.BytesRead })
	counter("written_bytes", "Bytes written.", func(s *NodeStats) int64 { return s.BytesWritten })
	counter("allocs", "Chunks allocated.", func(s *NodeStats) int64 { return s.Allocs })
	counter("frees", "Chunks freed.", func(s *NodeStats) int64 { return s.Frees })
	counter("lost", "Chunks lost.", func(s *NodeStats) int64 { return s.Lost })
	counter("retries", "Operations repeated after a connection was lost.", func(s *NodeStats) int64 { return s.Retries })
	counter("reconnects", "Connections lost.", func(s *NodeStats) int64 { return s.Reconnects })
	return c
}

type collector struct {
	pool    *Pool
	buffer  *prometheus.Desc
	perNode []nodeMetric
}

type nodeMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*NodeStats) float64
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.buffer
	for _, m := range c.perNode {
		ch <- m.desc
	}
	for _, n := range c.pool.all() {
		for _, h := range n.counters.took {
			h.Describe(ch)
		}
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := c.pool.Stats()
	ch <- prometheus.MustNewConstMetric(c.buffer, prometheus.GaugeValue, float64(s.BufferUsed))
	for i := range s.Nodes {
		n := &s.Nodes[i]
		for _, m := range c.perNode {
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(n), n.Name)
		}
	}
	for _, n := range c.pool.all() {
		for _, h := range n.counters.took {
			h.Collect(ch)
		}
	}
}
