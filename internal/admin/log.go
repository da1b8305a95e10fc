package admin

import (
	"log/slog"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"polder/internal/ratelog"
)

var logMessages = prometheus.NewDesc("polder_log_messages_total",
	"Times that a message was logged, or left out of the log because it came too often.", []string{"level", "message"}, nil)

// logCollector shows how often each message was logged.
type logCollector struct{ log *slog.Logger }

// Describe implements prometheus.Collector.
func (c logCollector) Describe(ch chan<- *prometheus.Desc) { ch <- logMessages }

// Collect implements prometheus.Collector.
func (c logCollector) Collect(ch chan<- prometheus.Metric) {
	for m, n := range ratelog.Counts(c.log) {
		ch <- prometheus.MustNewConstMetric(logMessages, prometheus.CounterValue, float64(n),
			strings.ToLower(m.Level.String()), strings.ToValidUTF8(m.Text, "?"))
	}
}
