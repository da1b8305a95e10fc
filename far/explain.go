package far

import "slices"

// StructureStats is what a data structure has been through, and how it stands.
type StructureStats struct {
	ClassStats        // of its objects; Warmed samples the local hits
	Kind       string // "array", "vector", "list", "stack", "queue"
	Len        int    // elements
	Group      int    // elements in an object
	Prefetch   PrefetchStats
}

func (tr *tracker) structure() StructureStats {
	return StructureStats{tr.c.stats(), tr.kind, tr.len(), tr.group, tr.stats()}
}

// track makes a structure a part of the heap's statistics.
func (h *Heap) track(tr *tracker) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.structures = append(h.structures, tr)
}

// untrack undoes track.
func (h *Heap) untrack(tr *tracker) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i := slices.Index(h.structures, tr); i >= 0 {
		h.structures = slices.Delete(h.structures, i, i+1)
	}
}

// Structures returns the statistics of the data structures on the heap.
func (h *Heap) Structures() []StructureStats {
	h.mu.Lock()
	trs := slices.Clone(h.structures)
	h.mu.Unlock()
	all := make([]StructureStats, len(trs))
	for i, tr := range trs {
		all[i] = tr.structure()
	}
	return all
}
