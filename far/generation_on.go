//go:build invariants || race

package far

import "sync/atomic"

// generation is how often the word of a pointer had been freed when the
// pointer was made, by which uses after that are found.
type generation struct{ n uint32 }

func generationOf(h *Heap, w *uint64) generation {
	return generation{atomic.LoadUint32(&h.words.genOf[h.words.number(w)])}
}

// check panics if a pointer may not be dereferenced in s.
func (g generation) check(s *Scope, w *uint64) {
	h := heapOfScope(s)
	h.mustServe(s, w)
	g.checkFreed(h, w)
}

func (g generation) checkFreed(h *Heap, w *uint64) {
	if generationOf(h, w) != g {
		panic("BUG: a far pointer is used after it was freed")
	}
}

// elemTop makes the fast paths of Elem take no word, so that all uses are checked.
const elemTop = 0
