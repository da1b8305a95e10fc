package server

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"polder/share/internal/wire"
)

// Collectors returns what /metrics shows.
func (s *Server) Collectors() []prometheus.Collector { return []prometheus.Collector{collector{s}} }

// collector reads all figures at once, under one lock.
type collector struct{ s *Server }

type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*wire.Info) float64
}

func gauge(name, help string, value func(*wire.Info) float64) metric {
	return metric{prometheus.NewDesc("polder_share_"+name, help, nil, nil), prometheus.GaugeValue, value}
}

func counter(name, help string, value func(*wire.Info) float64) metric {
	return metric{prometheus.NewDesc("polder_share_"+name+"_total", help, nil, nil), prometheus.CounterValue, value}
}

var metrics = []metric{
	gauge("keys", "Registered keys.", func(i *wire.Info) float64 { return float64(i.Keys) }),
	gauge("bytes", "Bytes in registered keys.", func(i *wire.Info) float64 { return float64(i.Bytes) }),
	gauge("regions", "Regions.", func(i *wire.Info) float64 { return float64(i.Regions) }),
	gauge("regions_deferred", "Regions whose owner has left.", func(i *wire.Info) float64 { return float64(i.Deferred) }),
	gauge("clients", "Attached clients.", func(i *wire.Info) float64 { return float64(i.Sessions) }),
	gauge("connections", "Open connections.", func(i *wire.Info) float64 { return float64(i.Conns) }),
	gauge("views", "Open views.", func(i *wire.Info) float64 { return float64(i.Views) }),
	gauge("pages_waiting", "Pages whose key is gone and that are looked at.", func(i *wire.Info) float64 { return float64(i.Waiting) }),
	gauge("clients_settling", "Clients of before the restart of the daemon that have not come back yet.", func(i *wire.Info) float64 { return float64(i.Settling) }),
	gauge("log_bytes", "Bytes of the log that a restart would read.", func(i *wire.Info) float64 { return float64(i.LogBytes) }),
	gauge("log_full", "1 while there is no room for the next segment of the log.", func(i *wire.Info) float64 { return float64(flag(i.LogFull)) }),
	counter("checkpoints", "Checkpoints saved.", func(i *wire.Info) float64 { return float64(i.Checkpoints) }),
	counter("checkpoints_failed", "Checkpoints that could not be saved.", func(i *wire.Info) float64 { return float64(i.FailedCheckpoints) }),
	gauge("clients_fenced", "Clients that were fenced and may be alive.", func(i *wire.Info) float64 { return float64(i.Fenced) }),
	counter("puts", "Keys registered.", func(i *wire.Info) float64 { return float64(i.Puts) }),
	counter("puts_existed", "Registrations of keys that existed.", func(i *wire.Info) float64 { return float64(i.Existed) }),
	counter("lookups", "Lookups.", func(i *wire.Info) float64 { return float64(i.Lookups) }),
	counter("hits", "Keys found by lookups.", func(i *wire.Info) float64 { return float64(i.Hits) }),
	counter("deletes", "Keys deleted.", func(i *wire.Info) float64 { return float64(i.Deletes) }),
	counter("evictions", "Keys evicted.", func(i *wire.Info) float64 { return float64(i.Evictions) }),
	counter("expired", "Keys expired.", func(i *wire.Info) float64 { return float64(i.Expired) }),
	counter("allocations", "Regions allocated.", func(i *wire.Info) float64 { return float64(i.Allocs) }),
	counter("frees", "Regions freed.", func(i *wire.Info) float64 { return float64(i.Frees) }),
	counter("reaped", "Dead clients reaped.", func(i *wire.Info) float64 { return float64(i.Reaped) }),
	counter("denied", "Requests denied.", func(i *wire.Info) float64 { return float64(i.Denied) }),
	counter("posted", "Requests that came through shared memory.", func(i *wire.Info) float64 { return float64(i.Posted) }),
	counter("log_records", "Records appended to the log.", func(i *wire.Info) float64 { return float64(i.Records) }),
}

var (
	poolSize    = prometheus.NewDesc("polder_share_pool_bytes", "Size of a pool.", []string{"pool"}, nil)
	poolLargest = prometheus.NewDesc("polder_share_pool_largest_free_bytes", "Largest free range of a pool: no region can be larger.", []string{"pool"}, nil)
	poolRegions = prometheus.NewDesc("polder_share_pool_regions", "Regions in a pool.", []string{"pool"}, nil)
	tenantBytes = prometheus.NewDesc("polder_share_tenant_bytes", "Bytes of a tenant's regions.", []string{"tenant"}, nil)
	poolFree    = prometheus.NewDesc("polder_share_pool_free_bytes", "Free bytes of a pool.", []string{"pool"}, nil)
)

// awaited names the clients that the daemon waits for after a restart.
var awaited = prometheus.NewDesc("polder_share_client_awaited_seconds",
	"For how long a client of before the restart has not come back.", []string{"client", "pid", "name"}, nil)

// maxAwaited bounds the clients that the metrics name.
const maxAwaited = 32

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range metrics {
		ch <- m.desc
	}
	ch <- poolSize
	ch <- poolFree
	ch <- awaited
	ch <- poolLargest
	ch <- poolRegions
	ch <- tenantBytes
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	info := c.s.Info()
	for _, m := range metrics {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(&info))
	}
	for _, ss := range c.s.awaited(maxAwaited) {
		ch <- prometheus.MustNewConstMetric(awaited, prometheus.GaugeValue, ss.Away, fmt.Sprintf("%016x", ss.ID), strconv.Itoa(ss.PID), ss.Name)
	}
	for _, p := range info.Pools {
		ch <- prometheus.MustNewConstMetric(poolSize, prometheus.GaugeValue, float64(p.Size), p.Name)
		ch <- prometheus.MustNewConstMetric(poolFree, prometheus.GaugeValue, float64(p.Free), p.Name)
		ch <- prometheus.MustNewConstMetric(poolLargest, prometheus.GaugeValue, float64(p.Largest), p.Name)
		ch <- prometheus.MustNewConstMetric(poolRegions, prometheus.GaugeValue, float64(p.Regions), p.Name)
	}
	for tenant, n := range info.Tenants {
		ch <- prometheus.MustNewConstMetric(tenantBytes, prometheus.GaugeValue, float64(n), strings.ToValidUTF8(tenant, "?"))
	}
}
