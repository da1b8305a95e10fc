package far

import "polder/far/heap"

// audit recounts everything that is counted, and returns what does not agree. Nothing may be under way: it runs while
// the heap is being closed, in builds with invariants.
func (h *Heap) audit() error {
	t := h.core.Tally()
	for _, tr := range h.structures {
		t.Index[heap.Nodes] += tr.nodeParts.Load() * nodePartBytes
	}
	if err := h.maps.Audit(t); err != nil {
		return err
	}
	if err := h.objects.Audit(t); err != nil {
		return err
	}
	return h.core.Audit(t)
}
