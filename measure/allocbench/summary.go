package allocbench

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"polder/measure/benchout"
)

// A Summary is a printer that keeps the figures of each manager that a reader looks for
// first. WriteTo prints them, one line for each manager, when everything has been measured.
type Summary struct {
	order []string                      // names of the lines, in the order in which they came
	rows  map[string]map[string]float64 // by line and column
	trace bool                          // the rows are a replay's
}

// A column shows one metric, measured with the number of clients that clients says, such as "x64".
type column struct{ clients, metric, heading string }

var (
	runColumns = []column{
		{"x1", "alloc p50", "alloc us"},
		{"x1", "free p50", "free us"},
		{"x64", "alloc+free", "op/s of 64 clients"},
		{"x64", "ratio", "x " + rival},
		{"x64", "control path", "node's us/op"},
	}
	replayColumns = []column{
		{"", "alloc p50", "alloc us"},
		{"", "alloc rate", "alloc/s"},
		{"", "free rate", "free/s"},
		{"", "peak memory", "MiB"},
		{"", "utilisation", "% used"},
	}
)

// Print implements benchout.Printer.
func (s *Summary) Print(r benchout.Row) error {
	line, clients := r.Case, ""
	if strings.Contains(r.Case, ": ") {
		s.trace = true
	} else {
		i := strings.LastIndexByte(r.Case, ' ')
		line, clients = r.Case[:max(0, i)], r.Case[i+1:]
	}
	if s.rows == nil {
		s.rows = make(map[string]map[string]float64)
	}
	if s.rows[line] == nil {
		s.order = append(s.order, line)
		s.rows[line] = make(map[string]float64)
	}
	s.rows[line][clients+r.Metric] = r.Value
	if r.Metric == "alloc+free" && r.Rival != "" {
		s.rows[line][clients+"ratio"] = r.Ratio
	}
	return nil
}

// WriteTo writes the lines.
func (s *Summary) WriteTo(w io.Writer) (int64, error) {
	var text strings.Builder
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	columns, width := runColumns, len("alloc")
	if s.trace {
		columns = replayColumns
	}
	for _, line := range s.order {
		width = max(width, len(line))
	}
	fmt.Fprintf(t, "%-*s\t", width, "alloc")
	for _, c := range columns {
		fmt.Fprintf(t, "%s\t", c.heading)
	}
	fmt.Fprintln(t)
	for _, line := range s.order {
		fmt.Fprintf(t, "%-*s\t", width, line)
		for _, c := range columns {
			figure := "-"
			if v, ok := s.rows[line][c.clients+c.metric]; ok {
				prec := 0
				if v < 100 {
					prec = 2
				}
				figure = strconv.FormatFloat(v, 'f', prec, 64)
			}
			fmt.Fprintf(t, "%s\t", figure)
		}
		fmt.Fprintln(t)
	}
	t.Flush()
	lines := strings.ReplaceAll("\n"+text.String(), "\n  ", "\n")[1:] // each line begins with two spaces of padding
	n, err := io.WriteString(w, lines)
	return int64(n), err
}
