package pool_test

import (
	"os"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/internal/child/childtest"
	"polder/pool/pooltest"
)

func TestMain(m *testing.M) {
	childtest.Main(children)
	goleak.VerifyTestMain(m)
}

// TestConformance is for the default manager; every other has its own.
func TestConformance(t *testing.T) {
	pooltest.Conformance(t, nil, append(slices.Clone(pooltest.Drivers), pooltest.InPlace)...)
}

// TestSoak takes as long as the environment variable TEST_SOAK says, such as
// "5m".
func TestSoak(t *testing.T) {
	d := time.Second
	if v := os.Getenv("TEST_SOAK"); v != "" {
		var err error
		if d, err = time.ParseDuration(v); err != nil {
			t.Fatalf("TEST_SOAK is %q, want a duration: %v", v, err)
		}
	}
	for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.TCP} {
		t.Run(s.Name, func(t *testing.T) { pooltest.Soak(t, s, d) })
	}
}
