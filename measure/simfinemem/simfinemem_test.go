package simfinemem

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"polder/verbs/sim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tiny is a plan that takes little time.
var tiny = plan{threads: []int{1, 3}, classes: []int{5}, sweep: 2, rounds: 4}

// simulated returns what a run prints.
func simulated(t *testing.T, seed uint64, pl plan) string {
	t.Helper()
	var b bytes.Buffer
	if err := (Options{Out: &b, Seed: seed}).run(t.Context(), pl); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestDeterminism: the same seed gives the same bytes, on one processor or two.
func TestDeterminism(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	first := simulated(t, 1, tiny)
	runtime.GOMAXPROCS(2)
	if again := simulated(t, 1, tiny); again != first {
		t.Errorf("got\n%s\nand then\n%s", first, again)
	}
	if other := simulated(t, 2, tiny); other == first {
		t.Error("another seed makes no difference")
	}
}

// TestEveryRowIsForPrograms: one object a line, and every manager.
func TestEveryRowIsForPrograms(t *testing.T) {
	var b bytes.Buffer
	if err := (Options{Out: &b, JSON: true}).run(t.Context(), tiny); err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, l := range strings.Split(strings.TrimSpace(b.String()), "\n") {
		var row struct {
			Bench, Case, Metric string
			Value               float64
		}
		if err := json.Unmarshal([]byte(l), &row); err != nil || row.Bench != "sim finemem" || row.Metric == "" {
			t.Fatalf("got the line %s (%v)", l, err)
		}
		if row.Metric != "retries" && row.Value <= 0 {
			t.Errorf("%s, %s: got %v", row.Case, row.Metric, row.Value)
		}
		seen[row.Case] = true
	}
	for _, m := range systems {
		for _, load := range []string{"4 KiB, 1 thread", "4 KiB, 3 threads", "blocks of 128 KiB, 2 threads"} {
			if !seen[load+": "+m.name] {
				t.Errorf("nothing is said of %s: %s", load, m.name)
			}
		}
	}
}

func TestCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ctx, Options{Out: &bytes.Buffer{}}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
}

// TestEveryPublishedFigureIsAsFarOffAsDocumented: with 128 threads. How far each of them
// is off, and why, docs/simulation.md says.
func TestEveryPublishedFigureIsAsFarOffAsDocumented(t *testing.T) {
	of := func(name string) outcome {
		i := slices.IndexFunc(systems, func(m system) bool { return m.name == name })
		o, err := run(t.Context(), Testbed(), 1, systems[i], load{threads: mostThreads, rounds: 10})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	fine, rpc, scan := of(paperName), of(rpcName), of(scanName)
	for _, c := range []struct {
		what            string
		got, published  float64
		documented, off float64 // simulated, times published; and by how much that may differ
	}{
		{"the mean", micro(fine.mean), publishedFineMem.mean, 1.46, 0.2},
		{"the 99th percentile", micro(fine.p99), publishedFineMem.p99, 1.7, 0.3},
		{"retries", fine.retries, publishedFineMem.retries, 0.4, 0.1},
		{"RPC's mean, times FineMem's", ratio(rpc.mean, fine.mean), publishedRPC, 0.71, 0.1},
		{"the scan's mean", micro(scan.mean), publishedScan.mean, 1.2, 0.15},
		{"the scan's 99th percentile", micro(scan.p99), publishedScan.p99, 0.26, 0.05},
		{"the scan's mean, times FineMem's", ratio(scan.mean, fine.mean), publishedScan.mean / publishedFineMem.mean, 0.81, 0.15},
		{"the scan's retries", scan.retries, publishedScan.retries, 0.92, 0.15},
	} {
		if r := c.got / c.published; r < c.documented-c.off || r > c.documented+c.off {
			t.Errorf("%s: got %.4g, %.2f times the published %.4g; documented is %.2f", c.what, c.got, r, c.published, c.documented)
		}
	}
}

// TestAFreeByRPCCosts: the core serves frees as well, so it allocates half as often as it
// could.
func TestAFreeByRPCCosts(t *testing.T) {
	i := slices.IndexFunc(systems, func(m system) bool { return m.name == rpcName })
	o, err := run(t.Context(), Testbed(), 1, systems[i], load{threads: 16, rounds: 20})
	if err != nil {
		t.Fatal(err)
	}
	if most := 1 / Testbed().RPC.Seconds() / 2; o.rate > 1.05*most || o.rate < 0.9*most {
		t.Errorf("got %.0f allocations in a second, want %.0f", o.rate, most)
	}
}

// TestSpreadingBeatsThePaper: users that begin somewhere else do not meet.
func TestSpreadingBeatsThePaper(t *testing.T) {
	of := func(name string) outcome {
		i := slices.IndexFunc(systems, func(m system) bool { return m.name == name })
		o, err := run(t.Context(), Testbed(), 1, systems[i], load{threads: 8, rounds: 64})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	paper, ours := of(paperName), of(spreadName)
	if ours.retries > paper.retries/2 || ours.p99 >= paper.p99 || ours.mean >= paper.mean {
		t.Errorf("got %+v, want less than the paper's order, %+v", ours, paper)
	}
}

// TestAScanFindsAllMemory: blocks of any size, of which each word has one owner,
// until there is none left.
func TestAScanFindsAllMemory(t *testing.T) {
	for _, class := range []int{0, 4, 9} {
		r, err := newRig(t.Context(), Testbed(), 1)
		if err != nil {
			t.Fatal(err)
		}
		const chunks = 1024
		l := load{threads: 2, class: class}
		all, err := scanning(r, l, 2, chunks, new(counts))
		if err != nil {
			t.Fatal(err)
		}
		taken := make(map[uint64]bool)
		for i, a := range all {
			r.w.Go("scan", procAlloc(t, a, i, class, taken))
		}
		if err := r.w.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if want := chunks >> class; len(taken) != want {
			t.Errorf("class %d: got %d blocks, want %d", class, len(taken), want)
		}
		if err := r.close(); err != nil {
			t.Error(err)
		}
	}
}

// procAlloc allocates until there is nothing left.
func procAlloc(t *testing.T, a allocator, i, class int, taken map[uint64]bool) func(*sim.Proc) error {
	return func(p *sim.Proc) error {
		for {
			at, err := a.alloc(p, class)
			if errors.Is(err, errFull) {
				return nil
			}
			if err != nil {
				return err
			}
			if taken[at] || at%(1<<class) != 0 {
				t.Errorf("scan %d: got %d, which is another's or not aligned", i, at)
			}
			taken[at] = true
		}
	}
}
