package far

import (
	"slices"
	"sync"
	"sync/atomic"

	"polder/far/heap"
)

// registry is the heaps that are open. It serves to find the heap of a pointer where there is no scope to tell it.
// There are few heaps.
var registry struct {
	mu    sync.Mutex
	heaps atomic.Pointer[[]*Heap] // replaced under mu
}

func register(h *Heap) {
	registry.mu.Lock()
	defer registry.mu.Unlock()
	var old []*Heap
	if p := registry.heaps.Load(); p != nil {
		old = *p
	}
	heaps := append(slices.Clip(old), h)
	registry.heaps.Store(&heaps)
}

func unregister(h *Heap) {
	registry.mu.Lock()
	defer registry.mu.Unlock()
	heaps := slices.DeleteFunc(slices.Clone(*registry.heaps.Load()), func(o *Heap) bool { return o == h })
	registry.heaps.Store(&heaps)
}

// heapOf returns the heap of a pointer's word, nil if it has been closed.
func heapOf(w *uint64) *Heap {
	if w == nil {
		panicNil()
	}
	if p := registry.heaps.Load(); p != nil {
		for _, h := range *p {
			if h.objects.Has(w) {
				return h
			}
		}
	}
	return nil
}

func panicNil() { panic("far: a nil Ptr is used") }

// heapOfScope returns the heap of a scope.
func heapOfScope(s *heap.Scope) *Heap { return (*Heap)(heap.HostOf(s).(*host)) }
