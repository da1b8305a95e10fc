package prom

import (
	"github.com/prometheus/client_golang/prometheus"

	"polder/far/copies"
)

// copiesMetric is one series of a store that keeps copies.
type copiesMetric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*copies.Stats) float64
}

func describeCopies(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("polder_copies_"+name, help, labels, nil)
}

var copiesMetrics = []copiesMetric{
	{describeCopies("segments", "Segments that are kept in copies."), isGauge, func(s *copies.Stats) float64 { return float64(s.Segments) }},
	{describeCopies("endangered_segments", "Segments that have fewer copies than they should at nodes that answer."), isGauge, func(s *copies.Stats) float64 { return float64(s.Endangered) }},
	{describeCopies("doubted_segments", "Segments that wait for a copy at a node that does not answer, since something is wrong, or not known to be right, in those that are left."), isGauge, func(s *copies.Stats) float64 { return float64(s.Doubted) }},
	{describeCopies("spare_segments", "Segments that have one more copy, at a node that lends what its host does not need, which may vanish."), isGauge, func(s *copies.Stats) float64 { return float64(s.Spares) }},
	{describeCopies("vanished_total", "Such copies that were dropped, since the host needed the memory."), isCounter, func(s *copies.Stats) float64 { return float64(s.Vanished) }},
	{describeCopies("promoted_total", "Such copies that have taken the place of one that was lost or had to move."), isCounter, func(s *copies.Stats) float64 { return float64(s.Promoted) }},
	{describeCopies("lost_segments_total", "Segments of which all copies were lost, and with them what had been written to them."), isCounter, func(s *copies.Stats) float64 { return float64(s.Lost) }},
	{describeCopies("lost_total", "Copies that were lost with their node."), isCounter, func(s *copies.Stats) float64 { return float64(s.CopiesLost) }},
	{describeCopies("condemned_total", "Copies that had other bytes than were written, and were replaced."), isCounter, func(s *copies.Stats) float64 { return float64(s.Condemned) }},
	{describeCopies("repaired_total", "Copies that were made in the place of others."), isCounter, func(s *copies.Stats) float64 { return float64(s.Repaired) }},
	{describeCopies("repaired_bytes_total", "Bytes that were copied for those."), isCounter, func(s *copies.Stats) float64 { return float64(s.RepairedBytes) }},
	{describeCopies("repair_seconds_total", "Time in which that was done."), isCounter, func(s *copies.Stats) float64 { return s.RepairTime.Seconds() }},
	{describeCopies("sealed_total", "Segments that were closed because a copy was late or failed."), isCounter, func(s *copies.Stats) float64 { return float64(s.Sealed) }},
	{describeCopies("second_reads_total", "Reads that were made at a second copy because the first was late."), isCounter, func(s *copies.Stats) float64 { return float64(s.Seconds) }},
	{describeCopies("second_reads_used_total", "Those of them that came first."), isCounter, func(s *copies.Stats) float64 { return float64(s.SecondsUsed) }},
}

var (
	copiesAt   = describeCopies("held", "Copies at the node.", "node", "zone")
	copiesLate = describeCopies("late_total", "How often the node was late.", "node", "zone")
	copiesUp   = describeCopies("node_answers", "Whether the node answers in time.", "node", "zone")
)

// NewCopiesCollector returns a Prometheus collector of s's statistics.
func NewCopiesCollector(s *copies.Store) prometheus.Collector { return &copiesCollector{s} }

type copiesCollector struct{ store *copies.Store }

// Describe implements prometheus.Collector.
func (c *copiesCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range copiesMetrics {
		ch <- m.desc
	}
	ch <- copiesAt
	ch <- copiesLate
	ch <- copiesUp
}

// Collect implements prometheus.Collector.
func (c *copiesCollector) Collect(ch chan<- prometheus.Metric) {
	st := c.store.Stats()
	for _, m := range copiesMetrics {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.of(&st))
	}
	for _, p := range st.Places {
		up := 0.0
		if p.State == "up" || p.State == "leaving" {
			up = 1
		}
		ch <- prometheus.MustNewConstMetric(copiesAt, isGauge, float64(p.Copies), p.Name, p.Zone)
		ch <- prometheus.MustNewConstMetric(copiesLate, isCounter, float64(p.Late), p.Name, p.Zone)
		ch <- prometheus.MustNewConstMetric(copiesUp, isGauge, up, p.Name, p.Zone)
	}
}
