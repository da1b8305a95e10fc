package finemem_test

import (
	"testing"

	"go.uber.org/goleak"

	"polder/pool/finemem"
	"polder/pool/pooltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) { pooltest.Conformance(t, finemem.Manager{}) }

// TestConformanceWhereAnswersAreLost: the commit's READs are executed again.
func TestConformanceWhereAnswersAreLost(t *testing.T) {
	pooltest.Conformance(t, finemem.Manager{}, pooltest.LossySim)
}

// TestOverSHM: chunks on the same machine are reached through shared memory rings.
func TestOverSHM(t *testing.T) {
	s := pooltest.SHM
	s.Manager = finemem.Manager{}
	pooltest.Run(t, s)
}
