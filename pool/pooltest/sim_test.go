package pooltest_test

import (
	"testing"

	"go.uber.org/goleak"

	"polder/pool"
	"polder/pool/finemem"
	"polder/pool/odrp"
	"polder/pool/onesided"
	"polder/pool/pooltest"
	"polder/pool/rpcmw"
	"polder/pool/staticmr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOverSim(t *testing.T) { pooltest.Run(t, pooltest.Sim) }

// TestMechanismsOverSim: every mechanism gives the same results in virtual time
// as over inproc.
func TestMechanismsOverSim(t *testing.T) {
	want := pooltest.Script(t, pooltest.Inproc, 1)
	for name, m := range map[string]pool.Manager{
		"onesided": onesided.Mechanism{},
		"native":   onesided.Mechanism{Native: true},
		"odrp":     odrp.Mechanism{},
		"finemem":  finemem.Mechanism{},
		"rpcmw":    rpcmw.Mechanism{},
		"staticmr": staticmr.Mechanism{},
	} {
		s := pooltest.Sim
		s.Manager = m
		if got := pooltest.Script(t, s, 1); got != want {
			t.Errorf("%s: digest %s over sim, %s over inproc", name, got, want)
		}
	}
}
