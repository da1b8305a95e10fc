package simlatency

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"polder/measure/benchout"
	"polder/verbs/sim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// figures simulates a few rounds.
func figures(t *testing.T, seed uint64, rounds int) []figure {
	t.Helper()
	var all []figure
	err := simulate(t.Context(), sim.Testbed(), seed, rounds, func(f figure) error {
		all = append(all, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// offByChain is by how many percent ODRP's figures are off, which docs/simulation.md
// explains: its chain does more. All others are within 20 %.
var offByChain = map[string]float64{"ODRP, 24 threads": 107, "ODRP / Static-MR, 24 threads": 98}

// TestPublished: what was fitted fits, and every other figure is as far from what was
// published as is documented.
func TestPublished(t *testing.T) {
	compared, sweep := 0, 0
	for _, f := range figures(t, 1, 24) {
		switch {
		case f.published == 0:
			continue
		case strings.Contains(f.name, " contexts") || strings.Contains(f.name, " of service"):
			sweep++
			continue
		case strings.HasPrefix(f.name, swept):
			if sweep++; math.Abs(deviation(f)) > 30 { // that it leans on none of them is documented
				t.Errorf("%s: got %.2f %s, published %.2f", f.name, f.simulated, f.unit, f.published)
			}
			continue
		case f.name == mixed || f.unit == "%" && f.published < 0:
			continue // needs more rounds: TestSeparation
		case f.kind == fitted && math.Abs(deviation(f)) > 1:
			t.Errorf("%s, %s: got %.2f %s, fitted to %.2f", f.name, f.metric, f.simulated, f.unit, f.published)
		case math.Abs(deviation(f)-offByChain[f.name]) > 20:
			t.Errorf("%s, %s: got %.2f %s, published %.2f", f.name, f.metric, f.simulated, f.unit, f.published)
		}
		compared++
	}
	if compared != 8 || sweep != 17 {
		t.Errorf("compared %d figures and %d of a sweep, want 8 and 17", compared, sweep)
	}
}

const mixed = calibrated + ", 24 threads"

// TestSeparation: the same where which contexts stay on the chip matters, which
// takes time to even out.
func TestSeparation(t *testing.T) {
	at := func(m manager, rounds int) latencies {
		l, err := measure(t.Context(), sim.Testbed(), 0, m, 24, rounds)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	with, without := at(separated(1), 20), at(oneSided, 250)
	for _, f := range []figure{
		{metric: "access", simulated: micro(without.access), published: mixedAccess},
		{metric: "allocate", simulated: micro(without.allocate), published: 22.5},
		{metric: "gain", simulated: 1 - float64(with.access)/float64(without.access), published: sepGain},
	} {
		if math.Abs(deviation(f)) > 20 {
			t.Errorf("%s: got %.3f, published %.3f", f.metric, f.simulated, f.published)
		}
	}
}

// TestDeterminism: the same seed gives the same bytes, on one processor or two.
func TestDeterminism(t *testing.T) {
	run := func(procs int, seed uint64) string {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		var b strings.Builder
		if err := (Options{Out: &b, Seed: seed}).run(t.Context(), 4); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	first := run(1, 1)
	if again := run(2, 1); again != first {
		t.Errorf("got\n%s and then\n%s", first, again)
	}
	if other := run(1, 2); other == first {
		t.Error("another seed makes no difference")
	}
}

func TestOutput(t *testing.T) {
	var asTable, asJSON bytes.Buffer
	f := figure{name: "OneSidedMW, 1 thread", metric: "allocate", unit: "us", simulated: 11.77, published: 10.7, kind: fitted}
	if err := (benchout.Simulation{Heading: heading, Notes: notes}).Print(&asTable, false, func(yield func(benchout.Figure) error) error { return yield(f.figure()) }); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"published", "10.7 µs", "11.8 µs", "+10.0 %", "fitted"} {
		if !strings.Contains(asTable.String(), want) {
			t.Errorf("the table has no %q:\n%s", want, asTable.String())
		}
	}
	if err := (Options{Out: &asJSON, JSON: true}).run(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(asJSON.String()), "\n")
	for _, l := range lines {
		var row struct {
			Bench, Case, Metric, Unit string
			Value                     float64
		}
		if err := json.Unmarshal([]byte(l), &row); err != nil || row.Bench != "sim latency" || row.Case == "" || row.Unit == "" {
			t.Errorf("got the line %s (%v)", l, err)
		}
	}
	if len(lines) < 30 {
		t.Errorf("got %d lines", len(lines))
	}
}

func TestCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ctx, Options{Out: &bytes.Buffer{}}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
}

// deviation is how far f is from what was published, in percent.
func deviation(f figure) float64 {
	printed := f.figure()
	return printed.Deviation()
}
