package farbench

import (
	"strings"
	"testing"
	"time"
)

func TestKVRunsItsWorkloadsOnAllStores(t *testing.T) {
	o, out := tiny()
	sc := kvScale{memory: 1 << 20, keys: 500, sizes: []int{64, 4096}, workloads: "AD", rounds: 1, span: 5 * time.Millisecond}
	if err := runKV(t.Context(), o, sc); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, row := range *out {
		if !(row.Value > 0) || !(row.Ratio > 0) {
			t.Errorf("got the row %+v, want figures", row)
		}
		rival, _, _ := strings.Cut(row.Rival, ",")
		seen[row.Case+", "+rival] = true
	}
	for _, want := range []string{"tcp, YCSB A, 64 B, round trips", "tcp, YCSB D, 4096 B, far map", "shm, YCSB A, 4096 B, redis", "shm, YCSB D, 64 B, round trips"} {
		if !seen[want] {
			t.Errorf("there is no row %q", want)
		}
	}
}
