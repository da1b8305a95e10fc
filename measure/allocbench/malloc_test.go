package allocbench

import (
	"encoding/json"
	"strings"
	"testing"

	"polder/measure/benchout"
)

func TestProgramsOverMallocNeedLessThanCoarseChunks(t *testing.T) {
	var out strings.Builder
	o := Options{Out: benchout.New(&out, true)}
	if err := runMalloc(t.Context(), o, mallocSize{rounds: 1, workers: 2, held: 40, ops: 200, sweep: []int{20, 80}}); err != nil {
		t.Fatal(err)
	}
	rows := 0
	for dec := json.NewDecoder(strings.NewReader(out.String())); dec.More(); rows++ {
		var r benchout.Row
		if err := dec.Decode(&r); err != nil {
			t.Fatal(err)
		}
		switch r.Metric {
		case "peak memory", "utilisation":
			if r.Rival == "static 2MiB" && r.Ratio <= 1 || r.Metric == "utilisation" && (r.Value <= 0 || r.Value > 100) {
				t.Errorf("%s, %s: %v against %v of %s", r.Case, r.Metric, r.Value, r.RivalValue, r.Rival)
			}
		case "requests": // a WRITE, seldom two, and now and then one for memory
			if r.Value <= 1 || r.Value > 1.3 {
				t.Errorf("%s: %v requests for a block", r.Case, r.Value)
			}
		case "alloc+free":
			if r.Value <= 0 {
				t.Errorf("%s: %v operations in a second", r.Case, r.Value)
			}
		}
	}
	if rows != 24 {
		t.Errorf("got %d rows, want 24:\n%s", rows, out.String())
	}
}
