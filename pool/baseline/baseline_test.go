package baseline_test

import (
	"slices"
	"testing"

	"go.uber.org/goleak"

	"polder/memnode/wire"
	"polder/pool/baseline"
	"polder/pool/pooltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestConformance runs the suite over what the baselines are compared over: TCP
// by benchmarks and attacks, the simulated wire by simulations.
func TestConformance(t *testing.T) {
	for _, m := range baseline.Managers {
		t.Run(m.Name(), func(t *testing.T) { pooltest.Conformance(t, m, pooltest.TCP, pooltest.Sim) })
	}
}

// TestEveryBaselineOfTheTableIsHere: what nodes know, benchmarks can compare with.
func TestEveryBaselineOfTheTableIsHere(t *testing.T) {
	var got []string
	for _, m := range baseline.Managers {
		got = append(got, m.Name())
	}
	if want := wire.ManagerNames(wire.Baseline); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
