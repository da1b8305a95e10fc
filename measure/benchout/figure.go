package benchout

import (
	"fmt"
	"io"
	"slices"
)

// Figure is a simulated value beside the published one.
type Figure struct {
	Name, Metric, Unit string
	Simulated          float64
	// Low and High are the ends of the published range. Both are the same if one value is published, and 0 if
	// none is.
	Low, High float64
	// Source is where the simulated value comes from: "given", "fitted" or "predicted". From, if not empty, says
	// what it was fitted by or follows from.
	Source, From string
	// Bound, if not empty, says why the simulated value is as far from the published one as it is.
	Bound string
}

// Deviation returns how far the simulated value is outside the published range, in percent of the nearer end: 0
// within the range, or if nothing is published.
func (f *Figure) Deviation() float64 {
	switch {
	case f.High == 0:
	case f.Simulated < f.Low:
		return 100 * (f.Simulated/f.Low - 1)
	case f.Simulated > f.High:
		return 100 * (f.Simulated/f.High - 1)
	}
	return 0
}

// A Simulation describes the simulation that yields figures.
type Simulation struct {
	Bench   string // as in Row
	Heading string // of the table
	Notes   string // below the table
}

// Print prints the figures that simulate yields, as they come: as a table for people, or, if asJSON, as one Row for
// each figure and, if something is published, a second Row for its deviation.
func (s Simulation) Print(w io.Writer, asJSON bool, simulate func(yield func(Figure) error) error) error {
	t := &figures{w: w, s: s}
	print, end := t.print, t.end
	if asJSON {
		out := New(w, true)
		print, end = func(f Figure) error { return s.row(out, f) }, func() error { return nil }
	}
	err := simulate(func(f Figure) error {
		if err := print(f); err != nil {
			return fmt.Errorf("cannot print the simulation: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := end(); err != nil {
		return fmt.Errorf("cannot print the simulation: %w", err)
	}
	return nil
}

func (s Simulation) row(out Printer, f Figure) error {
	row := Row{Bench: s.Bench, Case: f.Name, Metric: f.Metric, Value: f.Simulated, Unit: f.Unit}
	if f.High == 0 {
		return out.Print(row)
	}
	row.Rival, row.RivalValue = "published ("+f.Source+")", f.High
	if err := out.Print(row); err != nil {
		return err
	}
	return out.Print(Row{Bench: s.Bench, Case: f.Name, Metric: f.Metric + " deviation", Value: f.Deviation(), Unit: "%"})
}

// figures prints a table.
type figures struct {
	w      io.Writer
	s      Simulation
	last   string   // the name of the previous figure
	bounds []string // in the order of their numbers
}

func (t *figures) print(f Figure) error {
	if t.last == "" {
		if _, err := fmt.Fprintf(t.w, "%s\n%-62s %-34s %16s %12s %10s\n", t.s.Heading, "", "", "published", "simulated", "deviation"); err != nil {
			return err
		}
	}
	name := f.Name
	if name == t.last {
		name = ""
	}
	t.last = f.Name
	published, deviation := "-", ""
	if f.High != 0 {
		published, deviation = measured(f.High, f.Unit), fmt.Sprintf("%+.1f %%", f.Deviation())
		if f.Low != f.High {
			published = fmt.Sprintf("%g to %s", f.Low, published)
		}
	}
	source := f.Source
	if f.From != "" {
		source += ": " + f.From
	}
	if f.Bound != "" {
		i := slices.Index(t.bounds, f.Bound)
		if i < 0 {
			i, t.bounds = len(t.bounds), append(t.bounds, f.Bound)
		}
		source += fmt.Sprintf(" [%d]", i+1)
	}
	_, err := fmt.Fprintf(t.w, "%-62s %-34s %16s %12s %10s  %s\n", name, f.Metric, published, measured(f.Simulated, f.Unit), deviation, source)
	return err
}

func (t *figures) end() error {
	for i, b := range t.bounds {
		if _, err := fmt.Fprintf(t.w, "[%d] bounded by %s\n", i+1, b); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(t.w, t.s.Notes)
	return err
}

// measured formats a value with its unit.
func measured(v float64, unit string) string {
	switch {
	case unit == "us":
		return fmt.Sprintf("%.1f µs", v)
	case unit == "op/s" && v >= 1e6:
		return fmt.Sprintf("%.2f M/s", v/1e6)
	case unit == "op/s":
		return fmt.Sprintf("%.0f /s", v)
	case unit == "x":
		return fmt.Sprintf("%.3f x", v)
	case unit == "":
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.1f %s", v, unit)
}
