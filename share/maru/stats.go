package maru

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// maxOperations bounds the pairs of a client and an operation that reports are kept of. Reports of further pairs
// count for the client "_other".
const maxOperations = 1024

// allClients is the client that stands for the sum of all.
const allClients = "_all"

// operation is what clients have reported of one kind of call.
type operation struct {
	count, hits, misses, bytes int64
	all, interval              times
}

// times sums up how long calls took, in microseconds.
type times struct {
	n             int64
	sum, min, max float64
}

func (t *times) add(us float64) {
	if t.n == 0 || us < t.min {
		t.min = us
	}
	t.max = max(t.max, us)
	t.n++
	t.sum += us
}

func (t *times) average() float64 {
	if t.n == 0 {
		return 0
	}
	return t.sum / float64(t.n)
}

// reports are what clients have reported of themselves. The zero value is ready.
type reports struct {
	mu      sync.Mutex
	clients map[string]map[string]*operation
	n       int // operations
}

func (r *reports) add(entries []report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range entries {
		for _, client := range []string{e.client, allClients} {
			o := r.operation(client, e.op)
			o.count++
			o.bytes += e.size
			switch e.result {
			case "hit":
				o.hits++
			case "miss":
				o.misses++
			}
			o.all.add(e.micros)
			o.interval.add(e.micros)
		}
	}
}

// operation finds, or makes, what is kept of a client's operation.
//
// Preconditions: r.mu is held.
func (r *reports) operation(client, op string) *operation {
	if o := r.clients[client][op]; o != nil {
		return o
	}
	if r.n >= maxOperations && client != "_other" {
		return r.operation("_other", "other")
	}
	if r.clients == nil {
		r.clients = map[string]map[string]*operation{}
	}
	if r.clients[client] == nil {
		r.clients[client] = map[string]*operation{}
	}
	o := &operation{}
	r.clients[client][op] = o
	r.n++
	return o
}

// write writes what was reported, and begins a new interval.
func (r *reports) write(e *encoder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.clients)
	if r.clients[allClients] == nil {
		n++
	}
	e.object(n)
	if n > len(r.clients) {
		e.text(allClients)
		e.object(1)
		e.text("operations")
		e.object(0)
	}
	for client, ops := range r.clients {
		e.text(client)
		e.object(1)
		e.text("operations")
		e.object(len(ops))
		for name, o := range ops {
			e.text(name)
			o.write(e)
			o.interval = times{}
		}
	}
}

func (o *operation) write(e *encoder) {
	e.object(12)
	e.intField("count", o.count)
	e.intField("hit_count", o.hits)
	e.intField("miss_count", o.misses)
	e.intField("total_bytes", o.bytes)
	e.intField("interval_count", o.interval.n)
	for _, f := range []struct {
		name  string
		value float64
	}{
		{"latency_sum_us", o.all.sum}, {"avg_latency_us", o.all.average()}, {"min_latency_us", o.all.min}, {"max_latency_us", o.all.max},
		{"interval_avg_us", o.interval.average()}, {"interval_min_us", o.interval.min}, {"interval_max_us", o.interval.max},
	} {
		e.text(f.name)
		e.float(f.value)
	}
}

// stats answers GET_STATS.
func (c *client) stats() {
	e := c.enc
	by, keys, _, _ := c.guest.Usage()
	var regions, owners int
	var used, allocated int64
	for _, u := range by {
		regions, used, allocated = regions+u.Regions, used+u.Used, allocated+u.Allocated
		if u.Instance != "" {
			owners++
		}
	}
	e.object(3)
	e.text("kv_manager")
	e.object(2)
	e.intField("total_entries", int64(keys))
	e.intField("total_size", used)
	e.text("allocation_manager")
	e.object(3)
	e.intField("num_allocations", int64(regions))
	e.intField("total_allocated", allocated)
	e.intField("active_clients", int64(owners))
	e.text("stats_manager")
	e.object(1)
	e.text("clients")
	c.d.reports.write(e)
}

// usage answers GET_USAGE.
func (c *client) usage() {
	e := c.enc
	by, _, free, total := c.guest.Usage()
	e.object(3)
	e.text("instances")
	e.array(len(by))
	for _, u := range by {
		e.object(4)
		e.textField("instance_id", u.Instance)
		e.intField("regions", int64(u.Regions))
		e.intField("allocated", u.Allocated)
		e.intField("used", u.Used)
	}
	e.intField("pool_total", total)
	e.intField("pool_free", free)
}

// counts is what the door has done.
type counts struct {
	requests  [256]atomic.Uint64 // to the directory, by type
	resources atomic.Uint64      // to the resource manager
	refused   atomic.Uint64
	replayed  atomic.Uint64
}

var typeNames = map[byte]string{
	typeAlloc: "alloc", typeReturn: "return", typeList: "list", typeRegister: "register", typeLookup: "lookup", typeExists: "exists",
	typeDelete: "delete", typePin: "pin", typeUnpin: "unpin", typeBatchRegister: "batch_register", typeBatchLookup: "batch_lookup",
	typeBatchExists: "batch_exists", typeBatchPin: "batch_pin", typeBatchUnpin: "batch_unpin", typeStats: "get_stats",
	typeHeartbeat: "heartbeat", typeReport: "report_stats", typeUsage: "get_usage", typeHandshake: "handshake",
}

var (
	requestsDesc  = prometheus.NewDesc("polder_share_maru_requests_total", "Requests of Maru's clients, by what they ask for.", []string{"request"}, nil)
	refusedDesc   = prometheus.NewDesc("polder_share_maru_refused_total", "Requests of Maru's clients that were refused.", nil, nil)
	replayedDesc  = prometheus.NewDesc("polder_share_maru_replayed_total", "Tokens that somebody else has presented than they were told to.", nil, nil)
	lateDesc      = prometheus.NewDesc("polder_share_maru_late_total", "Requests of Maru's clients that were refused since they came too late.", nil, nil)
	connectedDesc = prometheus.NewDesc("polder_share_maru_connections", "Connections of Maru's clients.", []string{"to"}, nil)
)

// Collectors returns what /metrics shows.
func (d *Door) Collectors() []prometheus.Collector { return []prometheus.Collector{collector{d}} }

type collector struct{ d *Door }

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{requestsDesc, refusedDesc, replayedDesc, lateDesc, connectedDesc} {
		ch <- desc
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	d := c.d
	for kind, name := range typeNames {
		ch <- prometheus.MustNewConstMetric(requestsDesc, prometheus.CounterValue, float64(d.counts.requests[kind].Load()), name)
	}
	ch <- prometheus.MustNewConstMetric(requestsDesc, prometheus.CounterValue, float64(d.counts.resources.Load()), "resources")
	ch <- prometheus.MustNewConstMetric(refusedDesc, prometheus.CounterValue, float64(d.counts.refused.Load()))
	ch <- prometheus.MustNewConstMetric(replayedDesc, prometheus.CounterValue, float64(d.counts.replayed.Load()))
	ch <- prometheus.MustNewConstMetric(lateDesc, prometheus.CounterValue, float64(d.s.Info().MaruLate))
	d.mu.Lock()
	clients, mappers := len(d.clients), len(d.mappers)
	d.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(connectedDesc, prometheus.GaugeValue, float64(clients), "directory")
	ch <- prometheus.MustNewConstMetric(connectedDesc, prometheus.GaugeValue, float64(mappers), "resources")
}
