// Package ended keeps the statistics of things that have ended, summed up by name, so that the sum of a statistic
// over all things of a name does not fall when one of them ends.
package ended

import (
	"iter"
	"maps"
	"slices"
)

// Most is how many names are remembered. Statistics under any further name count under Others.
const (
	Most   = 1 << 10
	Others = "others that were freed"
)

// Sums are statistics of type T by name. The zero Sums is empty. It needs its owner's lock.
type Sums[T any] struct{ by map[string]*T }

// Add adds st, the statistics of a thing that has ended, using add, which adds one T to another.
func (s *Sums[T]) Add(name string, st *T, add func(sum, st *T)) {
	if s.by[name] == nil && len(s.by) >= Most {
		name = Others
	}
	if s.by == nil {
		s.by = map[string]*T{}
	}
	if s.by[name] == nil {
		s.by[name] = new(T)
	}
	add(s.by[name], st)
}

// All iterates over copies of the sums, in order of their names.
func (s *Sums[T]) All() iter.Seq2[string, T] {
	return func(yield func(string, T) bool) {
		for _, name := range slices.Sorted(maps.Keys(s.by)) {
			if !yield(name, *s.by[name]) {
				return
			}
		}
	}
}
