//go:build !invariants && !race

package far

import (
	"polder/far/heap"
	"polder/far/objects"
)

// generation is empty in builds without invariants.
type generation struct{}

func generationOf(*Heap, *uint64) generation  { return generation{} }
func (generation) check(*heap.Scope, *uint64) {}
func (generation) checkFreed(*Heap, *uint64)  {}

// elemTop is the greatest address that the fast paths of Elem take.
const elemTop = objects.Top
