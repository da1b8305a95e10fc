package proto

import (
	"bytes"
	"math/big"
)

// A LongDouble is a number with a mantissa of 64 bits, like the C type on the machines where Redis runs: sums have
// the same digits. The zero value is 0.
type LongDouble = big.Float

const (
	longDoublePrec = 64
	// maxLongDouble is the length of the first text that Redis finds too long.
	maxLongDouble = 5 * 1024

	// The numbers of the C type, beside 0, are below 2^maxExp2 and 10^maxExp10. The smallest is 2^minExp2. A number
	// counts as 0 if it is at most half of that; so does a number below 10^minExp10.
	maxExp2, maxExp10 = 16384, 4933
	minExp2, minExp10 = -16445, -4951
)

// ParseLongDouble reads a number as strtold does, infinities included. Like Redis, it refuses blanks, NaN, numbers
// that overflow, and numbers that are not 0 but are rounded to 0.
//
// The larger the exponent, the more time and memory exact arithmetic takes, and a client may write any exponent. So
// ParseLongDouble first estimates the number's magnitude, and refuses numbers that are out of range before it
// computes them.
func ParseLongDouble(b []byte) (*LongDouble, bool) {
	if len(b) == 0 || len(b) >= maxLongDouble {
		return nil, false
	}
	num, neg := b, b[0] == '-'
	if neg || b[0] == '+' {
		num = b[1:]
	}
	if bytes.EqualFold(num, []byte("inf")) || bytes.EqualFold(num, []byte("infinity")) {
		return new(LongDouble).SetPrec(longDoublePrec).SetInf(neg), true
	}
	s, ok := scanNumber(num)
	if !ok {
		return nil, false
	}
	f, ok := s.value()
	if ok && neg {
		f.Neg(f)
	}
	return f, ok
}

// scanned is a number as it was written. It has the value digits (an integer in base) * base^scale * x^exp, where x
// is 10, or 2 if base is 16.
type scanned struct {
	base   int
	digits []byte // without leading zeros; none if the number is 0
	scale  int    // not positive
	exp    int    // within ±maxScanned
}

// maxScanned is what larger exponents are cut to. A number with that exponent is out of range, however many digits it
// has.
const maxScanned = 1 << 20

func scanNumber(b []byte) (s scanned, ok bool) {
	s.base = 10
	mark := byte('e')
	if len(b) > 1 && b[0] == '0' && b[1]|0x20 == 'x' {
		s.base, mark, b = 16, 'p', b[2:]
	}
	point, some := false, false
	for ; len(b) > 0; b = b[1:] {
		c := b[0]
		if c == '.' && !point {
			point = true
			continue
		}
		if c-'0' > 9 && (s.base == 10 || !isHex(c)) {
			break
		}
		some = true
		if point {
			s.scale--
		}
		if len(s.digits) > 0 || c != '0' {
			s.digits = append(s.digits, c)
		}
	}
	if !some || len(b) == 0 {
		return s, some
	}
	if b[0]|0x20 != mark {
		return s, false
	}
	return s, s.exponent(b[1:])
}

// exponent reads what is behind the mark.
func (s *scanned) exponent(b []byte) bool {
	neg := len(b) > 0 && b[0] == '-'
	if neg || len(b) > 0 && b[0] == '+' {
		b = b[1:]
	}
	for _, c := range b {
		if c -= '0'; c > 9 {
			return false
		}
		s.exp = min(s.exp*10+int(c), maxScanned)
	}
	if neg {
		s.exp = -s.exp
	}
	return len(b) > 0
}

// value computes the number, or refuses it because it is out of range.
func (s *scanned) value() (f *LongDouble, ok bool) {
	f = new(LongDouble).SetPrec(longDoublePrec)
	if len(s.digits) == 0 {
		return f, true
	}
	// Let x be base^width * 10^exp, or with base 16, base^width * 2^exp. The number is below x, and not below x/base.
	width := len(s.digits) + s.scale
	if s.base == 10 {
		if top := width + s.exp; top > maxExp10 || top <= minExp10 {
			return nil, false
		}
	} else if top := 4*width + s.exp; top > maxExp2+4 || top < minExp2 {
		return nil, false
	}
	digits, _ := new(big.Int).SetString(string(s.digits), s.base)
	n := new(big.Float).SetInt(digits) // exact: so is a Float that is given no precision
	if s.base == 16 {
		f.Set(n.SetMantExp(n, 4*s.scale+s.exp))
	} else {
		scaleBy10(f, n, s.scale+s.exp)
	}
	// A number halfway between 0 and the smallest number is rounded to 0, unless f got there only because it was
	// rounded down.
	half := new(big.Float).SetMantExp(big.NewFloat(1), minExp2-1)
	if c := f.Cmp(half); c < 0 || c == 0 && f.Acc() != big.Below {
		return nil, false
	}
	return f, f.MantExp(nil) <= maxExp2
}

// scaleBy10 sets f to n times 10 to the power of exp, rounded once.
func scaleBy10(f, n *LongDouble, exp int) {
	power := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(exp, -exp))), nil)
	p := new(big.Float).SetInt(power)
	if exp >= 0 {
		f.Mul(n, p)
	} else {
		f.Quo(n, p)
	}
}

// AddLongDouble returns a+b, or false if that is not a finite number.
func AddLongDouble(a, b *LongDouble) (*LongDouble, bool) {
	if a.IsInf() || b.IsInf() {
		return nil, false
	}
	sum := new(LongDouble).SetPrec(longDoublePrec).Add(a, b)
	return sum, sum.MantExp(nil) <= maxExp2
}

// decimals is how many digits behind the point Redis shows.
const decimals = 17

// AppendLongDouble appends f as Redis shows it: 17 decimals, without the
// zeros at the end.
func AppendLongDouble(dst []byte, f *LongDouble) []byte {
	// Fast path for numbers that would have thousands of decimals: below 2^-58, the first 17 decimals are 0.
	if f.Sign() == 0 || f.MantExp(nil) <= -58 {
		return append(dst, '0')
	}
	start := len(dst)
	dst = f.Append(dst, 'f', decimals)
	if bytes.IndexByte(dst[start:], '.') >= 0 {
		dst = bytes.TrimRight(dst, "0")
		dst = bytes.TrimSuffix(dst, []byte("."))
	}
	if string(dst[start:]) == "-0" {
		dst = append(dst[:start], '0')
	}
	return dst
}
