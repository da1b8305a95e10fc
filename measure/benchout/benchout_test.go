package benchout

import (
	"errors"
	"strings"
	"testing"
)

func TestRatioAboveOneIsBetterForUs(t *testing.T) {
	for _, c := range []struct {
		value, rival float64
		better       Better
		want         float64
	}{
		{20, 10, Higher, 2},
		{20, 10, Lower, 0.5},
		{0, 10, Lower, 0},
		{10, 0, Higher, 0},
	} {
		r := Row{Value: c.value}.Against("raw", c.rival, c.better)
		if r.Ratio != c.want || r.Rival != "raw" || r.RivalValue != c.rival {
			t.Errorf("%v against %v (%v): got %+v, want ratio %v", c.value, c.rival, c.better, r, c.want)
		}
	}
}

func TestJSONLines(t *testing.T) {
	var b strings.Builder
	p := New(&b, true)
	for _, r := range []Row{
		{Bench: "verbs", Case: "tcp READ 64B", Metric: "p50", Value: 21.5, Unit: "us"},
		Row{Bench: "verbs", Case: "tcp READ 64B", Metric: "rate", Value: 600, Unit: "op/s"}.Against("raw TCP", 300, Higher),
	} {
		if err := p.Print(r); err != nil {
			t.Fatal(err)
		}
	}
	want := `{"bench":"verbs","case":"tcp READ 64B","metric":"p50","value":21.5,"unit":"us"}
{"bench":"verbs","case":"tcp READ 64B","metric":"rate","value":600,"unit":"op/s","rival":"raw TCP","rival_value":300,"ratio":2}
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestTable(t *testing.T) {
	var b strings.Builder
	p := New(&b, false)
	rows := []Row{
		{Bench: "verbs", Case: "tcp READ 64B", Metric: "p50", Value: 21.53, Unit: "us"},
		Row{Bench: "verbs", Case: "tcp READ 64B", Metric: "rate", Value: 612345.2, Unit: "op/s"}.Against("raw TCP", 306172.6, Higher),
		{Bench: "resp", Case: "GET", Metric: "p99", Value: 0.25, Unit: "ms"},
	}
	for _, r := range rows {
		if err := p.Print(r); err != nil {
			t.Fatal(err)
		}
	}
	got := strings.Split(b.String(), "\n")
	if len(got) != 7 {
		t.Fatalf("got %d lines, want 7:\n%s", len(got), b.String())
	}
	for i, want := range [][]string{
		{"verbs", "metric", "ratio"},
		{"tcp READ 64B", "p50", "21.53", "us"},
		{"rate", "612345", "306173", "2.00", "raw TCP"},
		{},
		{"resp", "metric"},
		{"GET", "p99", "0.2500", "ms"},
	} {
		for _, w := range want {
			if !strings.Contains(got[i], w) {
				t.Errorf("line %d: got %q, want it to contain %q", i, got[i], w)
			}
		}
	}
}

func TestPrintReportsAWriteError(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		if err := New(broken{}, asJSON).Print(Row{Bench: "b"}); !errors.Is(err, errBroken) {
			t.Errorf("json %v: got %v, want the writer's error", asJSON, err)
		}
	}
}

var errBroken = errors.New("broken")

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errBroken }
