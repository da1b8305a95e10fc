// Package benchout prints benchmark results: as a table for people, or as one
// JSON object a line for programs.
//
// Rows are written as they come, so that a long run shows that it is alive.
// A Printer is for one goroutine at a time.
package benchout

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
)

// Row is one measured figure.
type Row struct {
	Bench  string  `json:"bench"`  // the benchmark, such as "verbs"
	Case   string  `json:"case"`   // what was done, such as "tcp READ 64B"
	Metric string  `json:"metric"` // what was measured, such as "p50"
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`

	// Rival, if not empty, is what this figure is compared with, such as a rival
	// measured in the same run.
	Rival      string  `json:"rival,omitempty"`
	RivalValue float64 `json:"rival_value,omitempty"`
	Ratio      float64 `json:"ratio,omitempty"` // above 1 is better for us
}

// Better says which way a figure improves.
type Better int

const (
	Higher Better = iota // throughput
	Lower                // latency
)

// Against returns the row with a rival's figure beside it, and their ratio, turned
// so that above 1 is better for us. If either figure is zero, there is no ratio.
func (r Row) Against(rival string, value float64, better Better) Row {
	r.Rival, r.RivalValue, r.Ratio = rival, value, 0
	if r.Value == 0 || value == 0 {
		return r
	}
	r.Ratio = r.Value / value
	if better == Lower {
		r.Ratio = value / r.Value
	}
	return r
}

// A Printer writes rows.
type Printer interface {
	// Print writes one row.
	Print(Row) error
}

// New returns a printer of JSON lines if asJSON, and of a table otherwise.
func New(w io.Writer, asJSON bool) Printer {
	if asJSON {
		return &lines{enc: json.NewEncoder(w)}
	}
	return &table{w: w}
}

type lines struct{ enc *json.Encoder }

func (l *lines) Print(r Row) error {
	if err := l.enc.Encode(r); err != nil {
		return fmt.Errorf("cannot print a benchmark row: %w", err)
	}
	return nil
}

type table struct {
	w     io.Writer
	bench string // the benchmark whose heading was printed last
}

func (t *table) Print(r Row) error {
	if err := t.print(r); err != nil {
		return fmt.Errorf("cannot print a benchmark row: %w", err)
	}
	return nil
}

func (t *table) print(r Row) error {
	if r.Bench != t.bench {
		if t.bench != "" {
			if _, err := fmt.Fprintln(t.w); err != nil {
				return err
			}
		}
		t.bench = r.Bench
		if _, err := fmt.Fprintf(t.w, "%-36s %-12s %12s %-6s %12s %7s  %s\n",
			r.Bench, "metric", "value", "unit", "rival's", "ratio", "rival"); err != nil {
			return err
		}
	}
	if r.Rival == "" {
		_, err := fmt.Fprintf(t.w, "%-36s %-12s %12s %s\n", r.Case, r.Metric, number(r.Value), r.Unit)
		return err
	}
	ratio := "-"
	if r.Ratio != 0 {
		ratio = strconv.FormatFloat(r.Ratio, 'f', 2, 64)
	}
	_, err := fmt.Fprintf(t.w, "%-36s %-12s %12s %-6s %12s %7s  %s\n",
		r.Case, r.Metric, number(r.Value), r.Unit, number(r.RivalValue), ratio, r.Rival)
	return err
}

// number formats v without an exponent. A v that is no whole number has at least three
// significant digits, or four decimals if it is below 1.
func number(v float64) string {
	prec := 0
	switch a := math.Abs(v); {
	case a == 0 || a == math.Trunc(a) && a < 1e6:
	case a < 1:
		prec = 4
	case a < 10:
		prec = 3
	case a < 100:
		prec = 2
	case a < 1000:
		prec = 1
	}
	return strconv.FormatFloat(v, 'f', prec, 64)
}
