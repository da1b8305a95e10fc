package memnode

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"polder/memnode/component"
)

// counters are written by the control goroutine, or by whoever raises an
// event, and read by anyone.
type counters struct {
	connected, sessions  atomic.Int64
	allocs, frees        atomic.Int64
	reclaimed, noMemory  atomic.Int64
	refused, malformed   atomic.Int64
	notOwner, violations atomic.Int64
	wakeups, busy        atomic.Int64
	cutOff               atomic.Int64
	kept, keptAway       atomic.Int64
	dropped, over, most  atomic.Int64
}

// Stats is a node's state and what it has done since it started.
type Stats struct {
	ChunkSize int   // bytes
	Chunks    int64 // in all
	Lent      int64 // chunks that clients have
	Dirty     int64 // chunks that came back and still wait to be zeroed
	Clients   int64 // connected
	Sessions  int64 // connected, in their grace period, or kept
	Kept      int64 // sessions that are kept
	KeptAway  int64 // chunks of kept sessions whose clients are not connected

	Allocs     int64         // chunks lent
	Frees      int64         // chunks that clients gave back
	Reclaimed  int64         // chunks taken back from clients that were gone
	NoMemory   int64         // requests refused for lack of memory or budget
	Refused    int64         // connections refused
	Malformed  int64         // requests that made no sense
	NotOwner   int64         // attempts to free what belongs to somebody else
	Violations int64         // one-sided operations that the device refused
	Dropped    int64         // chunks dropped because the host needed the memory, with their clients' permission
	Withheld   int64         // chunks that nobody has and that are kept unlent, since the host may need the memory
	Over       int64         // chunks that are lent beyond what the host can spare
	CutOff     int64         // connections whose chains were stopped for asking for more than the budget
	Rebound    int64         // freed keys that were replaced (FineMem)
	RebindLag  time.Duration // upper bound on how long the last replaced key worked after the free (FineMem)
	Wakeups    int64         // how often the control goroutine woke up for connections and requests
	Busy       time.Duration // how long the control goroutine has been at work

	Components component.Stats
}

// Stats returns the node's counters. They are not read at one instant.
func (n *Node) Stats() Stats {
	c := &n.counters
	s := Stats{
		ChunkSize: n.cfg.ChunkSize, Chunks: int64(n.cfg.chunks()),
		Clients: c.connected.Load(), Sessions: c.sessions.Load(),
		Allocs: c.allocs.Load(), Frees: c.frees.Load(), Reclaimed: c.reclaimed.Load(),
		NoMemory: c.noMemory.Load(), Refused: c.refused.Load(), Malformed: c.malformed.Load(),
		NotOwner: c.notOwner.Load(), Violations: c.violations.Load(), Kept: c.kept.Load(), KeptAway: c.keptAway.Load(), Dropped: c.dropped.Load(), Over: c.over.Load(), CutOff: c.cutOff.Load(), Wakeups: c.wakeups.Load(), Busy: time.Duration(c.busy.Load()),
	}
	n.manager.stats(&s)
	if n.cfg.Idle {
		s.Withheld = max(0, s.Chunks-max(c.most.Load(), s.Lent))
	}
	if n.components != nil {
		s.Components = n.components.Stats()
	}
	return s
}

// Add adds to s the statistics of another node whose chunks have the same size.
func (s *Stats) Add(o Stats) {
	s.ChunkSize = o.ChunkSize
	k := &s.Components
	for _, f := range []struct {
		to   *int64
		from int64
	}{
		{&s.Chunks, o.Chunks}, {&s.Lent, o.Lent}, {&s.Dirty, o.Dirty}, {&s.Clients, o.Clients}, {&s.Sessions, o.Sessions},
		{&s.Kept, o.Kept}, {&s.KeptAway, o.KeptAway},
		{&s.Allocs, o.Allocs}, {&s.Frees, o.Frees}, {&s.Reclaimed, o.Reclaimed}, {&s.NoMemory, o.NoMemory},
		{&s.Refused, o.Refused}, {&s.Malformed, o.Malformed}, {&s.NotOwner, o.NotOwner}, {&s.Violations, o.Violations},
		{&s.CutOff, o.CutOff}, {&s.Dropped, o.Dropped}, {&s.Over, o.Over}, {&s.Withheld, o.Withheld}, {&s.Rebound, o.Rebound}, {&s.Wakeups, o.Wakeups},
		{&k.Workers, o.Components.Workers}, {&k.Objects, o.Components.Objects}, {&k.Reserved, o.Components.Reserved},
		{&k.Requests, o.Components.Requests}, {&k.Refused, o.Components.Refused}, {&k.Panics, o.Components.Panics},
		{&k.Deaths, o.Components.Deaths}, {&k.Killed, o.Components.Killed},
	} {
		*f.to += f.from
	}
	s.RebindLag = max(s.RebindLag, o.RebindLag)
	s.Busy += o.Busy
}

