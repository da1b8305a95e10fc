package memfd_test

import (
	"testing"

	"go.uber.org/goleak"

	"polder/pool/pooltest"
)

func TestMain(m *testing.M) {
	beChild()
	goleak.VerifyTestMain(m)
}

func TestConformance(t *testing.T) { pooltest.Run(t, pooltest.SHM) }

// TestConformanceOverTheRing has every operation go to the node, as packets.
func TestConformanceOverTheRing(t *testing.T) {
	s := pooltest.SHM
	s.Manager = nil
	pooltest.Run(t, s)
}

// TestNeitherDriverNorMechanismShows plays random operations, which must give
// what they give over inproc.
func TestNeitherDriverNorMechanismShows(t *testing.T) {
	ring := pooltest.SHM
	ring.Manager = nil
	for seed := range uint64(3) {
		want := pooltest.Script(t, pooltest.Inproc, seed)
		for _, s := range []pooltest.Setup{pooltest.TCP, pooltest.SHM, ring} {
			if got := pooltest.Script(t, s, seed); got != want {
				t.Errorf("script %d: digest %s over %s, want %s", seed, got, s.Name, want)
			}
		}
	}
}
