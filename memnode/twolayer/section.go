package twolayer

import "math/bits"

// Section is a section's header.
type Section uint64

// State is what a section's header says of a span.
type State uint8

const (
	Empty     State = 0 // closed, and free as a whole
	InUse     State = 1 // open, or about to be, or about to be closed
	Contended State = 2 // as InUse, and clients often collide
	Full      State = 3 // allocated as a whole, or open and perhaps without a free chunk
)

// MakeSection packs a header.
func MakeSection(states uint32, level uint8, l Log) Section {
	return Section(uint64(states) | uint64(level&3)<<retryShift | l.pack())
}

// States are the spans' states, 2 bits each.
func (s Section) States() uint32 { return uint32(s) }

// State is span i's.
func (s Section) State(i int) State { return State(s >> (2 * i) & 3) }

// Level is the retry level of the last operation.
func (s Section) Level() uint8 { return uint8(s>>retryShift) & 3 }

// Log is the temporary log.
func (s Section) Log() Log { return unpackLog(uint64(s)) }

// With is the header with another state of span i, which is only a hint: the log stays.
func (s Section) With(i int, state State) Section {
	return s&^(3<<(2*i)) | Section(state)<<(2*i)
}

// evenBits are the low bits of the states.
const evenBits = 0x55555555

// empties has bit 2i for every empty span i.
func (s Section) empties() uint32 {
	v := s.States()
	return ^(v | v>>1) & evenBits
}

// stateMask has all state bits of n spans set.
func stateMask(n int) uint32 { return uint32(uint64(1)<<(2*n) - 1) }

// Fit returns the first of n empty spans that lie at a multiple of n, or -1 if there are none; n is a power of two up
// to 16. It takes no span whose bit is set in avoid. It prefers a place that leaves larger empty blocks whole.
func (s Section) Fit(n int, avoid uint16) int {
	e := s.empties()
	if e == 0 {
		return -1
	}
	for i := range SectionSpans {
		if avoid>>i&1 == 1 {
			e &^= 1 << (2 * i)
		}
	}
	best, bestWhole := -1, 2*SectionSpans
	for i := 0; i < SectionSpans; i += n {
		if !emptyRun(e, i, n) {
			continue
		}
		whole := n
		for whole < SectionSpans && emptyRun(e, i&^(2*whole-1), 2*whole) {
			whole *= 2
		}
		if whole < bestWhole {
			best, bestWhole = i, whole
		}
	}
	return best
}

func emptyRun(e uint32, i, n int) bool {
	m := stateMask(n) & evenBits << (2 * i)
	return e&m == m
}

// Count is how many spans are in a state.
func (s Section) Count(state State) int {
	n := 0
	for i := range SectionSpans {
		if s.State(i) == state {
			n++
		}
	}
	return n
}

// Whole reports whether the section is free as a whole.
func (s Section) Whole() bool { return s.States() == 0 }

// SpansOf is how many spans an allocation of class k takes in each section that it touches.
func SpansOf(k int) int { return 1 << (min(k, SectionClass) - SpanClass) }

// sizeOf is class k in a section's log.
func sizeOf(k int) uint8 { return uint8(min(k-SpanClass, SizeRun)) }

// Allocated is the header after user has allocated class k, from span i on.
//
// Preconditions: k >= SpanClass, and the spans are empty.
func (s Section) Allocated(i, k int, user uint16, failed int) Section {
	return MakeSection(s.States()|stateMask(SpansOf(k))<<(2*i), Level(failed), s.Log().next(true, uint8(i), sizeOf(k), user))
}

// Freed is the header after user has freed class k, from span i on.
func (s Section) Freed(i, k int, user uint16, failed int) Section {
	return MakeSection(s.States()&^(stateMask(SpansOf(k))<<(2*i)), Level(failed), s.Log().next(false, uint8(i), sizeOf(k), user))
}

// Has reports whether the spans of class k from i on are full.
func (s Section) Has(i, k int) bool {
	m := stateMask(SpansOf(k)) << (2 * i)
	return s.States()&m == m
}

// Opened is the header when user opens span i, which is empty.
func (s Section) Opened(i int, user uint16) Section {
	return MakeSection(s.With(i, InUse).States(), LevelLow, s.Log().next(true, uint8(i), SizeOpen, user))
}

// Closed is the header when user has closed span i.
func (s Section) Closed(i int, user uint16) Section {
	return MakeSection(s.With(i, Empty).States(), LevelLow, s.Log().next(false, uint8(i), SizeOpen, user))
}

// Mark is the state that span i, which is open, should get after an operation on its header: Full if it has no free
// chunk; Contended after many failures, or if it was Contended and the failures were not few; and otherwise InUse.
func (s Section) Mark(i int, h Span, failed int) State {
	switch old := s.State(i); {
	case h.Free() == 0:
		return Full
	case Level(failed) == LevelHigh:
		return Contended
	case old == Contended && Level(failed) != LevelLow:
		return Contended
	}
	return InUse
}

// Candidates are the spans that are in a state, a bit each.
func (s Section) Candidates(state State) uint16 {
	differs := s.States() ^ uint32(state)*evenBits
	m := ^(differs | differs>>1) & evenBits
	m = (m | m>>1) & 0x33333333
	m = (m | m>>2) & 0x0f0f0f0f
	m = (m | m>>4) & 0x00ff00ff
	return uint16(m | m>>8)
}

// NextSpan is the first span of m from number from on, or else the first span of m, or -1 if m is empty.
func NextSpan(m uint16, from int) int {
	if later := m &^ (1<<from - 1); later != 0 {
		return bits.TrailingZeros16(later)
	}
	if m != 0 {
		return bits.TrailingZeros16(m)
	}
	return -1
}