// ClientInfo is one session.
type ClientInfo struct {
	Session uint64
	Peer    string    // "" while disconnected
	Chunks  int       // that the session holds
	Expires time.Time // when the chunks are reclaimed; zero if the client is connected or the session is kept
	Heap    string    // what a kept session is for, or ""
	Epoch   uint64    // of the kept session's last client, or 0
}

// Name describes the session's client for people.
func (c *ClientInfo) Name() string {
	who := c.Peer
	if who == "" {
		who = "a client that is gone"
	}
	if c.Heap != "" {
		who = "heap " + c.Heap + " (" + who + ")"
	}
	return who
}

// Clients lists the sessions, by number. It is empty once the node is closed.
func (n *Node) Clients() (infos []ClientInfo) {
	n.run(func() { infos = n.clientInfos() })
	return infos
}

func (n *Node) clientInfos() []ClientInfo {
	if t, ok := n.manager.(ticker); ok {
		t.count()
	}
	infos := make([]ClientInfo, 0, len(n.sessions))
	for id, s := range n.sessions {
		info := ClientInfo{Session: id, Chunks: n.manager.held(s), Expires: s.expires, Heap: s.keep.Heap, Epoch: s.keep.Epoch}
		if s.kept() {
			info.Expires = time.Time{}
		}
		if s.client != nil {
			info.Peer, info.Expires = s.client.conn.RemoteAddr(), time.Time{}
		}
		infos = append(infos, info)
	}
	slices.SortFunc(infos, func(a, b ClientInfo) int { return cmp.Compare(a.Session, b.Session) })
	return infos
}

