package offload

import (
	"encoding/binary"
	"fmt"
)

// A Scan says what to look for in elements of any layout, which lie one behind the other: which elements count, and
// which number in each is added up. One goroutine at a time uses it; copies may be used concurrently.
type Scan struct {
	values [blockElements * 8]byte // aligned, since a word follows it
	all    Condition
	places [blockElements]uint16

	Stride int  // bytes of an element
	Off    int  // offset in the element of the number that is added up
	Kind   Kind // of that number; 0: elements are only counted

	// Conditions must all hold for an element to count.
	Conditions []Condition
}

// A Condition is that the number at Off of an element compares with Operand, which is
// padded with zeros.
type Condition struct {
	_       [0]uint64 // so that Operand is aligned
	Operand [8]byte
	Off     int
	Kind    Kind
	Compare Compare
}

// Limits of a Scan.
const (
	MaxStride     = 1 << 20
	MaxConditions = 8
)

// blockElements is how many elements are handled at a time: few enough for the numbers gathered from them to stay in
// the cache.
const blockElements = 256

// Check returns what is wrong with s, which may be anything, or nil.
func (s *Scan) Check() error {
	if s.Stride < 1 || s.Stride > MaxStride {
		return fmt.Errorf("elements of %d bytes, want 1 to %d", s.Stride, MaxStride)
	}
	if len(s.Conditions) > MaxConditions {
		return fmt.Errorf("%d conditions, want at most %d", len(s.Conditions), MaxConditions)
	}
	if s.Kind != 0 || s.Off != 0 {
		if err := s.checkField(s.Off, s.Kind); err != nil {
			return err
		}
	}
	for i := range s.Conditions {
		c := &s.Conditions[i]
		if err := s.checkField(c.Off, c.Kind); err != nil {
			return err
		}
		if c.Compare >= compareEnd {
			return fmt.Errorf("comparison %d is unknown", c.Compare)
		}
	}
	return nil
}

func (s *Scan) checkField(off int, k Kind) error {
	if !k.Valid() {
		return fmt.Errorf("a number of kind %d, which is unknown", k)
	}
	if off < 0 || off > s.Stride-k.Size() {
		return fmt.Errorf("a number of %d bytes at %d of an element of %d", k.Size(), off, s.Stride)
	}
	return nil
}

// Aggregate adds to a those elements in b that count.
//
// Preconditions: Check finds nothing; b is aligned for elements.
func (s *Scan) Aggregate(a *Aggregate, b []byte) {
	if s.dense() {
		s.Kind.scanner().aggregate(a, b, &s.all)
		return
	}
	s.all = Condition{}
	for len(b) > 0 {
		places, rest := s.choose(b)
		if s.Kind == 0 {
			a.Count += uint64(len(places))
		} else if len(places) > 0 {
			s.Kind.scanner().aggregate(a, s.gather(b, s.Off, s.Kind, places), &s.all)
		}
		b = rest
	}
}

// dense reports whether elements consist only of the number that is added up. Then one condition is enough; dense
// sets it.
func (s *Scan) dense() bool {
	if s.Kind == 0 || s.Stride != s.Kind.Size() {
		return false
	}
	switch len(s.Conditions) {
	case 0:
		s.all.Compare = Any
		return true
	case 1:
		c := &s.Conditions[0]
		s.all.Compare, s.all.Operand = c.Compare, c.Operand
		return c.Kind == s.Kind
	}
	return false
}

// Filter sets bit i of bits if element i of b counts, and clears it if not. It clears the unused bits of the last
// byte.
//
// Preconditions: Check finds nothing; b is aligned for elements; bits has room.
func (s *Scan) Filter(bits, b []byte) {
	clear(bits[:BitsSize(len(b)/s.Stride)])
	for at := 0; len(b) > 0; at += blockElements {
		places, rest := s.choose(b)
		for _, p := range places {
			i := at + int(p)
			bits[i/8] |= 1 << (i % 8)
		}
		b = rest
	}
}

// BitsSize is how many bytes a bit for each of n elements takes.
func BitsSize(n int) int { return (n + 7) / 8 }

// Merge adds aggregate b to a.
func (s *Scan) Merge(a, b *Aggregate) {
	switch {
	case b.Count == 0:
	case s.Kind == 0:
		a.Count += b.Count
	case a.Count == 0:
		*a = *b
	default:
		s.Kind.scanner().merge(a, b)
	}
}

// choose returns the places of the elements that count among the first blockElements of b, and the elements behind
// these.
func (s *Scan) choose(b []byte) (places []uint16, rest []byte) {
	n := min(len(b)/s.Stride, blockElements)
	places, rest = s.places[:n], b[n*s.Stride:]
	b = b[:n*s.Stride]
	conditions := s.Conditions
	if len(conditions) > 0 && s.Stride == conditions[0].Kind.Size() {
		c := &conditions[0] // fast path: of the elements themselves
		places, conditions = c.Kind.scanner().pick(places, b, c), conditions[1:]
	} else {
		for i := range places {
			places[i] = uint16(i)
		}
	}
	for i := range conditions {
		if c := &conditions[i]; len(places) > 0 {
			places = c.Kind.scanner().keep(places, s.gather(b, c.Off, c.Kind, places), c)
		}
	}
	return places, rest
}

// gather is the numbers at off of the elements of b at places, one behind the other.
func (s *Scan) gather(b []byte, off int, k Kind, places []uint16) []byte {
	le, to := binary.LittleEndian, s.values[:]
	switch k.Size() {
	case 1:
		for i, p := range places {
			to[i] = b[int(p)*s.Stride+off]
		}
	case 2:
		for i, p := range places {
			le.PutUint16(to[2*i:], le.Uint16(b[int(p)*s.Stride+off:]))
		}
	case 4:
		for i, p := range places {
			le.PutUint32(to[4*i:], le.Uint32(b[int(p)*s.Stride+off:]))
		}
	default:
		for i, p := range places {
			le.PutUint64(to[8*i:], le.Uint64(b[int(p)*s.Stride+off:]))
		}
	}
	return to[:len(places)*k.Size()]
}
