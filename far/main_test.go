package far

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	"polder/internal/invariants"
)

func TestMain(m *testing.M) {
	// The models are one goroutine's. They run in full without the race
	// detector, which makes them ten times slower.
	if invariants.Enabled {
		if err := flag.Set("rapid.checks", "10"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}
