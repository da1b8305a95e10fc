package memfd_test

import (
	"testing"

	"go.uber.org/goleak"

	"polder/internal/child/childtest"
	"polder/pool/memfd"
	"polder/pool/pooltest"
)

func TestMain(m *testing.M) {
	childtest.Main(children)
	goleak.VerifyTestMain(m)
}

// TestConformance: it is for clients on the node's own machine, so there is one
// driver.
func TestConformance(t *testing.T) { pooltest.Conformance(t, memfd.Manager{}, pooltest.SHM) }
