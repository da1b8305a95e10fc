package far

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	"polder/far/remote/scan"
	"polder/internal/invariants"
	"polder/memnode/component"
)

// ofModel is how many of n rounds one goroutine plays against a model: all of them
// without the race detector, which finds nothing in them and takes ten times as long.
func ofModel(n int) int {
	if invariants.Enabled {
		return n / 6
	}
	return n
}

func TestMain(m *testing.M) {
	component.Main(component.Set{scan.Name: scan.Component})
	// The models are one goroutine's. They run in full without the race
	// detector, which makes them ten times slower.
	if invariants.Enabled {
		if err := flag.Set("rapid.checks", "10"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}
