package finemem_test

import (
	"os"
	"testing"
	"time"

	"polder/internal/invariants"
	"polder/pool/finemem"
)

// Two clients on a small pool, in every order of their steps and the node's, with a
// crash of one of them before every step, and recovery beside the other. Afterwards
// no chunk is lost, none is owned twice, no key that somebody once had opens what is
// another's, and the layers of the bitmap agree. A step is one operation on the
// fabric.

// interleavings are scenarios that take little time each.
var interleavings = []scenario{
	// The slow client: it wakes up when its flush was done by another.
	{chunks: 32, crashes: 1, scripts: []string{"0|0", "0|0"}},
	{chunks: 32, crashes: 1, scripts: []string{"0|f", "0|0"}},
	// A span is closed and taken as a whole, beside its last user.
	{chunks: 64, crashes: 1, scripts: []string{"0|f", "|5"}},
	{chunks: 32, crashes: 1, scripts: []string{"0|f", "0|f"}},
	{chunks: 64, crashes: 1, scripts: []string{"5|f", "|5"}},
	// Both open the same span.
	{chunks: 64, crashes: 1, scripts: []string{"|0", "|0"}},
	// The last chunks: what is freed has to be rebound first.
	{chunks: 32, crashes: 1, scripts: []string{"4|f", "4|4"}},
}

// long are scenarios that take minutes together. In the fine ones, the recovery and the
// node's worker go step by step.
var long = []scenario{
	{chunks: 32, crashes: 1, fine: true, scripts: []string{"0|", "0|0"}},
	{chunks: 32, crashes: 1, fine: true, scripts: []string{"|0", "0|f"}},
	{chunks: 64, crashes: 1, fine: true, scripts: []string{"5|", "|5"}},
	{chunks: 64, crashes: 1, scripts: []string{"|0f", "|0"}},
	{chunks: 64, crashes: 1, scripts: []string{"0|f5", "0|f"}},
	{chunks: 64, crashes: 2, scripts: []string{"0|0", "0|0"}},
}

// TestEveryInterleaving explores scenarios, fewer of them where each takes longer.
func TestEveryInterleaving(t *testing.T) {
	scenarios, policies := interleavings, both
	if invariants.Enabled {
		scenarios, policies = scenarios[:1], both[:1]
	}
	if late := interleave(t, time.Time{}, scenarios, policies); late == 0 {
		t.Error("no client was late with a flush")
	}
}

// TestSoakInterleavings explores more, for as long as the environment variable
// POLDER_SOAK says.
func TestSoakInterleavings(t *testing.T) {
	scenarios, policies := long[:1], both[1:]
	var until time.Time
	if v := os.Getenv("POLDER_SOAK"); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil {
			t.Fatalf("POLDER_SOAK is %q, want a duration: %v", v, err)
		}
		scenarios, policies, until = append(long, interleavings...), both, time.Now().Add(d)
	}
	interleave(t, until, scenarios, policies)
}

var both = []finemem.Policy{finemem.Paper, finemem.Spread}

// interleave explores scenarios with policies, and returns how many flushes came too
// late.
func interleave(t *testing.T, until time.Time, scenarios []scenario, policies []finemem.Policy) (late int) {
	var states, ends, crashes int
	for _, sc := range scenarios {
		for _, sc.policy = range policies {
			if !until.IsZero() && time.Now().After(until) {
				t.Logf("%q was not explored: the time is over", sc.scripts)
				continue
			}
			e := explore(t, until, func() *world { return newWorld(t, sc) })
			t.Logf("%d chunks, %v, %q: %d states, %d interleavings to their end, %d crash points, %d late flushes, %d ends with a wrong hint",
				sc.chunks, sc.policy, sc.scripts, len(e.seen), e.ends, e.crashes, e.late, e.hints)
			if t.Failed() {
				return late
			}
			states, ends, crashes, late = states+len(e.seen), ends+e.ends, crashes+e.crashes, late+e.late
		}
	}
	t.Logf("in all: %d states, %d interleavings to their end, %d crash points", states, ends, crashes)
	return late
}
