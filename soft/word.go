package soft

// A word names one incarnation of one object: where it lies and in which
// generation of its segment it was written. Words live in slots in ordinary
// memory (a map's buckets, an array's cells, the pointer table), are loaded
// and swapped atomically, and are never dereferenced without their generation
// being checked against the segment's. The zero word names nothing.
//
//	63      46 45        24 23        8 7      0
//	+---------+------------+-----------+--------+
//	| segment | generation | granule   | tag    |
//	| 18 bits | 22 bits    | 16 bits   | 8 bits |
//	+---------+------------+-----------+--------+
//
// The tag belongs to whoever owns the slot; a map keeps a piece of the hash
// there.
type word uint64

const (
	tagBits     = 8
	granuleBits = 16
	genBits     = 22
	segmentBits = 18

	granuleShift = tagBits
	genShift     = granuleShift + granuleBits
	segmentShift = genShift + genBits

	genMask = 1<<genBits - 1

	// SegmentSize is the unit in which memory is granted, written, evacuated
	// and revoked.
	SegmentSize = 2 << 20

	// Objects start at multiples of granule bytes within their segment.
	granule     = 32
	segGranules = SegmentSize / granule

	maxSegments = 1 << segmentBits
)

func makeWord(seg uint32, gen uint64, off uint32, tag uint8) word {
	return word(uint64(seg)<<segmentShift |
		(gen>>1&genMask)<<genShift |
		uint64(off/granule)<<granuleShift |
		uint64(tag))
}

func (w word) segment() uint32 { return uint32(w >> segmentShift) }
func (w word) granule() uint32 { return uint32(w>>granuleShift) & (1<<granuleBits - 1) }
func (w word) offset() uint32  { return w.granule() * granule }
func (w word) tag() uint8      { return uint8(w) }

// alive reports whether a word of this generation may be read while its
// segment's generation word is gen. Odd generations are revoked ones; the
// parity bit is compared together with the rest.
func (w word) alive(gen uint64) bool {
	return (gen^uint64(w)>>(genShift-1)&(genMask<<1))&(genMask<<1|1) == 0
}

// live is the per-segment account: how many granules and objects of one
// generation are in use. Generation and counts share one atomic word, so that
// a late release can never be charged to the segment's next life.
//
//	63       36 35      18 17      0
//	+----------+----------+---------+
//	| gen (28) | granules | objects |
//	+----------+----------+---------+
type live uint64

const (
	liveBits = 18
	liveMask = 1<<liveBits - 1
	liveGen  = 1<<28 - 1
)

func makeLive(gen uint64) live       { return live((gen >> 1 & liveGen) << (2 * liveBits)) }
func (l live) gen() uint64           { return uint64(l) >> (2 * liveBits) }
func (l live) granules() uint32      { return uint32(l>>liveBits) & liveMask }
func (l live) objects() uint32       { return uint32(l) & liveMask }
func liveDelta(granules uint32) live { return live(granules)<<liveBits | 1 }

// granulesFor returns how many granules an object with n bytes of payload
// takes, header included.
func granulesFor(n int) uint32 { return uint32((n + headerSize + granule - 1) / granule) }
