package onesided_test

import (
	"testing"

	"go.uber.org/goleak"

	"polder/pool/onesided"
	"polder/pool/pooltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	for _, m := range []onesided.Mechanism{{}, {Native: true}} {
		t.Run(m.Name(), func(t *testing.T) { pooltest.Conformance(t, m) })
	}
}
