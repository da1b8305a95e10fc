// Package console is what people see of a daemon: its state, the last hour of it,
// and the page that shows both at "/" of the administrative address.
//
// A [State] is made of the daemon's own Prometheus metrics, and of the few things
// that no metric can say: the reason why it is not well, the last lines of its
// log, what Explain advises. The page, "polder top" and "polder status" show a
// State and nothing else, so that each figure agrees with the metric of its name.
// [Panels] says what is plotted; the dashboard for Grafana is made of it, too.
//
// A Console owns one goroutine, which takes a State every [Step]. What it keeps is
// bounded: [MaxSeries] series of [Points] points of four bytes each, and [MaxEvents]
// lines of log. At most [MaxStreams] pages are fed at a time; a page that does not
// read gets the newest State when it reads again, and none in between. A Console
// may be used by any number of goroutines.
package console

import (
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// State is what a daemon says of itself at one instant: /status is one, as JSON.
type State struct {
	Service   string            `json:"service"` // node, broker, serve, up, coordinator, witness or share
	Version   string            `json:"version"`
	PID       int               `json:"pid"`
	Started   time.Time         `json:"started"`
	Now       time.Time         `json:"now"`       // when it was taken
	Addresses map[string]string `json:"addresses"` // by service
	Problem   string            `json:"problem,omitempty"`

	Advice  []string `json:"advice,omitempty"`  // what Explain says
	Clients []Client `json:"clients,omitempty"` // a node's: who has borrowed what
	Curves  []Curve  `json:"curves,omitempty"`  // of soft caches
	Events  []Event  `json:"events,omitempty"`  // the last of the log, oldest first
	Metrics Metrics  `json:"metrics"`
	History *History `json:"history,omitempty"` // for those who ask for it
}

// Client is somebody who has borrowed memory.
type Client struct {
	Name    string     `json:"name"`
	Bytes   int64      `json:"bytes"`
	Expires *time.Time `json:"expires,omitempty"` // it is gone, and its memory will be taken back then
}

// Curve says how many more reads a soft cache would answer if it had more memory.
type Curve struct {
	Name  string    `json:"name"`
	Bytes []float64 `json:"bytes"` // sizes, ascending
	Ratio []float64 `json:"ratio"` // hits of all reads with so much memory
}

// Event is a line of the log.
type Event struct {
	Time  time.Time `json:"time"`
	Level string    `json:"level"` // info, warn or error
	Text  string    `json:"text"`
	More  string    `json:"more,omitempty"` // its attributes
}

// Metrics are a daemon's metrics, by name.
type Metrics map[string]*Metric

// Metric is all that has one name.
type Metric struct {
	Type    string   `json:"type"` // counter, gauge or histogram
	Help    string   `json:"help,omitempty"`
	Samples []Sample `json:"samples"`
}

// Sample is the value for one set of labels.
type Sample struct {
	Labels map[string]string `json:"labels,omitempty"`
	Value  float64           `json:"value"` // of a histogram, how many were observed

	Sum     float64  `json:"sum,omitempty"`     // of what a histogram has observed
	Buckets []Bucket `json:"buckets,omitempty"` // of a histogram, ascending
}

// Bucket counts what a histogram has observed from the last bucket's bound to its
// own. The last of all has none.
type Bucket struct {
	To    float64 `json:"to,omitempty"`
	Count float64 `json:"count"`
}

// Has reports whether there is a metric of that name.
func (m Metrics) Has(name string) bool { return m[name] != nil }

// Sum is the sum of a metric's values over all labels that match: each of match
// reads label=value. It is 0 if there are none.
func (m Metrics) Sum(name string, match ...string) (sum float64) {
	metric := m[name]
	if metric == nil {
		return 0
	}
	for _, s := range metric.Samples {
		if s.matches(match) {
			sum += s.Value
		}
	}
	return sum
}

// Max is the largest of a metric's values over all labels that match, for what is
// there several times: the partitions of a server see the same nodes. It is 0 if there are none.
func (m Metrics) Max(name string, match ...string) (most float64) {
	if metric := m[name]; metric != nil {
		for _, s := range metric.Samples {
			if s.matches(match) {
				most = max(most, s.Value)
			}
		}
	}
	return most
}

// Int is Sum as an integer.
func (m Metrics) Int(name string, match ...string) int64 { return int64(m.Sum(name, match...)) }

// Values are the values of one label of a metric, sorted.
func (m Metrics) Values(name, label string) []string {
	values := map[string]bool{}
	if metric := m[name]; metric != nil {
		for _, s := range metric.Samples {
			values[s.Labels[label]] = true
		}
	}
	return slices.Sorted(maps.Keys(values))
}

// Label is the value of a label of a metric's first sample.
func (m Metrics) Label(name, label string) string {
	if metric := m[name]; metric != nil && len(metric.Samples) > 0 {
		return metric.Samples[0].Labels[label]
	}
	return ""
}

func (s *Sample) matches(match []string) bool {
	for _, pair := range match {
		label, value, _ := strings.Cut(pair, "=")
		if s.Labels[label] != value {
			return false
		}
	}
	return true
}

// shown has the prefixes of the names of metrics that a State has. All other metrics about Go and the process, but
// for a few, are in /metrics only.
var shown = []string{"polder_", "process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds", "process_max_fds", "go_goroutines"}

// newMetrics turns what a registry has gathered into Metrics.
func newMetrics(families []*dto.MetricFamily) Metrics {
	metrics := make(Metrics, len(families))
	for _, f := range families {
		if !slices.ContainsFunc(shown, func(p string) bool { return strings.HasPrefix(f.GetName(), p) }) {
			continue
		}
		m := &Metric{Type: strings.ToLower(f.GetType().String()), Help: f.GetHelp()}
		for _, from := range f.GetMetric() {
			if s, ok := newSample(from); ok {
				m.Samples = append(m.Samples, s)
			}
		}
		metrics[f.GetName()] = m
	}
	return metrics
}

// newSample refuses what JSON has no number for.
func newSample(m *dto.Metric) (s Sample, ok bool) {
	if labels := m.GetLabel(); len(labels) > 0 {
		s.Labels = make(map[string]string, len(labels))
		for _, l := range labels {
			s.Labels[l.GetName()] = l.GetValue()
		}
	}
	if h := m.GetHistogram(); h != nil {
		s.Value, s.Sum = float64(h.GetSampleCount()), h.GetSampleSum()
		below := 0.0
		for _, b := range h.GetBucket() {
			n := float64(b.GetCumulativeCount())
			s.Buckets = append(s.Buckets, Bucket{To: b.GetUpperBound(), Count: n - below})
			below = n
		}
		s.Buckets = append(s.Buckets, Bucket{Count: s.Value - below})
	} else {
		s.Value = m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
	}
	return s, !math.IsNaN(s.Value+s.Sum) && !math.IsInf(s.Value+s.Sum, 0)
}

// withoutHelp returns the metrics for a page that has the help texts already.
func (m Metrics) withoutHelp() Metrics {
	bare := make(Metrics, len(m))
	for name, metric := range m {
		bare[name] = &Metric{Type: metric.Type, Samples: metric.Samples}
	}
	return bare
}
