package heap

// A Policy decides what makes room when there is too little of it: which segment of the local logs is
// emptied next, and what of that stays local all the same. What counts as a use of a
// record, and how long it counts, is its owner's business, which remembers that in its word.
//
// There is one implementation, [Clock]. That another one is better has to be seen in hit ratios on real traces, which
// BenchmarkPolicies of package far measures.
//
// The evacuator alone calls a policy, with locks held: it must return at once. Which segments are compacted, since little
// lives in them, and what goes while the store takes nothing, it is not asked.
type Policy interface {
	// Rank is the place of a full segment in the order in which they are emptied: the one with the least rank
	// is next.
	Rank(s Age) uint64
	// Keeps reports whether a record stays local that was, or was not, used since it was looked at last. What
	// is kept goes to a segment of its kind, which is the youngest then.
	Keeps(used bool) bool
}

// Age is what a policy knows of a segment.
type Age struct {
	Seq  uint64 // the higher, the younger; from 1
	Kept bool   // the evacuator has filled it, with what it has kept

	Fresh int // how many full segments there are that it has not filled,
	Again int // and that it has
}

// Clock is the policy CLOCK: segments are emptied in order of age, and a record that was used is kept, and has to
// be used again to be kept once more.
type Clock struct{}

// Rank is the age.
func (Clock) Rank(s Age) uint64 { return s.Seq }

// Keeps keeps what was used.
func (Clock) Keeps(used bool) bool { return used }
