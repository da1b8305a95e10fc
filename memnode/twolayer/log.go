package twolayer

// MaxUser is the largest user id. 0 is nobody's: it stands for the memory node.
const MaxUser = 1<<14 - 1

// Log is a header's temporary redo log: the last operation on it.
type Log struct {
	InUse  bool
	Time   uint8  // 7 bits; odd: allocated, even: freed
	Offset uint8  // 5 bits: span header: a chunk of the span; section header: a span of the section
	Size   uint8  // 3 bits: span header: the class; section header: see the constants
	User   uint16 // 14 bits
}

// Sizes in a section header's log. Below SizeRun, it is the class less SpanClass.
const (
	SizeRun  = 5 // one section of a run of sections that are allocated together
	SizeOpen = 6 // a span was opened or closed: there is nothing to flush
)

const (
	retryShift = 32
	logShift   = 34
	timeMask   = 1<<7 - 1
)

// Allocated reports whether the operation was an allocation.
func (l Log) Allocated() bool { return l.Time&1 == 1 }

// pack returns the log as the upper 30 bits of a header.
func (l Log) pack() uint64 {
	var used uint64
	if l.InUse {
		used = 1
	}
	return (used | uint64(l.Time&timeMask)<<1 | uint64(l.Offset&31)<<8 | uint64(l.Size&7)<<13 | uint64(l.User&MaxUser)<<16) << logShift
}

func unpackLog(h uint64) Log {
	h >>= logShift
	return Log{
		InUse: h&1 == 1, Time: uint8(h >> 1 & timeMask), Offset: uint8(h >> 8 & 31),
		Size: uint8(h >> 13 & 7), User: uint16(h >> 16),
	}
}

// next is the log of the operation that follows l.
func (l Log) next(allocate bool, offset, size uint8, user uint16) Log {
	return Log{InUse: true, Time: NextTime(l.Time, allocate), Offset: offset, Size: size, User: user}
}

// NextTime is the timestamp of an operation that follows one with timestamp t.
func NextTime(t uint8, allocate bool) uint8 {
	if (t&1 == 1) == allocate {
		return t
	}
	return (t + 1) & timeMask
}

// Level is the retry level of an operation that failed failed times before it succeeded. An operation that ends at
// LevelHigh marks its span contended; one that ends at LevelLow clears the mark.
func Level(failed int) uint8 {
	switch {
	case failed > markAbove:
		return LevelHigh
	case failed < clearBelow:
		return LevelLow
	}
	return 1
}

// Retry levels.
const (
	LevelLow  = 0
	LevelHigh = 2
)

// How many failures mark a span contended, and how few clear the mark.
const (
	markAbove  = 10
	clearBelow = 3
)
