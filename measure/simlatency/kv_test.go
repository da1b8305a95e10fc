package simlatency

import (
	"context"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"

	"polder/verbs/sim"
)

// kvFigures simulates a few operations of each thread.
func kvFigures(t *testing.T, seed uint64, pl kvPlan) map[string]kvFigure {
	t.Helper()
	all := make(map[string]kvFigure)
	err := simulateKV(t.Context(), sim.Testbed(), seed, pl, nil, func(f kvFigure) error {
		all[f.name+", "+f.metric] = f
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// documented are the deviations from what was published, in percent, that
// docs/simulation.md explains.
var documented = map[string]struct{ from, to float64 }{
	"6 x 48 threads: OneSidedMW, 4 KiB, of Static-MR's throughput":                 {-40, -25},
	"6 x 48 threads: OneSidedMW / RPC-MW, 4 KiB, throughput":                       {-45, -30},
	"6 x 48 threads: RPC-MW, unlimited CPU, 4 KiB, of OneSidedMW's throughput":     {300, 450},
	"1 x 24 threads: half of them reads: RPC-MW, 2 KiB, of Static-MR's throughput": {5, 25},
	"1 x 24 threads: OneSidedMW, 8 KiB, RPC-MW's p99":                              {-40, -20},
	"1 x 24 threads: OneSidedMW, 8 KiB, chunks freed by deletions":                 {-35, 5}, // few chunks
	"YCSB-A, 1 x 24 threads: FineMem, 8 KiB, more than Premmap-RPC's":              {-100, -70},
	"YCSB-A, 2 x 24 threads: FineMem, 4 KiB, more than Premmap-RPC's":              {0, 55},
	"YCSB-A, 2 x 24 threads: FineMem, 8 KiB, more than Premmap-RPC's":              {-75, -10}, // less so in a long run
}

func TestFiguresOfTheKeyValueStoreAreAsPublished(t *testing.T) {
	compared := 0
	for name, f := range kvFigures(t, 1, kvPlan{one: 60, six: 15, client: kvClient}) {
		if f.high == 0 || strings.Contains(name, "a rest of") {
			continue
		}
		compared++
		d, ok := documented[name]
		if !ok {
			d.from, d.to = -15, 15
		}
		printed := f.figure()
		if dev := printed.Deviation(); math.IsNaN(dev) || dev < d.from || dev > d.to {
			t.Errorf("%s: got %.2f %s, published %.2f to %.2f: %+.1f %% from it, documented are %+g to %+g %%",
				name, f.simulated, f.unit, f.low, f.high, dev, d.from, d.to)
		}
		if printed.Deviation() < -30 || printed.Deviation() > 30 {
			if f.bound == "" && f.fitted == "" {
				t.Errorf("%s: nothing says what bounds it", name)
			}
		}
	}
	if compared != 24 {
		t.Errorf("compared %d figures, want 24", compared)
	}
}

func TestTheKeyValueStoreIsTheSameByItsSeed(t *testing.T) {
	run := func(procs int, seed uint64) string {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		var b strings.Builder
		if err := (Options{Out: &b, Seed: seed}).runKV(t.Context(), kvPlan{one: 4, six: 1, client: kvClient}); err != nil {
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
	for _, want := range []string{"predicted", "fitted: kvClient", "bounded by", "63.8 %"} {
		if !strings.Contains(first, want) {
			t.Errorf("the table has no %q:\n%s", want, first)
		}
	}
}

// TestTheKeyValueStoreEndsWithItsFirstError: threads that are in the middle of an operation
// end, too.
func TestTheKeyValueStoreEndsWithItsFirstError(t *testing.T) {
	want, left := errors.New("no more chunks"), 40
	failing := func(r *rig, chunks, threads int) (func([]*kvThread), func() int) {
		connect, busy := kvOneSided(0)(r, chunks, threads)
		return func(threads []*kvThread) {
			connect(threads)
			for _, t := range threads {
				take := t.take
				t.take = func(p *sim.Proc) (giveBack, error) {
					if left--; left < 0 {
						return nil, want
					}
					return take(p)
				}
			}
		}, busy
	}
	_, err := measureKV(t.Context(), sim.Testbed(), 1, failing, kvLoad{nodes: 1, threads: 8, chunk: chunk4K, rounds: 100})
	if !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := RunKV(ctx, Options{Out: &strings.Builder{}}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
}
