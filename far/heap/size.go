package heap

import (
	"math/bits"

	"polder/far/record"
)

const (
	Unit     = record.Unit // records are aligned to it, addresses count it
	AddrBits = 40          // of an address
	AddrMask = 1<<AddrBits - 1
)

// Floor2 is the largest power of two that is not above n, which is positive.
func Floor2(n int64) int { return 1 << (bits.Len64(uint64(n)) - 1) }
