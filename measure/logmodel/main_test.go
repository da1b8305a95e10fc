package logmodel

import (
	"runtime/debug"
	"testing"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // there is much garbage, and little else
	m.Run()
}
