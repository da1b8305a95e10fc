package finemem_test

import (
	"os"
	"slices"
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
	// An answer is lost, and operations are delivered again.
	{chunks: 32, replays: 1, crashes: 1, scripts: []string{"0|f", "0|0"}},
	{chunks: 64, replays: 1, scripts: []string{"0|f", "|5"}},
	// The node's worker sleeps until somebody rings.
	{chunks: 32, sleeps: true, scripts: []string{"000|fff"}},
	// Both open the same span.
	{chunks: 64, crashes: 1, scripts: []string{"|0", "|0"}},
}

// long are scenarios that take minutes together. In the fine ones, the recovery and the
// node's worker go step by step.
var long = []scenario{
	{chunks: 32, sleeps: true, scripts: []string{"0|f", "0|f"}},
	{chunks: 32, crashes: 1, fine: true, scripts: []string{"0|", "0|0"}},
	{chunks: 32, crashes: 1, fine: true, scripts: []string{"|0", "0|f"}},
	{chunks: 64, crashes: 1, fine: true, scripts: []string{"5|", "|5"}},
	// The last chunks: what is freed has to be rebound first.
	{chunks: 32, crashes: 1, scripts: []string{"4|f", "4|4"}},
	{chunks: 64, crashes: 1, scripts: []string{"|0f", "|0"}},
	{chunks: 64, crashes: 1, scripts: []string{"0|f5", "0|f"}},
	{chunks: 64, crashes: 2, scripts: []string{"0|0", "0|0"}},
	{chunks: 32, replays: 1, scripts: []string{"0|f0", "0|0"}},
	{chunks: 64, replays: 1, scripts: []string{"5|f5", "5|5"}},
	{chunks: 32, replays: 1, crashes: 1, scripts: []string{"0|0", "0|0"}},
}

// brief is a scenario for where each step takes long: nobody crashes.
var brief = scenario{chunks: 32, scripts: []string{"0|f", "0|f"}}

// TestEveryInterleaving explores every scenario with one of the policies.
func TestEveryInterleaving(t *testing.T) {
	if invariants.Enabled {
		interleave(t, time.Time{}, []scenario{brief})
		return
	}
	all := slices.Clone(interleavings)
	for i := range all {
		all[i].policy = both[i%2]
	}
	if late := interleave(t, time.Time{}, all); late == 0 {
		t.Error("no client was late with a flush")
	}
}

// TestSoakInterleavings explores more, for as long as the environment variable
// TEST_SOAK says.
func TestSoakInterleavings(t *testing.T) {
	scenarios := []scenario{brief}
	var until time.Time
	if v := os.Getenv("TEST_SOAK"); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil {
			t.Fatalf("TEST_SOAK is %q, want a duration: %v", v, err)
		}
		scenarios, until = nil, time.Now().Add(d)
		for _, sc := range slices.Concat(long, interleavings) {
			for _, sc.policy = range both {
				scenarios = append(scenarios, sc)
			}
		}
	}
	interleave(t, until, scenarios)
}

var both = []finemem.Policy{finemem.Paper, finemem.Spread}

// interleave explores scenarios, and returns how many flushes came too late.
func interleave(t *testing.T, until time.Time, scenarios []scenario) (late int) {
	var states, ends, crashes int
	for _, sc := range scenarios {
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
	t.Logf("in all: %d states, %d interleavings to their end, %d crash points", states, ends, crashes)
	return late
}
