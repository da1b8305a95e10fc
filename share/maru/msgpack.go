package maru

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"
)

// As much of MessagePack as Maru's protocol has, read and written in place. A batch of lookups has some thousand
// bytes, and taking them through readers and writers takes longer than all else that the directory does.

var errCutOff = errors.New("it ends in the middle of a value")

// decoder reads MessagePack. What it returns of texts are parts of its input.
type decoder struct{ in string }

// peek returns the byte that the next value begins with, or a byte that begins no value.
func (d *decoder) peek() byte {
	if d.in == "" {
		return 0xc1
	}
	return d.in[0]
}

// null takes the next value if it is nil.
func (d *decoder) null() bool {
	if d.peek() != 0xc0 {
		return false
	}
	d.in = d.in[1:]
	return true
}

// take takes n bytes.
func (d *decoder) take(n uint64) (string, error) {
	if n > uint64(len(d.in)) {
		return "", errCutOff
	}
	b := d.in[:n]
	d.in = d.in[n:]
	return b, nil
}

// unsigned takes a big-endian number of size bytes, behind the byte that tells of it.
func (d *decoder) unsigned(size uint64) (n uint64, err error) {
	b, err := d.take(1 + size)
	for i := range size {
		if err == nil {
			n = n<<8 | uint64(b[1+i])
		}
	}
	return n, err
}

// head takes what a map, a list or a text begins with: its length is in the low bits,
// given by mask, of the byte fixed, or in 1, 2 or 4 bytes behind the bytes first,
// first+1 and first+2 (0 for none).
func (d *decoder) head(fixed, mask, one, two, four byte, what string) (int, error) {
	var n uint64
	var err error
	switch c := d.peek(); {
	case c&^mask == fixed:
		n, d.in = uint64(c&mask), d.in[1:]
	case c == one && one != 0:
		n, err = d.unsigned(1)
	case c == two:
		n, err = d.unsigned(2)
	case c == four:
		n, err = d.unsigned(4)
	default:
		err = errors.New(what)
	}
	return int(n), err
}

func (d *decoder) mapLen() (int, error) {
	return d.head(0x80, 0x0f, 0, 0xde, 0xdf, "the payload is no map")
}
func (d *decoder) listLen() (int, error) { return d.head(0x90, 0x0f, 0, 0xdc, 0xdd, "want a list") }

// part reads a string in UTF-8.
func (d *decoder) part(most int) (string, error) {
	n, err := d.head(0xa0, 0x1f, 0xd9, 0xda, 0xdb, "want a string")
	if err != nil {
		return "", err
	}
	s, err := d.take(uint64(n))
	switch {
	case err != nil:
		return "", err
	case !utf8.ValidString(s):
		return "", errors.New("the string is not UTF-8")
	case len(s) > most:
		return "", fmt.Errorf("a string of %d bytes, at most %d are taken", len(s), most)
	}
	return s, nil
}

// atNumber reports whether the next value is an integer.
func (d *decoder) atNumber() bool {
	c := d.peek()
	return c <= 0x7f || c >= 0xe0 || c >= 0xcc && c <= 0xd3
}

// integer reads an integer, whose bits are n.
func (d *decoder) integer() (n uint64, negative bool, err error) {
	switch c := d.peek(); {
	case c <= 0x7f || c >= 0xe0:
		d.in = d.in[1:]
		return uint64(int64(int8(c))), c >= 0xe0, nil
	case c >= 0xcc && c <= 0xcf:
		n, err = d.unsigned(1 << (c - 0xcc))
		return n, false, err
	case c >= 0xd0 && c <= 0xd3:
		size := uint64(1) << (c - 0xd0)
		n, err = d.unsigned(size)
		shift := 64 - 8*size // the sign is that of the highest bit
		signed := int64(n<<shift) >> shift
		return uint64(signed), signed < 0, err
	}
	return 0, false, errors.New("want an integer")
}

// number reads an integer. It fails if that has more than 63 bits: nobody can mean such a number.
func (d *decoder) number() (int64, error) {
	n, negative, err := d.integer()
	if err == nil && !negative && n > math.MaxInt64 {
		return 0, fmt.Errorf("%d is too large", n)
	}
	return int64(n), err
}

// float reads a number of any kind.
func (d *decoder) float() (float64, error) {
	switch d.peek() {
	case 0xca:
		n, err := d.unsigned(4)
		return float64(math.Float32frombits(uint32(n))), err
	case 0xcb:
		n, err := d.unsigned(8)
		return math.Float64frombits(n), err
	}
	n, negative, err := d.integer()
	if negative {
		return float64(int64(n)), err
	}
	return float64(n), err
}

// skip reads over an unknown value of any kind. It fails if lists and maps are nested deeper than maxDepth.
func (d *decoder) skip(depth int) error {
	if depth > maxDepth {
		return errors.New("lists and maps are too deep in one another")
	}
	n, inside := uint64(0), 0 // bytes to pass over, and values
	var err error
	switch c := d.peek(); {
	case c <= 0x7f || c >= 0xe0 || c == 0xc0 || c == 0xc2 || c == 0xc3:
		n = 1
	case c&0xf0 == 0x80 || c == 0xde || c == 0xdf:
		inside, err = d.mapLen()
		inside *= 2
	case c&0xf0 == 0x90 || c == 0xdc || c == 0xdd:
		inside, err = d.listLen()
	case c&0xe0 == 0xa0:
		n = 1 + uint64(c&0x1f)
	case c >= 0xc4 && c <= 0xc6: // bytes
		n, err = d.unsigned(1 << (c - 0xc4))
	case c >= 0xd9 && c <= 0xdb: // a text
		n, err = d.unsigned(1 << (c - 0xd9))
	case c >= 0xc7 && c <= 0xc9: // an extension: its type is behind its length
		n, err = d.unsigned(1 << (c - 0xc7))
		n++
	case c == 0xca:
		n = 5
	case c == 0xcb:
		n = 9
	case c >= 0xcc && c <= 0xcf:
		n = 1 + 1<<(c-0xcc)
	case c >= 0xd0 && c <= 0xd3:
		n = 1 + 1<<(c-0xd0)
	case c >= 0xd4 && c <= 0xd8:
		n = 2 + 1<<(c-0xd4)
	case d.in == "":
		err = errCutOff
	default:
		err = fmt.Errorf("no value begins with %#02x", c)
	}
	if err == nil {
		_, err = d.take(n)
	}
	for ; inside > 0 && err == nil; inside-- {
		err = d.skip(depth + 1)
	}
	return err
}

// Writing. Numbers and lengths are written as short as can be, as the clients do it.

// sized appends a byte that tells of a number, and the number in 1, 2, 4 or 8 bytes:
// the byte is first for 1, first+1 for 2, and so on.
func sized(b []byte, first byte, n uint64) []byte {
	switch {
	case n <= math.MaxUint8:
		return append(b, first, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, first+1), uint16(n))
	case n <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(b, first+2), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, first+3), n)
}

// lengthOf appends what a map or a list of n begins with.
func lengthOf(b []byte, fixed, two byte, n int) []byte {
	switch {
	case n <= 0x0f:
		return append(b, fixed|byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, two), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, two+1), uint32(n))
}

func appendUint(b []byte, n uint64) []byte {
	if n <= 0x7f {
		return append(b, byte(n))
	}
	return sized(b, 0xcc, n)
}

func appendText(b []byte, s string) []byte {
	if len(s) <= 0x1f {
		b = append(b, 0xa0|byte(len(s)))
	} else {
		b = sized(b, 0xd9, uint64(len(s)))
	}
	return append(b, s...)
}
