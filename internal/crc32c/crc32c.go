// Package crc32c computes CRC32C, the checksum with Castagnoli's polynomial, as
// hash/crc32 does, but several times as fast where the processor has carry-less
// multiplication of 512 bits (VPCLMULQDQ): the checksum is the one thing that is
// done to every byte of far memory on both of its ways, and on every link.
//
// Long inputs are folded as in Gopal, Ozturk and others, "Fast CRC Computation for
// Generic Polynomials Using PCLMULQDQ Instruction" (Intel, 2009). All functions may
// be called by any number of goroutines.
package crc32c

import (
	"hash/crc32"
	"math/bits"
)

var table = crc32.MakeTable(crc32.Castagnoli)

// Checksum returns the CRC32C of p.
func Checksum(p []byte) uint32 { return Update(0, p) }

// Update returns the CRC32C of bytes whose own is crc, followed by p.
func Update(crc uint32, p []byte) uint32 {
	if len(p) >= foldLeast && folding {
		n := len(p) &^ (foldBlock - 1)
		crc = ^fold(^crc, p[:n])
		p = p[n:]
	}
	return crc32.Update(crc, table, p)
}

const (
	foldBlock = 64  // bytes that are folded at once
	foldLeast = 512 // from so many on it is worth it
)

// A distance is what a register of 128 bits is multiplied by, in two halves, to
// move it so many bits towards the end of the message.
type distance [2]uint64

func over(n int) distance { return distance{power(n + 32), power(n - 32)} }

// power is x to the n modulo the polynomial, as the instruction takes it: with
// the bits reversed, and one to the left.
func power(n int) uint64 {
	const polynomial = 0x1EDC6F41 // without x to the 32
	r := uint32(1)
	for range n {
		carry := r >> 31
		r = r<<1 ^ carry*polynomial
	}
	return uint64(bits.Reverse32(r)) << 1
}

// What fold multiplies by.
var (
	over2048 = over(2048)
	over512  = over(512)
	// The four quarters of a register onto the last one.
	overQuarters = [4]distance{over(384), over(256), over(128)}
)
