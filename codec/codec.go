// Package codec turns Go values into byte strings and back, so that they can lie in memory that the garbage collector
// does not see: far and soft memory.
//
// How a type is stored is decided once, when a [Coder] for it is made:
//
//   - a type without Go pointers: its bytes, in place;
//   - a string or a byte slice: its bytes, in place;
//   - a struct, array or slice of these types, of [time.Time] and of one another, to any depth: field after field,
//     lengths in front, without padding; nil and empty slices are told apart;
//   - anything else: by a [Codec] that the program gives.
//
// A type that can be stored in none of these ways is refused when the Coder is made; the error names the field. No
// encoding or decoding uses reflection, except to make a slice whose elements hold pointers.
//
// Numbers are in the processor's own byte order. Encodings are not made for other programs
// or other versions of a type; they are read with the type that they were written with.
//
// # Files
//
// codec (what programs use), plan (how a type is stored), value_unsafe (values and their bytes).
package codec

import (
	"errors"
	"fmt"
	"reflect"
)

// A Codec turns values of T into byte strings and back. Its methods may be called by any number of goroutines.
type Codec[T any] interface {
	// Append appends the encoding of v to b.
	Append(b []byte, v T) []byte
	// Decode returns the value whose encoding is b. It must not keep b.
	Decode(b []byte) (T, error)
}

// form is how values of a type are stored.
type form uint8

const (
	formPlain   form = iota + 1 // the bytes of the value
	formText                    // the bytes of the string
	formBytes                   // the bytes of the slice
	formPlanned                 // field after field
	formCodec                   // by a Codec
)

// Coder stores values of T. The zero Coder is not usable. Any number of goroutines may use
// it at the same time.
type Coder[T any] struct {
	form  form
	size  int // of every encoding; -1 if they differ
	ops   []op
	codec Codec[T]
}

// For makes the coder of T. If c is not nil, it encodes the values.
func For[T any](c Codec[T]) (Coder[T], error) {
	if c != nil {
		return Coder[T]{form: formCodec, size: -1, codec: c}, nil
	}
	return plan[T](&planner{})
}

// ForKey is For, for a type whose values are compared by their bytes: values are equal if and only if their encodings
// are. It refuses floating-point numbers, unless a codec takes care of them.
func ForKey[T comparable](c Codec[T]) (Coder[T], error) {
	if c != nil {
		return Coder[T]{form: formCodec, size: -1, codec: c}, nil
	}
	return plan[T](&planner{key: true})
}

func plan[T any](p *planner) (Coder[T], error) {
	t := reflect.TypeFor[T]()
	ops, err := p.plan(t, t.String(), 0, nil)
	if err != nil {
		return Coder[T]{}, err
	}
	c := Coder[T]{form: formPlanned, ops: ops, size: sizeOf(ops)}
	switch {
	case t.Kind() == reflect.String:
		c.form = formText
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		c.form = formBytes
	case !p.key && Pointerless(t) == nil, isWhole(ops, t.Size()):
		c.form, c.size = formPlain, int(t.Size())
	}
	return c, nil
}

// Size is the length of every encoding, or -1 if they differ.
func (c *Coder[T]) Size() int { return c.size }

// Plain reports whether a value is stored as its bytes in memory: Decode copies them.
func (c *Coder[T]) Plain() bool { return c.form == formPlain }

// View returns the encoding of *v. If it can, it returns the bytes of *v in place, which are valid for as long as *v
// is not changed. Otherwise it appends the encoding to buf or, with a Codec, to a new slice.
func (c *Coder[T]) View(v *T, buf []byte) []byte {
	switch c.form {
	case formPlain:
		return Bytes(v)
	case formText:
		return textOf(v)
	case formBytes:
		return *bytesIn(v)
	case formPlanned:
		return appendTo(buf, c.ops, pointer(v))
	}
	return c.codec.Append(nil, *v) // not to buf, which would escape from every caller
}

// InPlace returns the value whose encoding is b, without a copy: it is valid for as long as b is, and neither may be
// changed. It reports false if values of T are not stored as they are, or if b has not the length or the alignment of
// a T.
func (c *Coder[T]) InPlace(b []byte) (v *T, ok bool) {
	switch c.form {
	case formPlain:
		return valueAt[T](b)
	case formText, formBytes:
		v = new(T)
		return v, c.Adopt(b, v) == nil
	}
	return nil, false
}

// Decode sets *v to the value whose encoding is b. It keeps nothing of b.
func (c *Coder[T]) Decode(b []byte, v *T) error {
	if c.form == formText || c.form == formBytes {
		b = append([]byte(nil), b...)
	}
	return c.Adopt(b, v)
}

// Adopt is Decode, but b may become a part of *v: nobody may write to b any more.
func (c *Coder[T]) Adopt(b []byte, v *T) (err error) {
	switch c.form {
	case formPlain:
		if len(b) != c.size {
			return fmt.Errorf("a value is %d bytes, want %d", len(b), c.size)
		}
		copy(Bytes(v), b)
		return nil
	case formText:
		setText(v, b)
		return nil
	case formBytes:
		*bytesIn(v) = b
		return nil
	case formPlanned:
		rest, err := decodeTo(b, c.ops, pointer(v))
		if err == nil && len(rest) > 0 {
			err = fmt.Errorf("%d bytes follow the value", len(rest))
		}
		return err
	}
	*v, err = c.codec.Decode(b)
	return err
}

var errShort = errors.New("the value is cut off")
