package finemem_test

import (
	"testing"

	"go.uber.org/goleak"

	"polder/internal/invariants"
	"polder/pool/finemem"
	"polder/pool/pooltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	pooltest.Conformance(t, finemem.Manager{}, pooltest.Half(invariants.Enabled)...)
}

// TestConformanceWithGroups: that there are several groups of queue pairs does not show in what a
// program sees.
func TestConformanceWithGroups(t *testing.T) {
	s := setup(pooltest.Inproc)
	want := pooltest.Script(t, s, 7)
	s.Groups = 3
	pooltest.Run(t, s)
	if got := pooltest.Script(t, s, 7); got != want {
		t.Errorf("with groups: digest %s, want %s", got, want)
	}
}

// TestConformanceWhereAnswersAreLost: the commit's READs are executed again.
func TestConformanceWhereAnswersAreLost(t *testing.T) {
	if invariants.Enabled {
		return // what is lost depends on no goroutine; "make plain" runs it
	}
	pooltest.Conformance(t, finemem.Manager{}, pooltest.LossySim)
}
