package pool_test

import (
	"testing"

	"go.uber.org/goleak"

	"polder/pool/pooltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOverInproc(t *testing.T) { pooltest.Run(t, pooltest.Inproc) }

func TestOverTCP(t *testing.T) { pooltest.Run(t, pooltest.TCP) }

func TestTheDriverDoesNotShowInTheResults(t *testing.T) {
	for seed := range uint64(5) {
		want := pooltest.Script(t, pooltest.Inproc, seed)
		if got := pooltest.Script(t, pooltest.TCP, seed); got != want {
			t.Errorf("script %d: digest %s over tcp, %s over inproc", seed, got, want)
		}
	}
}
