//go:build soak

package softbench

import "testing"

// These take minutes: "make soak" runs them.

func TestCoordinateRuns(t *testing.T) { run(t, RunCoordinate) }
func TestPressureRuns(t *testing.T)   { run(t, RunPressure) }
