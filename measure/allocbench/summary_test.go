package allocbench

import (
	"strings"
	"testing"

	"polder/measure/benchout"
)

func TestASummaryHasALineForEveryManager(t *testing.T) {
	var s Summary
	for _, r := range []benchout.Row{
		{Bench: "alloc", Case: "tcp rpcmw x1", Metric: "alloc p50", Value: 20},
		{Bench: "alloc", Case: "tcp rpcmw x64", Metric: "alloc+free", Value: 10_000},
		{Bench: "alloc", Case: "tcp native x1", Metric: "alloc p50", Value: 12.345},
		{Bench: "alloc", Case: "tcp native x1", Metric: "alloc p99", Value: 99},
		benchout.Row{Bench: "alloc", Case: "tcp native x64", Metric: "alloc+free", Value: 25_000}.Against("rpcmw", 10_000, benchout.Higher),
		{Bench: "alloc", Case: "tcp native x64", Metric: "control path", Value: 0},
	} {
		if err := s.Print(r); err != nil {
			t.Fatal(err)
		}
	}
	wantText(t, &s, `
alloc       alloc us  free us  op/s of 64 clients  x rpcmw  node's us/op
tcp rpcmw      20.00        -               10000        -             -
tcp native     12.35        -               25000     2.50          0.00
`)
}

func TestASummaryOfAReplaySaysWhatWasWasted(t *testing.T) {
	var s Summary
	for _, r := range []benchout.Row{
		{Bench: "alloc", Case: "je.lua: finemem x8", Metric: "utilisation", Value: 100},
		{Bench: "alloc", Case: "je.lua: rpcmw 2MiB x8", Metric: "peak memory", Value: 512},
		{Bench: "alloc", Case: "je.lua: rpcmw 2MiB x8", Metric: "utilisation", Value: 44.5},
	} {
		if err := s.Print(r); err != nil {
			t.Fatal(err)
		}
	}
	wantText(t, &s, `
alloc                  alloc us  alloc/s  free/s  MiB  % used
je.lua: finemem x8            -        -       -    -     100
je.lua: rpcmw 2MiB x8         -        -       -  512   44.50
`)
}

// wantText compares what s writes, spaces aside where they only align.
func wantText(t *testing.T, s *Summary, want string) {
	t.Helper()
	var out strings.Builder
	if _, err := s.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	if got := "\n" + out.String(); got != want {
		t.Errorf("got%s\nwant%s", got, want)
	}
}
