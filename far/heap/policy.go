package heap

// A Policy decides how room is made when there is too little of it: which segment of the local logs is emptied next,
// and which of its records stay local all the same. What counts as a use of a record, and for how long, is up to the
// record's owner, which remembers it in its word.
//
// There is one implementation, [Clock]. Another one has to show that it is better by hit ratios on real traces, which
// BenchmarkPolicies of package far measures.
//
// Only the evacuator calls a policy, with locks held, so it must return at once. It is not asked which segments are
// compacted because little lives in them, nor what goes while the store takes nothing.
type Policy interface {
	// Rank is the place of a full segment in the order in which segments are emptied: the one with the least rank is
	// next.
	Rank(s Age) uint64
	// Keeps reports whether a record stays local; used says whether it was used since the evacuator last looked at
	// it. A record that is kept goes to a young segment of its kind, which the evacuator fills.
	Keeps(used bool) bool
}

// Age is what a policy knows of a segment.
type Age struct {
	Seq  uint64 // the higher, the younger; from 1
	Kept bool   // the evacuator has filled it, with records that it has kept

	Fresh int // how many full segments the evacuator has not filled
	Again int // how many it has filled
}

// Clock is the policy CLOCK: segments are emptied in order of age, and a record that was used is kept, and has to
// be used again to be kept once more.
type Clock struct{}

// Rank is the age.
func (Clock) Rank(s Age) uint64 { return s.Seq }

// Keeps keeps what was used.
func (Clock) Keeps(used bool) bool { return used }
