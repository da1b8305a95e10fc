package rdb

import (
	"encoding/binary"
	"strconv"
)

// lzfMost is how many bytes one compressed byte may stand for at most: 3 stand for up to 264.
const lzfMost = 88

// lzf appends the n bytes that b is the compressed form of.
func lzf(dst, b []byte, n int) ([]byte, error) {
	const bad = malformed("compressed bytes cannot be what they are")
	start := len(dst)
	for len(b) > 0 {
		c := int(b[0])
		b = b[1:]
		if c < 32 { // c+1 bytes follow as they are
			if c++; c > len(b) || len(dst)-start+c > n {
				return dst, bad
			}
			dst, b = append(dst, b[:c]...), b[c:]
			continue
		}
		size := c >> 5
		if size == 7 {
			if len(b) == 0 {
				return dst, bad
			}
			size, b = size+int(b[0]), b[1:]
		}
		size += 2
		if len(b) == 0 {
			return dst, bad
		}
		from := len(dst) - (c&31<<8 + int(b[0])) - 1
		b = b[1:]
		if from < start || len(dst)-start+size > n {
			return dst, bad
		}
		for range size { // source and destination may overlap
			dst = append(dst, dst[from])
			from++
		}
	}
	if len(dst)-start != n {
		return dst, bad
	}
	return dst, nil
}

const badList = malformed("a list of fields and values is none")

// pairs calls yield with the entries of a ziplist or a listpack, two at a time. Before the entries are head bytes;
// behind them is a byte of 255.
func pairs(b []byte, head int, entry func(b []byte) (value, rest []byte, ok bool), yield func(field, value []byte) error) error {
	if len(b) < head {
		return badList
	}
	b = b[head:]
	var f []byte
	for n := 0; ; n++ {
		switch {
		case len(b) == 0:
			return badList
		case b[0] == 0xff && (len(b) > 1 || n%2 == 1):
			return badList
		case b[0] == 0xff:
			return nil
		}
		v, rest, ok := entry(b)
		if !ok {
			return badList
		}
		if b = rest; n%2 == 0 {
			f = v
		} else if err := yield(f, v); err != nil {
			return err
		}
	}
}

// cut cuts n bytes off b.
func cut(b []byte, n uint64) (front, rest []byte, ok bool) {
	if n > uint64(len(b)) {
		return nil, nil, false
	}
	return b[:n:n], b[n:], true
}

// number cuts an integer of n bytes off b, and returns it as text.
func number(b []byte, n int) (text, rest []byte, ok bool) {
	if len(b) < n {
		return nil, nil, false
	}
	var wide [8]byte
	copy(wide[8-n:], b[:n])
	v := int64(binary.LittleEndian.Uint64(wide[:])) >> (64 - 8*n)
	return strconv.AppendInt(nil, v, 10), b[n:], true
}

func itoa(v int64) []byte { return strconv.AppendInt(nil, v, 10) }

// ziplistHead is how many bytes these take: the size of the ziplist, where its last entry is, and the number of its
// entries.
const ziplistHead = 4 + 4 + 2

// ziplistEntry cuts an entry off b: the length of the one before it, then its own encoding.
func ziplistEntry(b []byte) (value, rest []byte, ok bool) {
	before := uint64(1)
	if b[0] == 0xfe {
		before = 5
	}
	if _, b, ok = cut(b, before); !ok || len(b) == 0 {
		return nil, nil, false
	}
	c := b[0]
	b = b[1:]
	switch c >> 6 {
	case 0:
		return cut(b, uint64(c))
	case 1:
		if len(b) < 1 {
			return nil, nil, false
		}
		return cut(b[1:], uint64(c&0x3f)<<8|uint64(b[0]))
	case 2:
		if len(b) < 4 {
			return nil, nil, false
		}
		return cut(b[4:], uint64(binary.BigEndian.Uint32(b)))
	}
	switch c {
	case 0xc0:
		return number(b, 2)
	case 0xd0:
		return number(b, 4)
	case 0xe0:
		return number(b, 8)
	case 0xf0:
		return number(b, 3)
	case 0xfe:
		return number(b, 1)
	}
	if c > 0xf0 && c < 0xfe {
		return itoa(int64(c&15) - 1), b, true
	}
	return nil, nil, false
}

// listpackHead is how many bytes these take: the size of the listpack and the number of its entries.
const listpackHead = 4 + 2

// listpackEntry cuts an entry off b: its encoding and content, then the length of both.
func listpackEntry(b []byte) (value, rest []byte, ok bool) {
	size := len(b)
	c := b[0]
	b = b[1:]
	switch {
	case c < 0x80:
		value, rest, ok = itoa(int64(c)), b, true
	case c < 0xc0:
		value, rest, ok = cut(b, uint64(c&0x3f))
	case c < 0xf0:
		if len(b) == 0 {
			return nil, nil, false
		}
		if c < 0xe0 {
			v := int64(c&0x1f)<<8 | int64(b[0])
			value, rest, ok = itoa(v<<51>>51), b[1:], true
		} else {
			value, rest, ok = cut(b[1:], uint64(c&15)<<8|uint64(b[0]))
		}
	case c == 0xf0 && len(b) >= 4:
		value, rest, ok = cut(b[4:], uint64(binary.LittleEndian.Uint32(b)))
	case c == 0xf1:
		value, rest, ok = number(b, 2)
	case c == 0xf2:
		value, rest, ok = number(b, 3)
	case c == 0xf3:
		value, rest, ok = number(b, 4)
	case c == 0xf4:
		value, rest, ok = number(b, 8)
	}
	if !ok {
		return nil, nil, false
	}
	back := uint64(1) // how many bytes that length takes, seven bits in each
	for n := size - len(rest); n >= 1<<7; n >>= 7 {
		back++
	}
	_, rest, ok = cut(rest, back)
	return value, rest, ok
}

// zipmap calls yield with the fields and values of a zipmap. The first byte says how many fields there are, if they
// are few. Then come, for each: the length of the field, the field, the length of the value, a byte that says how
// many bytes are unused behind the value, the value, and these bytes.
func zipmap(b []byte, yield func(field, value []byte) error) error {
	if len(b) == 0 {
		return badList
	}
	b = b[1:]
	length := func() (n uint64, ok bool) {
		switch {
		case len(b) == 0 || b[0] == 0xff:
			return 0, false
		case b[0] < 0xfe:
			n, b = uint64(b[0]), b[1:]
			return n, true
		case len(b) < 5:
			return 0, false
		}
		n, b = uint64(binary.LittleEndian.Uint32(b[1:])), b[5:]
		return n, true
	}
	for len(b) != 1 || b[0] != 0xff {
		var f, v []byte
		n, ok := length()
		if ok {
			f, b, ok = cut(b, n)
		}
		if ok {
			n, ok = length()
		}
		if !ok || len(b) == 0 {
			return badList
		}
		free := uint64(b[0])
		if v, b, ok = cut(b[1:], n); ok {
			_, b, ok = cut(b, free)
		}
		if !ok {
			return badList
		}
		if err := yield(f, v); err != nil {
			return err
		}
	}
	return nil
}
