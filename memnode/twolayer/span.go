package twolayer

import "math/bits"

// Span is a span's header.
type Span uint64

// AllFree is the free map of a span without allocations.
const AllFree = 1<<SpanChunks - 1

// MakeSpan packs a header.
func MakeSpan(free uint32, level uint8, l Log) Span {
	return Span(uint64(free) | uint64(level&3)<<retryShift | l.pack())
}

// Free is the free map.
func (s Span) Free() uint32 { return uint32(s) }

// Level is the retry level of the last operation.
func (s Span) Level() uint8 { return uint8(s>>retryShift) & 3 }

// Log is the temporary log.
func (s Span) Log() Log { return unpackLog(uint64(s)) }

// Open reports whether the span serves chunks.
func (s Span) Open() bool { return s>>logShift&1 == 1 }

// blockMask is the free map's bits of 1<<k chunks.
func blockMask(k int) uint32 { return uint32(uint64(1)<<(1<<k) - 1) }

// Fit returns the first of 1<<k free chunks that lie at a multiple of 1<<k, or -1 if there are none. It takes no
// chunk whose bit is set in avoid. It prefers a place that leaves larger free blocks whole.
func (s Span) Fit(k int, avoid uint32) int {
	free := s.Free() &^ avoid
	for whole := k; whole <= 5; whole++ {
		// Free blocks of class whole whose buddies are not free, so that nothing larger can use them.
		candidates := aligned(free, whole)
		if whole < 5 {
			candidates &^= spread(aligned(free, whole+1), whole)
		}
		if candidates != 0 {
			return bits.TrailingZeros32(candidates)
		}
	}
	return -1
}

// aligned has a bit for the first chunk of every aligned block of class k that
// is all free.
func aligned(free uint32, k int) uint32 {
	firsts := [...]uint32{^uint32(0), 0x55555555, 0x11111111, 0x01010101, 0x00010001, 1}
	for i := range k {
		free &= free >> (1 << i)
	}
	return free & firsts[k]
}

// spread has, for every block of class k+1 in firsts, the first chunks of both
// its halves.
func spread(firsts uint32, k int) uint32 { return firsts | firsts<<(1<<k) }

// Allocated is the header after user has allocated 1<<k chunks from offset on, having failed failed times before. It
// opens the span.
//
// Preconditions: they are free.
func (s Span) Allocated(offset, k int, user uint16, failed int) Span {
	return MakeSpan(s.Free()&^(blockMask(k)<<offset), Level(failed), s.Log().next(true, uint8(offset), uint8(k), user))
}

// Freed is the header after user has freed 1<<k chunks from offset on.
//
// Preconditions: they are not free.
func (s Span) Freed(offset, k int, user uint16, failed int) Span {
	return MakeSpan(s.Free()|blockMask(k)<<offset, Level(failed), s.Log().next(false, uint8(offset), uint8(k), user))
}

// Has reports whether 1<<k chunks from offset on are all allocated.
func (s Span) Has(offset, k int) bool { return s.Free()&(blockMask(k)<<offset) == 0 }

// Closed is the header after the span is closed. Before, it must be open and all free, and its log flushed.
func (s Span) Closed() Span {
	l := s.Log()
	l.InUse = false
	return MakeSpan(s.Free(), 0, l)
}

// Reclosed is another header of the span, which is closed and stays closed: only its timestamp differs.
func (s Span) Reclosed() Span {
	l := s.Log()
	l.Time = (l.Time + 2) & timeMask
	return MakeSpan(s.Free(), 0, l)
}
