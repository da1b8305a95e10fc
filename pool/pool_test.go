package pool_test

import (
	"os"
	"testing"
	"time"

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

// TestSoak takes as long as the environment variable POLDER_SOAK says, such as
// "5m".
func TestSoak(t *testing.T) {
	d := time.Second
	if v := os.Getenv("POLDER_SOAK"); v != "" {
		var err error
		if d, err = time.ParseDuration(v); err != nil {
			t.Fatalf("POLDER_SOAK is %q, want a duration: %v", v, err)
		}
	}
	for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.TCP} {
		t.Run(s.Name, func(t *testing.T) { pooltest.Soak(t, s, d) })
	}
}
