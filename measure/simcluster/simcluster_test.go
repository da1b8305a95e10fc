package simcluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// coarse is what is borrowed at a time, in MiB, where tests run the allocator.
const coarse = 256

// published reads the published cluster.
func published(t *testing.T) *Spec {
	t.Helper()
	f, err := os.Open("testdata/cluster.json")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := Read(f)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// few is published with so many mixes of so many jobs.
func few(t *testing.T, mixes, jobs int) *Spec {
	t.Helper()
	s := published(t)
	s.Runs, s.Cluster.Jobs = s.Runs[:mixes], jobs
	return s
}

// TestThePublishedDistributionComesOut, as far as docs/simulation.md says, and so do the
// shares of far memory in use. It plays each of the 40 mixes once.
func TestThePublishedDistributionComesOut(t *testing.T) {
	got := make(map[string]float64)
	err := simulate(t.Context(), published(t), 1, 1, nil, func(f figure) error {
		got[f.name+", "+f.metric] = f.simulated
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ published, documented, off float64 }{
		plain + ", mean":                            {1.0995, 1.0995 + 0.015, 0.015},
		plain + ", lower quartile":                  {1.085, 1.09, 0.02},
		plain + ", median":                          {1.105, 1.12, 0.02},
		plain + ", upper quartile":                  {1.116, 1.14, 0.02},
		"far memory in use, Fastswap, mean":         {41.39, 50.5, 2},
		"far memory in use, FineMem, mean":          {74.06, 85, 2},
		"the same, waiting jobs kind by kind, mean": {1.0995, 1.086, 0.02},
		"the same, borrowed by the GiB, mean":       {0, 1.05, 0.02},
		"Fastswap / a pool and idle memory, mean":   {0, 1.115, 0.02},
		"Fastswap / idle memory alone, mean":        {0, 0.82, 0.02},
		"Fastswap / no far memory, mean":            {0, 0.74, 0.02},
	} {
		if v, ok := got[name]; !ok || math.Abs(v-c.documented) > c.off {
			t.Errorf("%s: got %.4g (%v), published %.4g; documented is %.4g", name, v, ok, c.published, c.documented)
		}
	}
}

// TestTheAllocatorLendsWhatAccountsSay: in a play in which chunks come from the
// allocator, none is missing, all go back, and nothing takes longer.
func TestTheAllocatorLendsWhatAccountsSay(t *testing.T) {
	b, err := borrowing(t.Context(), few(t, 1, 30), 3, coarse)
	if err != nil {
		t.Fatal(err)
	}
	if b.lent == 0 || b.lent != b.back || b.makespan != b.accounts {
		t.Errorf("got %+v, want as many chunks back as were lent, and the makespan of accounts", b)
	}
}

// TestNoServerHasMoreThanThereIs: at no moment do jobs have more memory than their server
// and what it may borrow, or less of it local than they must, however they shrink.
func TestNoServerHasMoreThanThereIs(t *testing.T) {
	spec := few(t, 3, 100)
	for _, v := range variants {
		for _, m := range spec.Runs {
			w := &watcher{t: t, spec: spec, v: v, far: make([]int, spec.Cluster.Servers)}
			if _, err := v.play(spec, m.Percent, m.Seed, w); err != nil {
				t.Fatal(err)
			}
			if w.calls == 0 && v.how != None {
				t.Errorf("%s: nothing was borrowed", v.name)
			}
		}
	}
}

// watcher is a lender that adds up.
type watcher struct {
	t     *testing.T
	spec  *Spec
	v     variant
	far   []int
	calls int
}

func (w *watcher) borrow(server, mib int) error {
	w.calls++
	w.far[server] = mib
	sum, most := 0, int(w.v.pool*float64(w.spec.Cluster.Far))
	for _, far := range w.far {
		sum += far
		if w.v.how == Idle && far == 0 {
			most += w.spec.Cluster.Memory
		}
	}
	if w.v.how == None || sum > most {
		w.t.Errorf("%s: %d MiB are borrowed, want at most %d", w.v.name, sum, most)
	}
	return nil
}

// TestACurveIsReadBetweenItsPoints, and beyond them at the nearest.
func TestACurveIsReadBetweenItsPoints(t *testing.T) {
	k := published(t).Jobs["snappy"]
	for at, want := range map[float64]float64{1: 134.88, 0.9: 143.15, 0.95: (134.88 + 143.15) / 2, 0.1: 274.42, 2: 134.88} {
		if got := k.seconds(at); math.Abs(got-want) > 1e-9 {
			t.Errorf("with %v local: got %v s, want %v", at, got, want)
		}
	}
}

// TestBothWaysToShrinkFit: what jobs have local fits the server to a step of each, and no
// job has less than it must.
func TestBothWaysToShrinkFit(t *testing.T) {
	spec := published(t)
	for _, how := range []Shrinking{Proportional, LeastLoss} {
		c := &cluster{spec: spec, how: Shared, shrink: how, grain: 2, pool: spec.Cluster.Far}
		s := new(server)
		c.servers = []*server{s}
		for _, name := range []string{"xgboost", "redis", "redis", "snappy"} {
			k := spec.Jobs[name]
			s.jobs = append(s.jobs, &job{kind: k})
			s.mem += k.Memory
		}
		if err := c.settle(s); err != nil {
			t.Fatal(err)
		}
		local := 0.0
		for _, j := range s.jobs {
			local += j.local * float64(j.kind.Memory)
			if j.local < j.kind.MinLocal-1e-6 || j.local > 1 {
				t.Errorf("a job has %v local, want %v to 1", j.local, j.kind.MinLocal)
			}
		}
		if limit := float64(spec.Cluster.Memory); local > limit+1 || local < limit-step*34000 {
			t.Errorf("%.0f MiB are local, want %.0f", local, limit)
		}
	}
}

// TestDeterminism: the same seed gives the same bytes.
func TestDeterminism(t *testing.T) {
	run := func(seed uint64) string {
		var b bytes.Buffer
		if err := Run(t.Context(), few(t, 2, 30), Options{Out: &b, Seed: seed, Short: true, grain: coarse}); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	first := run(1)
	if again := run(1); again != first {
		t.Errorf("got\n%s and then\n%s", first, again)
	}
	if run(2) == first {
		t.Error("another seed makes no difference")
	}
}

func TestRowsAreForPrograms(t *testing.T) {
	var b bytes.Buffer
	if err := Run(t.Context(), few(t, 1, 20), Options{Out: &b, JSON: true, Short: true, grain: coarse}); err != nil {
		t.Fatal(err)
	}
	for _, l := range strings.Split(strings.TrimSpace(b.String()), "\n") {
		var row struct{ Bench, Case, Metric string }
		if err := json.Unmarshal([]byte(l), &row); err != nil || row.Bench != "sim swap" || row.Case == "" || row.Metric == "" {
			t.Errorf("got the line %s (%v)", l, err)
		}
	}
}

func TestCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ctx, published(t), Options{Out: &bytes.Buffer{}}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
}

// TestAFileThatIsWrongIsRefused, and the error says what and where.
func TestAFileThatIsWrongIsRefused(t *testing.T) {
	good, err := os.ReadFile("testdata/cluster.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{`"about"`, `about`, "cannot read a cluster"},
		{`"servers": 5`, `"servers": 0`, "servers: got 0, want 1 to 1000"},
		{`"jobs": 200`, `"jobs": 20000000`, "jobs: got 20000000"},
		{`"reclaim_cpus_per_server": 1`, `"reclaim_cpus_per_server": 64`, "reclaim_cpus_per_server: got 64, want 0 to 63"},
		{`"arrivals_uniform_over_s": 200`, `"arrivals_uniform_over_s": -1`, "arrivals_uniform_over_s: got -1"},
		{`"mem_mib": 16300`, `"mem_mib": 90000`, `job "xgboost": mem_mib is 90000, want 1 to 81920`},
		{`"cpus": 6`, `"cpus": 64`, `job "xgboost": cpus is 64`},
		{`"min_local": 0.5`, `"min_local": 0`, `job "xgboost": min_local is 0`},
		{`"min_local": 0.5`, `"min_local": 0.4`, `must reach from min_local to 1`},
		{`"0.9": 341.9`, `"x": 341.9`, `seconds_at_local_fraction has "x"`},
		{`"0.9": 341.9`, `"0.9": -1`, `seconds_at_local_fraction has "0.9": -1`},
		{"\"order_of_mix\": [\n  \"xgboost\"", "\"order_of_mix\": [\n  \"redis\"", `names "redis" twice`},
		{"\"order_of_mix\": [\n  \"xgboost\"", "\"order_of_mix\": [\n  \"make\"", `names "make", which is not among the jobs`},
		{"\"mix_percent\": [\n    35", "\"mix_percent\": [\n    36", "run 1: mix_percent is [36 24 41]"},
		{`"fastswap_over_finemem_makespan": 1.0831`, `"fastswap_over_finemem_makespan": 0`, "run 1: fastswap_over_finemem_makespan is 0"},
	} {
		bad := strings.Replace(string(good), c.old, c.new, 1)
		if bad == string(good) {
			t.Fatalf("the file has no %s", c.old)
		}
		if _, err := Read(strings.NewReader(bad)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("with %s: got %v, want %q", c.new, err, c.want)
		}
	}
}
