package ordered

import (
	"cmp"
	"encoding/binary"
	"reflect"

	"polder/codec"
)

// keyCoder turns keys into byte strings of the same order: cmp.Compare of two keys is bytes.Compare of their byte
// strings.
type keyCoder[K cmp.Ordered] struct {
	plain  codec.Coder[K]
	size   int  // of a number in bytes, 0 for strings
	signed bool // it is an integer with a sign
	float  bool
}

func newKeyCoder[K cmp.Ordered]() (c keyCoder[K], err error) {
	t := reflect.TypeFor[K]()
	switch k := t.Kind(); {
	case k == reflect.String:
	case k == reflect.Float32 || k == reflect.Float64:
		c.size, c.float = int(t.Size()), true
	default:
		c.size, c.signed = int(t.Size()), k >= reflect.Int && k <= reflect.Int64
	}
	c.plain, err = codec.For[K](nil)
	return c, err
}

// view returns the byte string of *k: the string's own, or else one in buf.
func (c *keyCoder[K]) view(k *K, buf *[8]byte) []byte {
	b := c.plain.View(k, nil)
	if c.size == 0 {
		return b
	}
	u, sign := native(b), uint64(1)<<(8*c.size-1)
	var zero K
	switch {
	case c.signed:
		u ^= sign
	case !c.float:
	case *k != *k: // NaN, of whatever bits, is the least number, as for cmp.Compare
		u = 0
	case *k == zero: // 0 and -0, which are equal
		u = sign
	case u&sign != 0:
		u ^= 2*sign - 1
	default:
		u |= sign
	}
	binary.BigEndian.PutUint64(buf[:], u)
	return buf[8-c.size:]
}

// decode sets *k to the key for which view has returned b.
func (c *keyCoder[K]) decode(b []byte, k *K) error {
	if c.size == 0 || len(b) != c.size {
		return c.plain.Decode(b, k) // which refuses a number of another size
	}
	var buf [8]byte
	copy(buf[8-c.size:], b)
	u, sign := binary.BigEndian.Uint64(buf[:]), uint64(1)<<(8*c.size-1)
	switch {
	case c.signed, c.float && u&sign != 0:
		u ^= sign
	case c.float:
		u ^= 2*sign - 1 // and 0 becomes a NaN
	}
	switch c.size {
	case 1:
		buf[0] = uint8(u)
	case 2:
		binary.NativeEndian.PutUint16(buf[:], uint16(u))
	case 4:
		binary.NativeEndian.PutUint32(buf[:], uint32(u))
	default:
		binary.NativeEndian.PutUint64(buf[:], u)
	}
	return c.plain.Decode(buf[:c.size], k)
}

// native is the number whose bytes, in the processor's own order, are b.
func native(b []byte) uint64 {
	switch len(b) {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.NativeEndian.Uint16(b))
	case 4:
		return uint64(binary.NativeEndian.Uint32(b))
	}
	return binary.NativeEndian.Uint64(b)
}
