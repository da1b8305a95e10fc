// Package sizeclass has the sizes that memory is handed out in: multiples of 16 bytes up
// to 256, and eight to a doubling above, so that no more than an eighth is wasted. The
// word of a far object has room for no more of its size than its class, and
// package pool/malloc has pages of blocks of one class.
package sizeclass

import "math/bits"

// unit is what all sizes are multiples of, in bytes.
const unit = 16

// Of returns the smallest class that holds n bytes, which are not negative. Class 0
// holds nothing.
func Of(n int) uint8 {
	u := uint((n + unit - 1) / unit)
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

// Size returns the size in bytes of class c.
func Size(c uint8) int {
	if c < 16 {
		return int(c) * unit
	}
	exp := uint(c)>>3 - 1
	return int(8+uint(c)&7) << exp * unit
}

// Round returns n rounded up to the size of its class.
func Round(n int) int { return Size(Of(n)) }
