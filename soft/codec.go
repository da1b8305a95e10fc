package soft

import (
	"fmt"
	"reflect"
)

// A Codec turns values into bytes and back, for types that hold pointers.
// Strings, byte slices and types without pointers need none.
type Codec[T any] interface {
	// Append appends the encoding of v to b.
	Append(b []byte, v T) []byte
	// Decode makes a value of its encoding. It must not keep b.
	Decode(b []byte) (T, error)
}

// form is how values of a type are stored.
type form uint8

const (
	formPlain  form = iota + 1 // the bytes of the value
	formString                 // the bytes of the string
	formBytes                  // the bytes of the slice
	formCodec
)

// coder encodes and decodes values of T.
type coder[T any] struct {
	form  form
	codec Codec[T]
	size  int // of plain values
}

func newCoder[T any](c Codec[T]) (coder[T], error) {
	if c != nil {
		return coder[T]{form: formCodec, codec: c}, nil
	}
	t := reflect.TypeFor[T]()
	switch {
	case t == reflect.TypeFor[string]():
		return coder[T]{form: formString}, nil
	case t == reflect.TypeFor[[]byte]():
		return coder[T]{form: formBytes}, nil
	}
	if err := checkPlain(t); err != nil {
		return coder[T]{}, fmt.Errorf("%w; give a Codec", err)
	}
	return coder[T]{form: formPlain, size: int(t.Size())}, nil
}

// newKeyCoder also refuses types of which equal values may have different
// bytes.
func newKeyCoder[K comparable](c Codec[K]) (coder[K], error) {
	k, err := newCoder(c)
	if err == nil && k.form == formPlain {
		if err := checkComparable(reflect.TypeFor[K]()); err != nil {
			return k, fmt.Errorf("%w; give a Codec", err)
		}
	}
	return k, err
}

// view returns the encoding of v, in place if possible. It is valid as long as
// v is.
func (c *coder[T]) view(v *T) []byte {
	switch c.form {
	case formPlain:
		return bytesOf(v)
	case formString:
		return bytesOfString(*reinterpret[T, string](v))
	case formBytes:
		return *reinterpret[T, []byte](v)
	}
	return c.codec.Append(nil, *v)
}

// decode makes a value of its encoding. Of a form other than formPlain it
// takes b over, which nobody else may use afterwards.
func (c *coder[T]) decode(b []byte) (v T, err error) {
	switch c.form {
	case formPlain:
		if len(b) != c.size {
			return v, fmt.Errorf("BUG: a value of %d bytes is stored in %d", c.size, len(b))
		}
		copy(bytesOf(&v), b)
		return v, nil
	case formString:
		s := stringOf(b)
		return *reinterpret[string, T](&s), nil
	case formBytes:
		return *reinterpret[[]byte, T](&b), nil
	}
	return c.codec.Decode(b)
}

// checkPlain reports why values of a type cannot be stored as their bytes:
// the garbage collector does not see soft memory.
func checkPlain(t reflect.Type) error { return plain(t, t.String()) }

func plain(t reflect.Type, path string) error {
	switch t.Kind() {
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr,
		reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		return nil
	case reflect.Array:
		return plain(t.Elem(), path+"[]")
	case reflect.Struct:
		for f := range t.Fields() {
			if err := plain(f.Type, path+"."+f.Name); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("%s is a %s, which holds a pointer", path, t.Kind())
}

func checkComparable(t reflect.Type) error {
	switch t.Kind() {
	case reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		return fmt.Errorf("%s cannot be a key: equal values may have different bytes", t)
	case reflect.Array:
		return checkComparable(t.Elem())
	case reflect.Struct:
		var size uintptr
		for f := range t.Fields() {
			if f.Name == "_" {
				return fmt.Errorf("%s cannot be a key: it has a blank field", t)
			}
			if err := checkComparable(f.Type); err != nil {
				return err
			}
			size += f.Type.Size()
		}
		if size != t.Size() {
			return fmt.Errorf("%s cannot be a key: it has padding between its fields", t)
		}
	}
	return nil
}
