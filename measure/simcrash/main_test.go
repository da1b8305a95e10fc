package simcrash

import (
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // there is much garbage, and little else
	goleak.VerifyTestMain(m)
}
