package softbench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"testing"

	"polder/internal/benchout"
)

// TestMain lets the test program be its own worker.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "worker" {
		if err := Worker(context.Background(), os.Stdout, os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

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

func TestPtrRuns(t *testing.T)     { run(t, RunPtr) }
func TestReclaimRuns(t *testing.T) { run(t, RunReclaim) }
