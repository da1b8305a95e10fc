package prom_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"polder/far"
	"polder/far/prom"
)

// gather returns the value of each series that the heap has, by its name and its
// labels' values.
func gather(t *testing.T, h *far.Heap) map[string]float64 {
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

func open(t *testing.T) *far.Heap {
	t.Helper()
	h, err := far.NewHeap(far.NewMemStore(256<<10, 100), far.Config{Local: far.MinLocal})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func check(t *testing.T, got, want map[string]float64) {
	t.Helper()
	for name, want := range want {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s: got %v, want %v", name, v, want)
		}
	}
}

func TestMapsHaveMetrics(t *testing.T) {
	h := open(t)
	m := h.NewByteMap("test")
	h.NewByteMap("second")
	for _, k := range []string{"a", "b", "c"} {
		if err := m.Set(t.Context(), []byte(k), far.Entry{Value: []byte("v")}); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Get(t.Context(), []byte(k), nil); err != nil {
			t.Fatal(err)
		}
	}
	check(t, gather(t, h), map[string]float64{
		"polder_far_entries/test":       3,
		"polder_far_entries/second":     0,
		"polder_far_hits_total/test":    3,
		"polder_far_sets_total/test":    3,
		"polder_far_segments":           0,
		"polder_far_local_budget_bytes": far.MinLocal,
	})
}

// Structures and maps of one name are one series.
func TestStructuresHaveMetrics(t *testing.T) {
	h := open(t)
	for range 2 {
		if _, err := far.NewArray[int32](t.Context(), h, 100, far.StructureConfig{Name: "twice"}); err != nil {
			t.Fatal(err)
		}
		m, err := far.NewMap(h, far.MapConfig[int, int]{Name: "twice"})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Set(t.Context(), 1, 1); err != nil {
			t.Fatal(err)
		}
	}
	check(t, gather(t, h), map[string]float64{
		"polder_far_structure_elements/array/twice": 200,
		"polder_far_entries/twice":                  2,
	})
}

// TestWhatDoesNotApplyIsNotExported: a heap without pointers says nothing of them.
func TestWhatDoesNotApplyIsNotExported(t *testing.T) {
	h := open(t)
	h.NewByteMap("test")
	of := []string{"polder_far_pointers", "polder_far_passes_total", "polder_far_prefetch_window_bytes", "polder_far_prefetch_bytes_per_second"}
	got := gather(t, h)
	for _, name := range of {
		if _, ok := got[name]; ok {
			t.Errorf("a heap of a map exports %s", name)
		}
	}
	a, err := far.NewArray[int64](t.Context(), h, 10, far.StructureConfig{Name: "numbers"})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Free()
	got = gather(t, h)
	for _, name := range of {
		if _, ok := got[name]; !ok {
			t.Errorf("a heap with an array does not export %s", name)
		}
	}
}
