package proto

import (
	"bytes"
	"math/big"
)

// A LongDouble is a number of 64 bits of mantissa, as the C type is where
// Redis runs: sums come out with the same digits. The zero value is 0.
type LongDouble = big.Float

const (
	longDoublePrec = 64
	// maxLongDouble is the length of the first text that Redis finds too long.
	maxLongDouble = 5 * 1024

	// The numbers that the type holds, beside 0, are below 2^maxExp2 and
	// 10^maxExp10. What is at most half of the smallest one, 2^minExp2, counts
	// as 0; so does all that is below 10^minExp10.
	maxExp2, maxExp10 = 16384, 4933
	minExp2, minExp10 = -16445, -4951
)

// ParseLongDouble reads a number as strtold does, infinities included. As
// Redis does, it refuses blanks, NaN, and what overflows or, without being 0,
// comes out as 0.
//
// Exact arithmetic takes as much time and memory as the exponent is large, and
// a client may write any exponent. So the number's magnitude is estimated first,
// and what is out of range is refused before it is computed.
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

// scanned is a number as it was written: digits, an integer, times base to the
// power of scale, times 10 or, if base is 16, 2 to the power of exp.
type scanned struct {
	base   int
	digits []byte // without leading zeros; none if the number is 0
	scale  int    // not positive
	exp    int    // within ±maxScanned
}

// maxScanned is where an exponent stops to be counted. However many digits a
// number has, it is then out of range.
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
	// The number is below base^width * 10^exp, or 2^exp, and not below a
	// base-th of that.
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
	// What is halfway between 0 and the smallest number is rounded to 0,
	// unless f was rounded down to be there.
	half := new(big.Float).SetMantExp(big.NewFloat(1), minExp2-1)
	if c := f.Cmp(half); c < 0 || c == 0 && f.Acc() != big.Below {
		return nil, false
	}
	return f, f.MantExp(nil) <= maxExp2
}

// scaleBy10 makes f n times 10 to the power of exp, rounded once.
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
	// Fast path, for what would have thousands of decimals: below 2^-58 all
	// 17 are 0.
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
