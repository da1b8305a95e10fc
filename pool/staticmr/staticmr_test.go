package staticmr_test

import (
	"testing"

	"go.uber.org/goleak"

	"polder/pool/pooltest"
	"polder/pool/staticmr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) { pooltest.Conformance(t, staticmr.Manager{}) }
