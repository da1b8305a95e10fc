package far

import (
	"context"
	"errors"
	"fmt"

	"polder/far/saved"
)

// LackingError says that a snapshot would lack something.
type LackingError struct{ Entries int }

func (e *LackingError) Error() string {
	return fmt.Sprintf("at least %d entries were lost with a node, and a copy would lack them", e.Entries)
}

// Lacking is a *LackingError if entries of the heap are lost, and nobody has set or deleted them since.
func (h *Heap) Lacking() error {
	st := h.Stats()
	n := st.Uncounted
	for _, m := range st.Maps {
		n += m.LostNow
	}
	if n > 0 {
		return &LackingError{n}
	}
	return nil
}

// Snapshot takes a checkpoint and pins it, to be copied to a file: see package saved, which also makes a heap of such a
// file. Of segments, whose positions are the keys of have, it leaves out so many bytes, which whoever reads has by an earlier
// snapshot of the heap. Close it.
func (h *Heap) Snapshot(ctx context.Context, have map[uint64]uint64) (*saved.Snapshot, error) {
	if err := h.Lacking(); err != nil {
		return nil, err
	}
	if err := h.Checkpoint(ctx); err != nil {
		return nil, err
	}
	pin := h.core.Far.Pin() // of this checkpoint, or of one that is younger still
	if pin == nil {
		return nil, errors.New("BUG: a checkpoint was taken, and there is none")
	}
	return saved.NewSnapshot(ctx, pin, h.core.Far.SegSize, have)
}
