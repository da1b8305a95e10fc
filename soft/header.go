package soft

// The header of figure 5, before every object in a segment. It is written once, by the appender that owns the open
// segment, and never changed: what does change (liveness, hotness) lies beside the segment in ordinary memory,
// because a reader that was overtaken by a revocation must not write into memory that may be somebody else's by now.
// The figure's evacuating bit is the dead bit there (see stripe): a dead object is immutable, so copying it needs no
// lock.
//
//	word 0   size of the payload (32) | key length (16) | cost (8) | flags (8)
//	word 1   the reverse pointer: owner (16) | reference within the owner (48)
//
// A payload is: [expiry, 8 bytes, if flagExpiry] key value.
type header struct {
	size  uint32 // of the payload
	klen  uint16
	cost  uint8 // of rebuilding, see costClass
	flags uint8
	owner uint16
	ref   uint64 // 48 bits
}

const (
	headerSize = 16
	refBits    = 48
	refMask    = 1<<refBits - 1
)

const (
	// flagExpiry: the payload starts with the Unix time in nanoseconds after
	// which the object is no longer valid.
	flagExpiry uint8 = 1 << iota
	// flagLarge: the value is the identity of a large value, whose pieces
	// are objects of their own.
	flagLarge
	// flagAbsent: the key is known to have no value (a negative result).
	flagAbsent
)

// The flags above these belong to whoever stores: a ByteMap keeps its items'
// tags there.
const tagShift = 3

func (h header) words() (w0, w1 uint64) {
	return uint64(h.size) | uint64(h.klen)<<32 | uint64(h.cost)<<48 | uint64(h.flags)<<56,
		reverse(h.owner, h.ref)
}

// reverse is the second word of an object's header.
func reverse(owner uint16, ref uint64) uint64 { return uint64(owner)<<refBits | ref&refMask }

func parseHeader(w0, w1 uint64) header {
	return header{
		size:  uint32(w0),
		klen:  uint16(w0 >> 32),
		cost:  uint8(w0 >> 48),
		flags: uint8(w0 >> 56),
		owner: uint16(w1 >> refBits),
		ref:   w1 & refMask,
	}
}

// prefix is the number of payload bytes before the key.
func (h header) prefix() uint32 {
	if h.flags&flagExpiry != 0 {
		return 8
	}
	return 0
}

// fits reports whether the header describes an object that lies within its
// segment at off. A header read from memory that is being revoked can say
// anything; nothing may be computed from it before this.
func (h header) fits(off uint32) bool {
	return h.size <= SegmentSize-headerSize &&
		off+headerSize+h.size <= SegmentSize &&
		h.prefix()+uint32(h.klen) <= h.size
}
