package prom_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"polder/soft"
	"polder/soft/prom"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gather returns the value of each series that the heap has, by its name and its labels' values.
func gather(t *testing.T, h *soft.Heap) map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(prom.NewCollector(h))
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += "/" + l.GetValue()
			}
			got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return got
}

// TestAHeapExportsWhatConcernsIt: what its memory is used for adds up to its budget, and there are no series of what
// it does not do.
func TestAHeapExportsWhatConcernsIt(t *testing.T) {
	h, err := soft.Open(soft.Config{Budget: 8 * soft.SegmentSize})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	m, err := soft.NewByteMap(h, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Set([]byte("key"), soft.Item{Value: make([]byte, 1000)}); err != nil {
		t.Fatal(err)
	}
	m.Get([]byte("key"), nil)
	m.Get([]byte("another"), nil)
	got := gather(t, h)
	for name, want := range map[string]float64{
		"polder_soft_budget_bytes": 8 * soft.SegmentSize, "polder_soft_objects": 1,
		"polder_soft_hits_total": 1, "polder_soft_misses_total": 1,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s: got %v, want %v", name, v, want)
		}
	}
	const memory = "polder_soft_memory_bytes/"
	if sum := got[memory+"live"] + got[memory+"dead"] + got[memory+"free"]; sum != got["polder_soft_budget_bytes"] || got[memory+"live"] < 1000 {
		t.Errorf("the memory is %v, want what adds up to the budget, and at least 1000 bytes live", got)
	}
	for _, name := range []string{"polder_soft_rebuilds_total", "polder_soft_revoked_segments_total"} {
		if v, ok := got[name]; ok {
			t.Errorf("%s is %v, of a heap that rebuilds nothing and that nobody can take from", name, v)
		}
	}
	h.Rebuilt(3 * time.Second)
	if v := gather(t, h)["polder_soft_rebuild_seconds_total"]; v != 3 {
		t.Errorf("after a rebuild: got %v seconds, want 3", v)
	}
}
