package malloc

import "math/bits"

// MaxPaged is the size in bytes of the largest blocks that lie in pages. Larger ones are
// chunks of their own.
const MaxPaged = 32 << 10

// Blocks of up to MaxPaged bytes have classes: multiples of 16 bytes up to 128, and
// eight to a doubling above, so that no more than an eighth of a block is wasted.
const (
	grain   = 16
	linear  = 8 * grain // up to here, classes are multiples of grain
	classes = 8 + 8*8   // the last is MaxPaged's
)

// classOf is the least class whose blocks have n bytes.
//
// Preconditions: 0 < n <= MaxPaged.
func classOf(n int) int {
	if n <= linear {
		return (n+grain-1)/grain - 1
	}
	doubling := bits.Len(uint(n-1)) - bits.Len(linear) // of linear that n is more than
	step := linear << doubling / 8
	return 8 + 8*doubling + (n-linear<<doubling+step-1)/step - 1
}

// classSize is how many bytes the blocks of a class have.
func classSize(c int) int {
	if c < 8 {
		return (c + 1) * grain
	}
	doubling := c/8 - 1
	return linear<<doubling + (c%8+1)*(linear<<doubling/8)
}
