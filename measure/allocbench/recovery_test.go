package allocbench

import (
	"strings"
	"testing"
	"time"

	"polder/measure/benchout"
)

func TestARecoveryIsMeasured(t *testing.T) {
	var out strings.Builder
	o := Options{Out: benchout.New(&out, true)}
	if err := runFineMem(t.Context(), o, recovery{entries: 500, others: 2, alone: 10 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"case":"recovery of 500 entries beside 2 clients","metric":"time"`, `"metric":"rate"`,
		`"metric":"their p99"`, `"rival":"without"`, `"case":"metadata, 4 KiB and larger","metric":"size"`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got\n%s\nwithout %s", out.String(), want)
		}
	}
}
