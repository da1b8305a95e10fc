package offload

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
)

// numberAt is the number of kind k at b.
func numberAt(b []byte, k Kind) float64 {
	le := binary.LittleEndian
	switch k {
	case Int8:
		return float64(int8(b[0]))
	case Int16:
		return float64(int16(le.Uint16(b)))
	case Int32:
		return float64(int32(le.Uint32(b)))
	case Int64:
		return float64(int64(le.Uint64(b)))
	case Uint8:
		return float64(b[0])
	case Uint16:
		return float64(le.Uint16(b))
	case Uint32:
		return float64(le.Uint32(b))
	case Uint64:
		return float64(le.Uint64(b))
	case Float32:
		return float64(math.Float32frombits(le.Uint32(b)))
	}
	return math.Float64frombits(le.Uint64(b))
}

// putNumber makes the bytes at b a small number of kind k.
func putNumber(b []byte, k Kind, v int) {
	le := binary.LittleEndian
	switch {
	case k == Float32:
		le.PutUint32(b, math.Float32bits(float32(v)))
	case k == Float64:
		le.PutUint64(b, math.Float64bits(float64(v)))
	case k.Size() == 1:
		b[0] = byte(v)
	case k.Size() == 2:
		le.PutUint16(b, uint16(v))
	case k.Size() == 4:
		le.PutUint32(b, uint32(v))
	default:
		le.PutUint64(b, uint64(v))
	}
}

// TestAScanFindsWhatALoopDoes: numbers of every kind at places of elements of several sizes, under conditions on numbers
// of every other kind, all at once and in parts that are merged.
func TestAScanFindsWhatALoopDoes(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for kind := Int8; kind < kindEnd; kind++ {
		for other := Int8; other < kindEnd; other++ {
			width := kind.Size()
			for _, stride := range []int{width, 24} {
				s := Scan{Stride: stride, Kind: kind}
				at := 0
				if stride > width {
					s.Off, at = 8, 16
				} else if other != kind {
					continue
				}
				signed := func(k Kind) int {
					if k >= Uint8 && k <= Uint64 {
						return 0
					}
					return -20
				}
				n := 700 + r.IntN(100)
				b := make([]byte, n*stride)
				for i := range n {
					putNumber(b[i*stride+at:], other, signed(other)+r.IntN(40))
					putNumber(b[i*stride+s.Off:], kind, signed(kind)+r.IntN(40))
				}
				for how := Any; how < compareEnd; how++ {
					c := Condition{Off: at, Kind: other, Compare: how}
					putNumber(c.Operand[:], other, 5)
					s.Conditions = []Condition{c}
					if err := s.Check(); err != nil {
						t.Fatal(err)
					}
					matches := func(i int) bool {
						x := numberAt(b[i*stride+at:], other)
						return [...]bool{true, x == 5, x != 5, x < 5, x <= 5, x > 5, x >= 5}[how]
					}
					count, sum, least, most := 0, 0.0, math.Inf(1), math.Inf(-1)
					for i := range n {
						if matches(i) {
							x := numberAt(b[i*stride+s.Off:], kind)
							count, sum, least, most = count+1, sum+x, min(least, x), max(most, x)
						}
					}
					var whole, first, second Aggregate
					s.Aggregate(&whole, b)
					cut := r.IntN(n) * stride / 8 * 8 / stride * stride // aligned for any kind
					s.Aggregate(&first, b[:cut])
					s.Aggregate(&second, b[cut:])
					s.Merge(&first, &second)
					for _, a := range []Aggregate{whole, first} {
						got := float64(int64(a.Sum))
						if kind >= Float32 {
							got = math.Float64frombits(a.Sum)
						}
						if int(a.Count) != count || got != sum || count > 0 && (numberAt(a.Least[:], kind) != least || numberAt(a.Greatest[:], kind) != most) {
							t.Fatalf("kinds %d and %d, stride %d, comparison %d: got %+v, want %d elements from %v to %v with the sum %v",
								kind, other, stride, how, a, count, least, most, sum)
						}
					}
					bits := make([]byte, BitsSize(n))
					bits[len(bits)-1] = 0xff
					s.Filter(bits, b)
					for i := range len(bits) * 8 {
						if want := i < n && matches(i); bits[i/8]>>(i%8)&1 != 0 != want {
							t.Fatalf("kinds %d and %d, stride %d, comparison %d: element %d of %d: the bit is not %v", kind, other, stride, how, i, n, want)
						}
					}
				}
			}
		}
	}
}

// TestASumOfNothingHasNoEnds: what counts nothing does not take part in the least and the greatest.
func TestASumOfNothingHasNoEnds(t *testing.T) {
	for kind := Int8; kind < kindEnd; kind++ {
		s := Scan{Stride: kind.Size(), Kind: kind}
		b := make([]byte, kind.Size())
		putNumber(b, kind, 7)
		var a, none Aggregate
		s.Aggregate(&a, b)
		want := a
		s.Merge(&a, &none)
		s.Merge(&none, &a)
		if a != want || none != want {
			t.Errorf("kind %d: got %+v and %+v, want %+v", kind, a, none, want)
		}
	}
}
