package witness

import "github.com/prometheus/client_golang/prometheus"

// The names of requests and answers, by number.
var (
	kindNames   = [kinds]string{kindHello: "hello", kindRead: "read", kindPrepare: "prepare", kindAccept: "accept", kindSeal: "seal", kindList: "list", kindFetch: "fetch", kindInstall: "install", kindActivate: "activate"}
	statusNames = [statuses]string{"ok", "refused", "stranger", "no_set", "other_set", "sealed", "full", "broken"}
)

var (
	requestsDesc  = prometheus.NewDesc("polder_witness_requests_total", "Requests by what they ask.", []string{"request"}, nil)
	answersDesc   = prometheus.NewDesc("polder_witness_answers_total", "Answers by what they say: refused is for rivals' ballots, stranger, no_set, other_set and sealed are for those who ask a witness that has no vote for them, full is for want of room for a register, broken for want of room for the log.", []string{"answer"}, nil)
	connsDesc     = prometheus.NewDesc("polder_witness_connections", "Connections.", nil, nil)
	acceptedDesc  = prometheus.NewDesc("polder_witness_connections_total", "Connections that have greeted.", nil, nil)
	registersDesc = prometheus.NewDesc("polder_witness_registers", "Registers that are kept.", nil, nil)
	bytesDesc     = prometheus.NewDesc("polder_witness_bytes", "Bytes of the names and values of registers.", nil, nil)
	logDesc       = prometheus.NewDesc("polder_witness_log_bytes", "Bytes of the log that a restart reads.", nil, nil)
	setDesc       = prometheus.NewDesc("polder_witness_set_version", "Version of the set of witnesses that it votes in; 0 if it has no vote.", nil, nil)
	fullDesc      = prometheus.NewDesc("polder_witness_log_full", "1 while there is no room for the next part of the log.", nil, nil)
)

// Collector returns a Prometheus collector of the witness's statistics, with names that start
// with polder_witness_.
func (s *Server) Collector() prometheus.Collector { return collector{s} }

type collector struct{ s *Server }

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{requestsDesc, answersDesc, connsDesc, acceptedDesc, registersDesc, bytesDesc, logDesc, setDesc, fullDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, kind prometheus.ValueType, n int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, float64(n), labels...)
	}
	for k := kindHello; k <= kindActivate; k++ {
		count(requestsDesc, prometheus.CounterValue, c.s.stats.requests[k].Load(), kindNames[k])
	}
	for i, name := range statusNames {
		count(answersDesc, prometheus.CounterValue, c.s.stats.answers[i].Load(), name)
	}
	c.s.mu.Lock()
	conns := len(c.s.conns)
	c.s.mu.Unlock()
	st := c.s.Status()
	var set, full int64
	if st.Set != nil && st.Next == nil {
		set = int64(st.Set.Version)
	}
	if c.s.journal.starved() != nil {
		full = 1
	}
	count(connsDesc, prometheus.GaugeValue, int64(conns))
	count(acceptedDesc, prometheus.CounterValue, c.s.stats.accepted.Load())
	count(registersDesc, prometheus.GaugeValue, int64(st.Registers))
	count(bytesDesc, prometheus.GaugeValue, st.Bytes)
	count(logDesc, prometheus.GaugeValue, st.Log)
	count(setDesc, prometheus.GaugeValue, set)
	count(fullDesc, prometheus.GaugeValue, full)
}