// NewCollector returns a Prometheus collector of nodes' statistics, added up.
func NewCollector(nodes ...*Node) prometheus.Collector {
	c := &collector{nodes: nodes}
	gauge := func(name, help string, value func(*Stats) int64) {
		c.add(name, help, prometheus.GaugeValue, func(s *Stats) float64 { return float64(value(s)) })
	}
	counter := func(name, help string, value func(*Stats) int64) {
		c.add(name+"_total", help, prometheus.CounterValue, func(s *Stats) float64 { return float64(value(s)) })
	}
	gauge("chunk_bytes", "Size of a chunk.", func(s *Stats) int64 { return int64(s.ChunkSize) })
	memory := func(use string, chunks func(*Stats) int64) {
		desc := prometheus.NewDesc("polder_node_memory_bytes", "Memory that there is to lend, by what it is used for: lent, dirty (given back, to be zeroed), withheld (the host may need it) or free.",
			nil, prometheus.Labels{"use": use})
		c.metrics = append(c.metrics, metric{desc, prometheus.GaugeValue, func(s *Stats) float64 { return float64(chunks(s) * int64(s.ChunkSize)) }})
	}
	memory("lent", func(s *Stats) int64 { return s.Lent })
	memory("dirty", func(s *Stats) int64 { return s.Dirty })
	memory("withheld", func(s *Stats) int64 { return s.Withheld })
	memory("free", func(s *Stats) int64 { return max(s.Chunks-s.Lent-s.Dirty-s.Withheld, 0) })
	gauge("clients", "Connected clients.", func(s *Stats) int64 { return s.Clients })
	gauge("sessions", "Clients, connected, in their grace period, or of heaps that are kept while their clients are away.", func(s *Stats) int64 { return s.Sessions })
	gauge("kept_sessions", "Clients whose memory is kept while they are away.", func(s *Stats) int64 { return s.Kept })
	gauge("kept_bytes", "Memory that is kept for clients that are not connected.", func(s *Stats) int64 { return s.KeptAway * int64(s.ChunkSize) })
	counter("allocs", "Chunks lent.", func(s *Stats) int64 { return s.Allocs })
	counter("frees", "Chunks given back.", func(s *Stats) int64 { return s.Frees })
	counter("reclaimed", "Chunks taken back from clients that were gone.", func(s *Stats) int64 { return s.Reclaimed })
	counter("no_memory", "Requests refused for lack of memory or budget.", func(s *Stats) int64 { return s.NoMemory })
	counter("refused", "Connections refused.", func(s *Stats) int64 { return s.Refused })
	counter("malformed", "Malformed requests.", func(s *Stats) int64 { return s.Malformed })
	counter("not_owner", "Attempts to free somebody else's chunk.", func(s *Stats) int64 { return s.NotOwner })
	counter("violations", "One-sided operations that the device refused.", func(s *Stats) int64 { return s.Violations })
	counter("cut_off", "Connections cut off for having asked for more than the budget.", func(s *Stats) int64 { return s.CutOff })
	counter("dropped_bytes", "Memory that was dropped because the host needed it, of copies that clients can do without.", func(s *Stats) int64 { return s.Dropped * int64(s.ChunkSize) })
	gauge("over_bytes", "Memory that is lent beyond what the host can spare, until clients have moved what they have there.", func(s *Stats) int64 { return s.Over * int64(s.ChunkSize) })
	if slices.ContainsFunc(nodes, func(n *Node) bool { _, ok := n.manager.(*finemem); return ok }) {
		c.addRebinding()
	}
	counter("wakeups", "Wake-ups of the control goroutine.", func(s *Stats) int64 { return s.Wakeups })
	c.add("busy_seconds_total", "Time that the control goroutine has been at work.", prometheus.CounterValue, func(s *Stats) float64 { return s.Busy.Seconds() })
	if !slices.ContainsFunc(nodes, func(n *Node) bool { return n.components != nil }) {
		return c
	}
	gauge("component_workers", "Processes that hold clients' objects.", func(s *Stats) int64 { return s.Components.Workers })
	gauge("component_objects", "Objects of active components that are at the node.", func(s *Stats) int64 { return s.Components.Objects })
	gauge("component_reserved_bytes", "Memory that is reserved for objects of components.", func(s *Stats) int64 { return s.Components.Reserved })
	counter("component_requests", "Requests to components that were answered.", func(s *Stats) int64 { return s.Components.Requests })
	counter("component_refused", "Requests to components that failed.", func(s *Stats) int64 { return s.Components.Refused })
	counter("component_panics", "Panics of components.", func(s *Stats) int64 { return s.Components.Panics })
	counter("component_deaths", "Component workers that ended under their clients.", func(s *Stats) int64 { return s.Components.Deaths })
	counter("component_killed", "Component workers that were ended because a request ran for too long.", func(s *Stats) int64 { return s.Components.Killed })
	return c
}

// addRebinding adds what only a node whose manager is finemem does.
func (c *collector) addRebinding() {
	c.add("rebound_total", "Freed keys that the background worker has replaced.", prometheus.CounterValue, func(s *Stats) float64 { return float64(s.Rebound) })
	c.add("rebind_lag_seconds", "How long the last freed key may have worked until it was replaced.", prometheus.GaugeValue, func(s *Stats) float64 { return s.RebindLag.Seconds() })
}

type collector struct {
	nodes   []*Node
	metrics []metric
}

type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*Stats) float64
}

func (c *collector) add(name, help string, kind prometheus.ValueType, value func(*Stats) float64) {
	desc := prometheus.NewDesc("polder_node_"+name, help, nil, nil)
	c.metrics = append(c.metrics, metric{desc, kind, value})
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range c.metrics {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	var s Stats
	for _, n := range c.nodes {
		s.Add(n.Stats())
	}
	for _, m := range c.metrics {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(&s))
	}
}
