package coordinator

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// Collectors returns what /metrics shows.
func (c *Coordinator) Collectors() []prometheus.Collector {
	return []prometheus.Collector{collector{c}}
}

// collector turns a coordinator's statistics into metrics.
type collector struct{ c *Coordinator }

var (
	clientsDesc   = desc("clients", "Registered clients.")
	availableDesc = desc("available_bytes", "Memory that could be allocated on the host.")
	targetDesc    = desc("target_bytes", "Soft memory that there could be in all.")
	grantedAll    = desc("granted_bytes", "Soft memory that clients may use, in all.")
	residentAll   = desc("resident_bytes", "Soft memory of clients that exists, in all.")
	reserveDesc   = desc("reserve_bytes", "Memory of the host that is kept free.")
	missCostDesc  = desc("miss_cost_seconds", "What a miss costs in the median of the clients that measure it.")
	refusedDesc   = desc("refused_total", "Connections that were refused.")
	malformedDesc = desc("malformed_total", "Messages that could not be understood.")
	takenDesc     = desc("reclaimed_segments_total", "Segments taken back.", "how")
	auditsDesc    = desc("audits_total", "Clients found to keep more than was granted.")
	endedDesc     = desc("ended_total", "Clients that were ended because they went on keeping more than was granted.")
	grantedDesc   = desc("client_granted_bytes", "Memory that a client may use.", "client", "name", "pid")
	residentDesc  = desc("client_resident_bytes", "Memory of a client that exists.", "client", "name", "pid")
	usedDesc      = desc("client_used_bytes", "Memory of a client that holds something.", "client", "name", "pid")
	hitsDesc      = desc("client_hits_total", "Lookups of a client that found something.", "client", "name", "pid")
	missesDesc    = desc("client_misses_total", "Lookups of a client that found nothing.", "client", "name", "pid")
	costDesc      = desc("client_miss_cost_seconds", "What a miss is taken to cost a client: what it measures, or else the median of those that do.", "client", "name", "pid")
	weightDesc    = desc("client_weight", "How much what a client saves counts beside what others do.", "client", "name", "pid")
	rebuildDesc   = desc("client_rebuild_seconds_total", "Time that a client says to have spent rebuilding.", "client", "name", "pid")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("polder_coordinator_"+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (k collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(k, ch) }

// Collect implements prometheus.Collector.
func (k collector) Collect(ch chan<- prometheus.Metric) {
	st := k.c.Stats()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	gauge(clientsDesc, float64(st.Clients))
	gauge(availableDesc, float64(st.Available))
	gauge(targetDesc, float64(st.Target))
	gauge(grantedAll, float64(st.Granted))
	gauge(residentAll, float64(st.Resident))
	gauge(reserveDesc, float64(st.Reserve))
	gauge(missCostDesc, st.MissCost)
	count(refusedDesc, float64(st.Refused))
	count(malformedDesc, float64(st.Malformed))
	count(takenDesc, float64(st.Cooperative), "cooperatively")
	count(takenDesc, float64(st.Direct), "directly")
	count(auditsDesc, float64(st.Audits))
	count(endedDesc, float64(st.Ended))
	for _, c := range st.MoreByClient {
		labels := []string{strconv.FormatUint(c.ID, 10), c.Name, strconv.Itoa(c.PID)}
		gauge(grantedDesc, float64(c.Granted), labels...)
		gauge(residentDesc, float64(c.Resident), labels...)
		gauge(usedDesc, float64(c.Used), labels...)
		count(hitsDesc, float64(c.Hits), labels...)
		count(missesDesc, float64(c.Misses), labels...)
		count(rebuildDesc, c.Rebuild, labels...)
		gauge(costDesc, c.MissCost, labels...)
		gauge(weightDesc, c.Weight, labels...)
	}
}
