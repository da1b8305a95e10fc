package brokerbench

import (
	"bytes"
	"strings"
	"testing"

	"polder/internal/proctest"
	"polder/measure/benchout"
)

func TestMain(m *testing.M) { proctest.Main(m) }

func TestEveryFigureIsPrinted(t *testing.T) {
	var b bytes.Buffer
	if err := Run(t.Context(), Options{Polder: proctest.Binary(), Out: benchout.New(&b, true), Rounds: slice}); err != nil {
		t.Fatal(err)
	}
	for _, metric := range []string{"min", "p50", "p99"} {
		if got := strings.Count(b.String(), `"metric":"`+metric+`"`); got != 2 {
			t.Errorf("%s: %d lines, want 2: %s", metric, got, b.String())
		}
	}
}
