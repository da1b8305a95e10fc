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
