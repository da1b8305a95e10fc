//go:build soak

package softbench

import (
	"bytes"
	"context"
	"os"
	"testing"

	"polder/measure/benchout"
)

func run(t *testing.T, f func(context.Context, Options) error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	err = f(t.Context(), Options{Printer: benchout.New(&b, false), Short: true, Polder: self})
	t.Log("\n" + b.String())
	if err != nil {
		t.Fatal(err)
	}
}

// These take minutes: "make soak" runs them.

func TestPtrRuns(t *testing.T)        { run(t, RunPtr) }
func TestReclaimRuns(t *testing.T)    { run(t, RunReclaim) }
func TestCoordinateRuns(t *testing.T) { run(t, RunCoordinate) }
func TestPressureRuns(t *testing.T)   { run(t, RunPressure) }
