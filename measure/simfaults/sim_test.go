package simfaults

import (
	"bytes"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestNothingIsLostWhateverHappens to clusters of many seeds: a few here, thousands with TEST_SOAK.
func TestNothingIsLostWhateverHappens(t *testing.T) {
	seeds := uint64(3)
	if os.Getenv("TEST_SOAK") != "" {
		seeds = 3000
	}
	var wg sync.WaitGroup
	next := make(chan uint64)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for seed := range next {
				if r := simulate(seed, trouble, "", nil); len(r.Wrong) > 0 {
					t.Error(r.String())
				}
			}
		})
	}
	for seed := range seeds {
		next <- seed
	}
	close(next)
	wg.Wait()
}

// TestASeedDoesTheSameAgain event by event.
func TestASeedDoesTheSameAgain(t *testing.T) {
	run := func(seed uint64) (Result, []string) {
		var lines []string
		r := simulate(seed, 20*time.Second, "", func(line string) { lines = append(lines, line) })
		return r, lines
	}
	a, first := run(7)
	b, second := run(7)
	if a.Sum != b.Sum || a.Steps != b.Steps || a.Sets != b.Sets {
		for i := range first {
			if i >= len(second) || first[i] != second[i] {
				t.Fatalf("the same seed does something else:\n%s\n%s", first[i], strings.Join(second[min(i, len(second)):min(i+1, len(second))], ""))
			}
		}
		t.Fatalf("the same seed does something else: %+v, then %+v", a, b)
	}
	if c, _ := run(8); c.Sum == a.Sum {
		t.Error("another seed does the same")
	}
}

// TestANodeThatIsSlowStaysSoForTheWholeTime: it does not get slow a second time, since it would stop when the first time
// is over.
func TestANodeThatIsSlowStaysSoForTheWholeTime(t *testing.T) {
	c := newCluster(1, "", nil)
	defer c.w.Close()
	c.nodes = c.nodes[:1]
	n := c.nodes[0]
	if c.fault(nodeIsSlow) == "" {
		t.Fatal("the node does not get slow")
	}
	was, outage := n.slow, n.outage
	for range 100 {
		if what := c.fault(nodeIsSlow); what != "" || n.slow != was || n.outage != outage {
			t.Fatalf("the node is slow by up to %v until %v; then %q: by up to %v until %v", was, outage, what, n.slow, n.outage)
		}
	}
}

// TestRunPrintsWhatHasHappened, and the trace.
func TestRunPrintsWhatHasHappened(t *testing.T) {
	var out bytes.Buffer
	if err := Run(t.Context(), Options{Out: &out, Seed: 9, Trace: true}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"owns the heap", "fault: ", "no more faults", "simulated time per CPU time"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output has no %q", want)
		}
	}
}
