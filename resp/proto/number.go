package proto

import "math"

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
