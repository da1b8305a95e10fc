//go:build invariants || race

package far

// generation is how often the word of a pointer had been freed when the
// pointer was made, by which uses after that are found.
type generation struct{ n uint32 }

func generationOf(h *Heap, w *uint64) generation {
	return generation{h.objects.Generation(w)}
}

// check panics if a pointer may not be dereferenced in s.
func (g generation) check(s *Scope, w *uint64) {
	h := heapOfScope(s)
	h.objects.MustServe(s, w)
	g.checkFreed(h, w)
}

func (g generation) checkFreed(h *Heap, w *uint64) {
	if generationOf(h, w) != g {
		panic("BUG: a far pointer is used after it was freed")
	}
}

// elemTop makes the fast paths of Elem take no word, so that all uses are checked.
const elemTop = 0
