package far

import (
	"context"

	"polder/far/heap"
)

// A Scope is what dereferencing takes: what Deref returns is valid until the scope is
// left.
type Scope = heap.Scope

// NewScope makes a scope, which Scope.Close forgets. A heap keeps some of its
// memory in reserve for every scope there is, so make one for every worker and
// not one for every request; Do has a pool of them.
func (h *Heap) NewScope() *heap.Scope { return h.core.NewScope(1) }

// Do calls fn in a scope of the heap's pool with ctx, and returns the error of
// fn or, if that is nil, of the scope. If the scope got no local memory because
// others use it, Do leaves it, waits for some, and calls fn again: fn must not
// mind.
func (h *Heap) Do(ctx context.Context, fn func(s *heap.Scope) error) error { return h.core.Do(ctx, fn) }

// One calls fn in a scope of the heap's pool with ctx, and returns the error of the scope. It is Do
// for what needs one object or a few, such as a call of a data structure: it does not wait for other scopes to be left,
// but for local memory, and only if fn has found none. Fn is then called again, and must not mind. It
// may take locks; who holds one of them must not enter a scope.
func (h *Heap) One(ctx context.Context, fn func(s *heap.Scope)) error { return h.core.One(ctx, fn) }

// Local returns the budget of local memory in bytes.
func (h *Heap) Local() int64 { return h.core.Local() }

// SetLocal changes the budget of local memory to n bytes, at most
// Config.MaxLocal. When it returns without an error, the heap has no more than
// that resident; while it shrinks, new objects and entries wait. It must not be
// called in a scope. If ctx ends before enough has been evacuated, SetLocal
// fails, and the heap goes on shrinking in the background, to what Local says by then; if n
// cannot be, the budget stays as it was.
func (h *Heap) SetLocal(ctx context.Context, n int64) error { return h.maps.SetLocal(ctx, n) }
