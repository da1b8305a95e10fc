package proto

import (
	"bytes"
	"math"
	"math/big"
	"strconv"
)

// ParseInt reads a signed decimal as strictly as Redis does: no spaces, no
// plus sign, no leading zeros, nothing behind it.
func ParseInt(b []byte) (int64, bool) {
	if len(b) == 0 || len(b) > 20 {
		return 0, false
	}
	neg := b[0] == '-'
	d := b
	if neg {
		d = b[1:]
	}
	if len(d) == 0 {
		return 0, false
	}
	if d[0] == '0' {
		return 0, len(d) == 1 && !neg
	}
	var v uint64
	for i, c := range d {
		c -= '0'
		if c > 9 {
			return 0, false
		}
		if i >= 18 && v > (math.MaxUint64-uint64(c))/10 {
			return 0, false
		}
		v = v*10 + uint64(c)
	}
	if neg {
		if v > 1<<63 {
			return 0, false
		}
		return -int64(v), true
	}
	if v > math.MaxInt64 {
		return 0, false
	}
	return int64(v), true
}

// A LongDouble is a number of 64 bits of mantissa, as the C type is where
// Redis runs: sums come out with the same digits.
type LongDouble = big.Float

const longDoublePrec = 64

// ParseLongDouble reads a number as strtold does, infinities included, and
// refuses spaces, NaN and what overflows.
func ParseLongDouble(b []byte) (*LongDouble, bool) {
	if len(b) == 0 || len(b) > 5*1024 || bytes.ContainsAny(b, "_ \t\n\v\f\r\x00") {
		return nil, false
	}
	s := string(b)
	num := s
	if num[0] == '+' || num[0] == '-' {
		num = num[1:]
	}
	switch {
	case num == "":
		return nil, false
	case num[0] == 'i' || num[0] == 'I':
		if f, err := strconv.ParseFloat(s, 64); err == nil {
			return new(big.Float).SetPrec(longDoublePrec).SetInf(f < 0), true
		}
		return nil, false
	case len(num) > 1 && num[0] == '0' && (num[1]|0x20 == 'b' || num[1]|0x20 == 'o'):
		return nil, false
	}
	f, _, err := big.ParseFloat(s, hexBase(num), longDoublePrec, big.ToNearestEven)
	if err != nil || f.IsInf() || f.MantExp(nil) > 16384 {
		return nil, false
	}
	return f, true
}

func hexBase(num string) int {
	if len(num) > 1 && num[0] == '0' && num[1]|0x20 == 'x' {
		return 0
	}
	return 10
}

// AddLongDouble returns a+b, or false if that is not a finite number.
func AddLongDouble(a, b *LongDouble) (*LongDouble, bool) {
	if a.IsInf() || b.IsInf() {
		return nil, false
	}
	sum := new(big.Float).SetPrec(longDoublePrec).Add(a, b)
	return sum, sum.MantExp(nil) <= 16384
}

// AppendLongDouble appends f as Redis shows it: 17 decimals, without the
// zeros at the end.
func AppendLongDouble(dst []byte, f *LongDouble) []byte {
	start := len(dst)
	dst = f.Append(dst, 'f', 17)
	if bytes.IndexByte(dst[start:], '.') >= 0 {
		dst = bytes.TrimRight(dst, "0")
		dst = bytes.TrimSuffix(dst, []byte("."))
	}
	if string(dst[start:]) == "-0" {
		dst = append(dst[:start], '0')
	}
	return dst
}
