package softbench

import (
	"bytes"
	"testing"

	"polder/internal/benchout"
)

func TestPtrRuns(t *testing.T) {
	var b bytes.Buffer
	if err := RunPtr(t.Context(), Options{Printer: benchout.New(&b, false), Short: true}); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + b.String())
}
