package brokerbench

import (
	"bytes"
	"encoding/json"
	"math"
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
	figures := map[string]benchout.Row{}
	for dec := json.NewDecoder(strings.NewReader(b.String())); dec.More(); {
		var row benchout.Row
		if err := dec.Decode(&row); err != nil {
			t.Fatal(err)
		}
		figures[row.Case+", "+row.Metric] = row
	}
	for _, metric := range []string{"min", "p50", "p99"} {
		row, added := figures["alloc 4 KiB through a broker, "+metric], figures["added by the broker, "+metric]
		if row.Value <= 0 || row.Rival != "direct" || row.RivalValue <= 0 || row.Ratio <= 0 {
			t.Errorf("%s: got %+v, want times with and without the broker", metric, row)
		}
		if d := row.Value - row.RivalValue; math.Abs(added.Value-d) > 0.001 {
			t.Errorf("%s: the broker adds %v, want %v", metric, added.Value, d)
		}
	}
	if len(figures) != 6 {
		t.Errorf("got %d figures, want 6", len(figures))
	}
}
