package far

import (
	"context"
	"fmt"

	"polder/far/heap"
)

// A Scope is what objects are dereferenced in: an object that Deref returns is valid until the scope is left.
type Scope = heap.Scope

// NewScope makes a scope, which exists until Scope.Close. The heap keeps some memory in reserve for every scope there
// is, so make one for every worker and not one for every request; Do has a pool of scopes.
func (h *Heap) NewScope() *heap.Scope { return h.core.NewScope(1) }

// Do calls fn in a scope of the heap's pool with ctx, and returns the error of fn or, if that is nil, of the scope.
// If the scope got no local memory because others use it, Do leaves the scope, waits for memory, and calls fn again:
// fn must be written so that it may run more than once.
func (h *Heap) Do(ctx context.Context, fn func(s *heap.Scope) error) error { return h.core.Do(ctx, fn) }

// One calls fn in a scope of the heap's pool with ctx, and returns the error of the scope. It is Do for calls that
// need one object or a few, such as a call of a data structure. One does not wait for other scopes to be left. It
// waits for local memory only if fn has found none; then it calls fn again, so fn must be written so that it may run
// more than once. fn may take locks; whoever holds one of these locks must not enter a scope.
func (h *Heap) One(ctx context.Context, fn func(s *heap.Scope)) error { return h.core.One(ctx, fn) }

// Local returns the budget of local memory in bytes.
func (h *Heap) Local() int64 { return h.core.Local() }

// SetLocal changes the budget of local memory to n bytes, at most Config.MaxLocal. When it returns without an error,
// the heap has no more than n bytes resident; while the heap shrinks, new objects and entries wait. SetLocal must not
// be called in a scope. If ctx ends before enough has been evacuated, SetLocal fails, and the heap goes on shrinking
// in the background, to the budget that Local then returns. If n is not possible, the budget stays as it was.
func (h *Heap) SetLocal(ctx context.Context, n int64) error {
	err := h.maps.SetLocal(ctx, n)
	if err != nil && n < h.Local()/2 { // the error is about the first step on the way there
		err = fmt.Errorf("%w; asked for were %d bytes", err, n)
	}
	return err
}
