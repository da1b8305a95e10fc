package console

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// What a Console remembers: an hour.
const (
	Step      = 3 * time.Second
	Points    = 1200
	MaxSeries = 64 // beyond them, further values of a label are not plotted
)

// History is what the panels have plotted in the last hour, oldest first.
type History struct {
	Times  []int64   `json:"times"` // Unix milliseconds, one for each point
	Series []*Series `json:"series"`
}

// Series is one line of one panel.
type Series struct {
	Panel  string    `json:"panel"`
	Name   string    `json:"name"`
	Metric string    `json:"metric"`
	Values pointList `json:"values"`

	line Line
}

// Last is the newest point of a line, NaN if there is none.
func (h *History) Last(panel, name string) float64 {
	for _, s := range h.Series {
		if s.Panel == panel && s.Name == name && len(s.Values) > 0 {
			return float64(s.Values[len(s.Values)-1])
		}
	}
	return math.NaN()
}

// pointList is a list of points; NaN where there was nothing to measure. In JSON
// that is null, and other numbers have four digits.
type pointList []float32

// MarshalJSON implements json.Marshaler.
func (l pointList) MarshalJSON() ([]byte, error) {
	b := append(make([]byte, 0, 2+7*len(l)), '[')
	for i, v := range l {
		if i > 0 {
			b = append(b, ',')
		}
		switch f := float64(v); {
		case math.IsNaN(f) || math.IsInf(f, 0):
			b = append(b, "null"...)
		case math.Abs(f) >= 1e4 && f == math.Trunc(f):
			b = strconv.AppendFloat(b, f, 'f', 0, 32)
		default:
			b = strconv.AppendFloat(b, f, 'g', 4, 32)
		}
	}
	return append(b, ']'), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *pointList) UnmarshalJSON(b []byte) error {
	*l = (*l)[:0]
	text := strings.Trim(string(b), "[] \n")
	if text == "" || text == "null" {
		return nil
	}
	for s := range strings.SplitSeq(text, ",") {
		if s = strings.TrimSpace(s); s == "null" {
			*l = append(*l, float32(math.NaN()))
			continue
		}
		v, err := strconv.ParseFloat(s, 32)
		if err != nil {
			return err
		}
		*l = append(*l, float32(v))
	}
	return nil
}

// history is a ring of points. It is its owner's alone.
type history struct {
	times  []int64
	series []*Series
	by     map[seriesKey]*Series
	last   Metrics // that the newest points were made of
	lastAt time.Time
}

type seriesKey struct {
	panel, line int
	value       string
}

// add makes a point of each series from the metrics at an instant.
func (h *history) add(now time.Time, m Metrics) {
	if h.by == nil {
		h.by = make(map[seriesKey]*Series)
	}
	if len(h.times) == Points { // the oldest goes
		h.times = h.times[:copy(h.times, h.times[1:])]
		for _, s := range h.series {
			s.Values = s.Values[:copy(s.Values, s.Values[1:])]
		}
	}
	for p := range Panels {
		for l, line := range Panels[p].Lines {
			if !m.Has(line.Metric) {
				continue
			}
			values := []string{""}
			if line.By != "" {
				values = m.Values(line.Metric, line.By)
			}
			for _, v := range values {
				h.begin(seriesKey{p, l, v})
			}
		}
	}
	seconds := now.Sub(h.lastAt).Seconds()
	for key, s := range h.by {
		s.Values = append(s.Values, float32(s.line.point(key.value, h.last, m, seconds)))
	}
	h.times = append(h.times, now.UnixMilli())
	h.last, h.lastAt = m, now
}

// begin begins a series, if there is room and none.
func (h *history) begin(key seriesKey) {
	if h.by[key] != nil || len(h.series) >= MaxSeries {
		return
	}
	panel := Panels[key.panel]
	s := &Series{Panel: panel.ID, Name: key.value, line: panel.Lines[key.line]}
	s.Metric = s.line.Metric
	if s.line.By == "" {
		s.Name = s.line.Name
	}
	for range h.times {
		s.Values = append(s.Values, float32(math.NaN()))
	}
	h.by[key] = s
	h.series = append(h.series, s)
}

// point is a line's newest value, for one value of its label By.
func (l *Line) point(value string, before, now Metrics, seconds float64) float64 {
	if !now.Has(l.Metric) {
		return math.NaN()
	}
	var match []string
	if l.Match != "" {
		match = append(match, l.Match)
	}
	if l.By != "" {
		match = append(match, l.By+"="+value)
	}
	switch {
	case l.Kind == Value:
		return now.Sum(l.Metric, match...)
	case !before.Has(l.Metric) || seconds <= 0:
		return math.NaN()
	case l.Kind == Rate:
		more := func(metric string) float64 { return now.Sum(metric, match...) - before.Sum(metric, match...) }
		return max(more(l.Metric)-more(l.Less), 0) / seconds
	}
	buckets := now.buckets(l.Metric, match)
	for i, b := range before.buckets(l.Metric, match) {
		if i < len(buckets) {
			buckets[i].Count = max(buckets[i].Count-b.Count, 0)
		}
	}
	return quantile(l.Q, buckets)
}

// buckets are the buckets of a histogram, summed over its labels.
func (m Metrics) buckets(name string, match []string) (sum []Bucket) {
	for _, s := range m[name].Samples {
		if !s.matches(match) {
			continue
		}
		if sum == nil {
			sum = make([]Bucket, len(s.Buckets))
		}
		for i, b := range s.Buckets[:len(sum)] {
			sum[i] = Bucket{b.To, sum[i].Count + b.Count}
		}
	}
	return sum
}

// quantile estimates a quantile as Prometheus does, by a straight line through the
// bucket that it is in; NaN of nothing.
func quantile(q float64, buckets []Bucket) float64 {
	all := 0.0
	for _, b := range buckets {
		all += b.Count
	}
	if all <= 0 {
		return math.NaN()
	}
	rank, from := q*all, 0.0
	for i, b := range buckets {
		if i == len(buckets)-1 {
			break // it has no bound
		}
		if rank <= b.Count && b.Count > 0 {
			return from + (b.To-from)*rank/b.Count
		}
		rank -= b.Count
		from = b.To
	}
	return from
}

// snapshot is a copy of the last points, at most n.
func (h *history) snapshot(n int) *History {
	from := max(len(h.times)-n, 0)
	c := &History{Times: append([]int64(nil), h.times[from:]...)}
	for _, s := range h.series {
		last := *s
		last.Values = append(pointList(nil), s.Values[from:]...)
		c.Series = append(c.Series, &last)
	}
	return c
}
