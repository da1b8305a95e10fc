package rpcmw_test

import (
	"testing"

	"polder/internal/invariants"
	"polder/pool/pooltest"
	"polder/pool/rpcmw"
)

func TestConformance(t *testing.T) {
	pooltest.Conformance(t, rpcmw.Manager{}, pooltest.Half(invariants.Enabled)...)
}

// TestConformanceWithGroups: that there are several groups of queue pairs does not show in what a
// program sees.
func TestConformanceWithGroups(t *testing.T) {
	s := pooltest.Inproc
	s.Manager = rpcmw.Manager{}
	want := pooltest.Script(t, s, 7)
	s.Groups = 3
	pooltest.Run(t, s)
	if got := pooltest.Script(t, s, 7); got != want {
		t.Errorf("with groups: digest %s, want %s", got, want)
	}
}
