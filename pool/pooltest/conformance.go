package pooltest

import (
	"testing"

	"polder/internal/invariants"
	"polder/pool"
)

// Drivers are the suite's set-ups: one for every driver that runs anywhere.
var Drivers = []Setup{Inproc, TCP, SHM, Sim}

// Half is one half of Drivers with the race detector, which makes the suite take five times as long, and the other
// half without it. "make test" runs the suite both ways for every manager, and all Drivers with the race detector for
// the default manager. Callers ask invariants.Enabled, so that .ci/longer finds the test.
func Half(race bool) []Setup {
	if race {
		return []Setup{Inproc, TCP}
	}
	return []Setup{SHM, Sim}
}

// scripts is how many random scripts Conformance plays. A script is of one client only, so one script is enough with
// the race detector.
func scripts() int {
	if invariants.Enabled {
		return 1
	}
	return 3
}

// Conformance runs the whole suite with manager m over some set-ups, or over all Drivers if none are named. It also
// checks that random operations give the same results over each of them as with the default manager over Inproc: a
// program must not notice which driver or manager it uses.
func Conformance(t *testing.T, m pool.Manager, over ...Setup) {
	if len(over) == 0 {
		over = Drivers
	}
	want := make([]string, scripts())
	for seed := range want {
		want[seed] = Script(t, Inproc, uint64(seed))
	}
	for _, s := range over {
		s.Manager = m
		t.Run("over "+s.Name, func(t *testing.T) { Run(t, s) })
		t.Run("the same results over "+s.Name, func(t *testing.T) {
			for seed := range want {
				if got := Script(t, s, uint64(seed)); got != want[seed] {
					t.Errorf("script %d: digest %s, want %s", seed, got, want[seed])
				}
			}
		})
	}
}
