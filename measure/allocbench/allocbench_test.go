package allocbench

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/measure/benchout"
	"polder/pool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEveryContestantIsMeasured(t *testing.T) {
	var out strings.Builder
	o := Options{Out: benchout.New(&out, true)}
	if err := run(t.Context(), o, 1, time.Millisecond, []int{1, 3}); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"tcp", "shm"} {
		for _, m := range append(pool.Managers(), "memfd") {
			if f == "tcp" && m == "memfd" {
				continue
			}
			for _, n := range []string{"1", "3"} {
				if want := `"case":"` + f + " " + m + " x" + n + `"`; strings.Count(out.String(), want) != 6 {
					t.Errorf("got %d figures with %s, want 6", strings.Count(out.String(), want), want)
				}
			}
		}
	}
}
