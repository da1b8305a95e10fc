package pages

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	"polder/internal/invariants"
)

func TestMain(m *testing.M) {
	// The models are one goroutine's: the race detector finds nothing in them and takes ten
	// times as long.
	if invariants.Enabled {
		if err := flag.Set("rapid.checks", "10"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}
