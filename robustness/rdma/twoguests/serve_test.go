//go:build ibverbs

package twoguests

import (
	"testing"
	"time"

	"polder/robustness/rdma/plan"
)

// local is the server's budget.
const local = "4MiB"

// far is three times as much.
var far = keys{"far", 1536, 8 << 10}

// near is little enough to stay local once it has been used.
var near = keys{"near", 20, 1 << 10}

// What does not fit into the server lies in the other guest's memory, and comes
// back as it was.
func TestTheMainJobOverRDMA(t *testing.T) {
	c := connect(t, startServer(t, "--local", local))
	began := time.Now()
	far.store(t, c)
	stored := time.Now()
	far.check(t, c)
	n := float64(far.n*far.size) / mib
	t.Logf("%d values, %.0f MiB in all, %s of it local: stored at %.1f MiB/s, read at %.1f MiB/s",
		far.n, n, local, n/stored.Sub(began).Seconds(), n/time.Since(stored).Seconds())
}

// While the link is lost, what is far is refused in time and what is local is
// served; afterwards everything is there, and nothing was lost.
func TestALinkLostForFiveSeconds(t *testing.T) {
	c := connect(t, startServer(t, "--local", local, "--op-timeout", "2s"))
	far.store(t, c)
	near.store(t, c)
	hot := startLoad(t, c, near)
	cold := startLoad(t, c, far)
	some := func(n int) func(int, map[string]int) bool {
		return func(served int, _ map[string]int) bool { return served >= n }
	}
	hot.until(t, "local keys are served", some(100))
	cold.until(t, "far keys are served", some(20))

	ask(t, plan.CutWire)
	mend := time.NewTimer(outage)
	defer mend.Stop()
	cold.until(t, "far keys are refused", func(_ int, refused map[string]int) bool { return refused["TRYAGAIN"] > 0 })
	hot.until(t, "local keys are served without a link", some(100))
	<-mend.C
	ask(t, plan.MendWire)
	cold.until(t, "far keys are served again", some(100))
	hot.end()
	cold.end()
	if _, refused := cold.counts(); len(refused) != 1 || refused["TRYAGAIN"] == 0 {
		t.Errorf("requests were refused with %v, want TRYAGAIN only: the link was back within the grace period", refused)
	}
	if _, refused := hot.counts(); len(refused) != 0 {
		t.Errorf("requests for local keys were refused with %v", refused)
	}
	far.check(t, c)
}

// A node that dies without a word is noticed: what was there is refused, what
// is local is served, and the server ends when it is told to.
func TestANodeThatIsKilled(t *testing.T) {
	c := connect(t, startServer(t, "--local", local, "--op-timeout", "2s"))
	far.store(t, c)
	near.store(t, c)
	hot := startLoad(t, c, near)
	cold := startLoad(t, c, far)
	cold.until(t, "far keys are served", func(served int, _ map[string]int) bool { return served >= 20 })
	ask(t, plan.KillPeer)
	cold.until(t, "far keys are refused", func(_ int, refused map[string]int) bool { return refused["TRYAGAIN"]+refused["LOST"] >= 2 })
	hot.until(t, "local keys are served without a node", func(served int, _ map[string]int) bool { return served >= 100 })
	hot.end()
	cold.end()
	if _, refused := hot.counts(); len(refused) != 0 {
		t.Errorf("requests for local keys were refused with %v", refused)
	}
}
