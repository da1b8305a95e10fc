package odrp_test

import (
	"testing"

	"go.uber.org/goleak"

	"polder/pool/odrp"
	"polder/pool/pooltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) { pooltest.Conformance(t, odrp.Manager{}) }
