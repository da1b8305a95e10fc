package far

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestCollector(t *testing.T) {
	h, m := newTestHeap(t, NewMemStore(testSegment, 100), Config{})
	h.NewByteMap("second")
	for i := range 3 {
		mustSet(t, m, key(i), []byte("v"))
		mustGet(t, m, key(i), []byte("v"))
	}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(NewCollector(h))
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
	for name, want := range map[string]float64{
		"polder_far_entries/test":       3,
		"polder_far_entries/second":     0,
		"polder_far_hits_total/test":    3,
		"polder_far_sets_total/test":    3,
		"polder_far_segments":           0,
		"polder_far_local_budget_bytes": MinLocal,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s: got %v, want %v", name, v, want)
		}
	}
}
