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

// SizeClass is the smallest class that holds n bytes. Classes are exact up to
// 256 bytes and at most an eighth too large above.
func SizeClass(n int) uint8 {
	u := uint((n + Unit - 1) / Unit)
	if u < 16 {
		return uint8(u)
	}
	exp := uint(bits.Len(u)) - 4 // u>>exp is in [8, 15]
	if u&(1<<exp-1) != 0 {
		u += 1 << exp // a carry into the next exponent comes out right below
		exp = uint(bits.Len(u)) - 4
	}
	return uint8(exp<<3 + u>>exp)
}

// ClassSize is the size in bytes of class c.
func ClassSize(c uint8) int {
	if c < 16 {
		return int(c) * Unit
	}
	exp := uint(c)>>3 - 1
	return int(8+uint(c)&7) << exp * Unit
}

// RoundSize is n rounded up to its class. Far memory is accounted in it, since
// a far entry's word tells no more.
func RoundSize(n int) int { return ClassSize(SizeClass(n)) }

// Floor2 is the largest power of two that is not above n, which is positive.
func Floor2(n int64) int { return 1 << (bits.Len64(uint64(n)) - 1) }
