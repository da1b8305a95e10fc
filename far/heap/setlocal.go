package heap

import (
	"context"
	"fmt"
)

// Local returns the budget of local memory in bytes.
func (h *Heap) Local() int64 { return h.Budget.Load() }

// SetLocal changes the budget of local memory to n bytes, at most
// Config.MaxLocal. When it returns without an error, the heap has no more than
// that resident; while it shrinks, new objects and entries wait. It must not be
// called in a scope. If ctx ends before enough has been evacuated, SetLocal
// fails, and the heap goes on shrinking in the background.
func (h *Heap) SetLocal(ctx context.Context, n int64) error {
	if n > h.Cfg.MaxLocal {
		return fmt.Errorf("cannot set the local budget to %d bytes: Config.MaxLocal is %d", n, h.Cfg.MaxLocal)
	}
	if err := h.Begin(); err != nil {
		return err
	}
	defer h.End()
	l := &h.Logs
	l.Mu.Lock()
	budget := n - l.others
	least := int64(minSegments+len(l.Open)) * int64(l.SegSize)
	if budget < l.index+least {
		l.Mu.Unlock()
		return fmt.Errorf("cannot set the local budget to %d bytes: indexes, words and buffers take %d, and logs at least %d",
			n, l.index+l.others, least)
	}
	l.budget = budget
	l.trim()
	l.full.Store(0)
	l.Mu.Unlock()
	h.Budget.Store(n)
	h.reserveForScopes()
	for !l.fits() {
		if err := h.WaitRoom(ctx); err != nil {
			return fmt.Errorf("cannot shrink to %d bytes yet: %w", n, err)
		}
	}
	return nil
}

// fits reports whether the logs are within the budget.
func (l *Logs) fits() bool {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return l.resident <= l.allowed(l.index)
}
