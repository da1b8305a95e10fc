//go:build invariants || race

package far

// generation is how often the word of a pointer had been freed when the pointer was made. A later use of the pointer
// compares it, and so finds that the pointer was freed.
type generation struct{ n uint32 }

func generationOf(h *Heap, w *uint64) generation {
	return generation{h.objects.Generation(w)}
}

// check panics if the pointer with word w may not be dereferenced in s, or has been freed.
func (g generation) check(s *Scope, w *uint64) {
	h := heapOfScope(s)
	if w == nil {
		panicNil()
	}
	h.objects.MustServe(s, w)
	g.checkFreed(h, w)
}

func (g generation) checkFreed(h *Heap, w *uint64) {
	if generationOf(h, w) != g {
		panic("BUG: a far pointer is used after it was freed")
	}
}

// elemTop is 0, so that the fast paths of Elem take no word and every use is checked.
const elemTop = 0
