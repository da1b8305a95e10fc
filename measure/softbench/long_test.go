//go:build soak

package softbench

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"polder/measure/benchout"
)

// These take minutes: "make soak" runs them.

// run returns what a benchmark prints.
func run(t *testing.T, f func(context.Context, Options) error) (rows []benchout.Row) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	next, total := 0, 0 // of the steps that Progress is told of; a benchmark may have more than one series of steps
	progress := func(done, of int, what string) {
		if next == total {
			next, total = 0, of
		}
		if done != next || of != total {
			t.Errorf("progress says that %d of %d are done, %s; want %d of %d", done, of, what, next, total)
		}
		next++
	}
	err = f(t.Context(), Options{Printer: benchout.New(&b, true), Short: true, Polder: self, Progress: progress})
	t.Log("\n" + b.String())
	if err != nil {
		t.Fatal(err)
	}
	for dec := json.NewDecoder(strings.NewReader(b.String())); dec.More(); {
		var r benchout.Row
		if err := dec.Decode(&r); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, r)
	}
	if len(rows) == 0 {
		t.Fatal("nothing was measured")
	}
	if next != total {
		t.Errorf("%d steps were made, and %d counted", next, total)
	}
	return rows
}

// A pointer that may vanish costs more than a plain one, and no multiple of ten
// of it: what is measured is 1 to 10 times as much.
func TestPtrRuns(t *testing.T) {
	rows := run(t, RunPtr)
	for _, r := range rows {
		if r.Value <= 0 || r.RivalValue <= 0 || r.Metric == "p50" && r.Ratio < 1./30 {
			t.Errorf("got %+v, want at most 30 times what a plain pointer takes", r)
		}
	}
	// Reads and writes of two quantiles; 4 MiB are in no cache.
	if want := (3 + 4) * 2 * 2; len(rows) != want {
		t.Errorf("got %d figures, want %d", len(rows), want)
	}
}

// What is hot survives, and memory is given back faster than Midas does and than
// the kernel hands it out.
func TestReclaimRuns(t *testing.T) {
	seen := map[string]int{}
	for _, r := range run(t, RunReclaim) {
		how, _, _ := strings.Cut(r.Case, ",")
		seen[how+" "+r.Metric]++
		switch {
		case r.Metric == "hot kept" && r.Value < 95:
			t.Errorf("got %+v, want what is hot to stay", r)
		case (r.Metric == "rate for one cpu" || how == "direct") && r.Ratio <= 1:
			t.Errorf("got %+v, want it to be faster than the rival", r)
		}
	}
	for name, want := range map[string]int{"cooperative hot kept": 5, "cooperative rate for one cpu": 5, "direct rate": 6} {
		if seen[name] != want {
			t.Errorf("got %d figures of %s, want %d", seen[name], name, want)
		}
	}
}

// Midas keeps 80 % of the ideal throughput at these costs; the time of a request is chosen
// so that it is about that here.
func TestRebuildRuns(t *testing.T) {
	compared := 0
	for _, r := range run(t, RunRebuild) {
		if r.Rival == "" {
			continue
		}
		if compared++; r.Ratio < 0.9 {
			t.Errorf("got %+v, want about as much as Midas", r)
		}
	}
	if compared != 3 {
		t.Errorf("%d figures were compared, want 3", compared)
	}
}

// Division by curves comes near the best fixed one, in virtual time and with
// real processes.
func TestCoordinateRuns(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range run(t, RunCoordinate) {
		if r.Metric != "of ideal" || r.Rival != "best fixed partition" {
			continue
		}
		seen[r.Case] = true
		least := map[string]float64{"virtual, curves": 0.95, "wall clock, curves": 0.7}[r.Case]
		if r.Ratio < least {
			t.Errorf("got %+v, want %v of the best fixed partition's throughput", r, least)
		}
	}
	for _, name := range []string{"virtual, even, by service", "virtual, curves", "wall clock, curves"} {
		if !seen[name] {
			t.Errorf("%s was not measured", name)
		}
	}
}

// A scan costs the kernel's page cache what it had, and not that in soft memory.
func TestFilesRuns(t *testing.T) {
	read := map[string]benchout.Row{}
	for _, r := range run(t, RunFiles) {
		if r.Metric == "read from disk" {
			read[r.Case] = r
		}
	}
	alone, beside := read["alone"], read["beside a scan"]
	if alone.Value <= 0 || beside.Value > 1.5*alone.Value {
		t.Errorf("a page cache in soft memory reads %v KiB for a request, and %v beside a scan", alone.Value, beside.Value)
	}
	if beside.RivalValue < 1.1*alone.RivalValue {
		t.Errorf("the scan is none: the kernel's page cache reads %v KiB for a request, and %v beside it", alone.RivalValue, beside.RivalValue)
	}
}

// Memory that is free again is granted within a second even on a busy machine, and the
// service does soon what it can with it.
func TestPressureRuns(t *testing.T) {
	seen := map[string]int{}
	most := map[string]float64{"and back in": 1, "throughput is what the memory in use allows in": 5}
	for _, r := range run(t, RunPressure) {
		if bound, ok := most[r.Metric]; ok {
			if seen[r.Metric]++; r.Value > bound {
				t.Errorf("got %+v, want at most %v seconds", r, bound)
			}
		}
	}
	for metric := range most {
		if seen[metric] != 2 {
			t.Errorf("%q is said %d times, want after both antagonists", metric, seen[metric])
		}
	}
}
