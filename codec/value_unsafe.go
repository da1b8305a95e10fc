package codec

import (
	"encoding/binary"
	"math"
	"reflect"
	"time"
	"unsafe"
)

// Bytes is the memory of *v.
//
// Preconditions: T is Pointerless, if the bytes are written to.
func Bytes[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// valueAt returns b as a value of T, if b has the length of a T, which must not be 0, and its alignment.
//
// Preconditions: T is Pointerless.
func valueAt[T any](b []byte) (v *T, ok bool) {
	p := unsafe.Pointer(unsafe.SliceData(b))
	if n := unsafe.Sizeof(*v); n == 0 || uintptr(len(b)) != n || uintptr(p)%unsafe.Alignof(*v) != 0 {
		return nil, false
	}
	return (*T)(p), true
}

func pointer[T any](v *T) unsafe.Pointer { return unsafe.Pointer(v) }

// textOf is the bytes of the string that *v is.
func textOf[T any](v *T) []byte {
	s := *(*string)(unsafe.Pointer(v))
	return unsafe.Slice(unsafe.StringData(s), len(s))
}

func setText[T any](v *T, b []byte) {
	*(*string)(unsafe.Pointer(v)) = unsafe.String(unsafe.SliceData(b), len(b))
}

// bytesIn is *v, which is a slice of bytes.
func bytesIn[T any](v *T) *[]byte { return (*[]byte)(unsafe.Pointer(v)) }

// slice is a slice of any type in memory.
type slice struct {
	data     unsafe.Pointer
	len, cap int
}

// appendTo appends the encoding of the value at p to b.
func appendTo(b []byte, ops []op, p unsafe.Pointer) []byte {
	for i := range ops {
		o := &ops[i]
		at := unsafe.Add(p, o.off)
		switch o.kind {
		case opBytes:
			b = append(b, unsafe.Slice((*byte)(at), o.n)...)
		case opText:
			s := *(*string)(at)
			b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
		case opPlainSlice:
			s := (*slice)(at)
			if b = appendLen(b, s); s.len > 0 {
				b = append(b, unsafe.Slice((*byte)(s.data), uintptr(s.len)*o.size)...)
			}
		case opSlice:
			s := (*slice)(at)
			b = appendLen(b, s)
			for i := range s.len {
				b = appendTo(b, o.elem, unsafe.Add(s.data, uintptr(i)*o.size))
			}
		case opArray:
			for i := range o.n {
				b = appendTo(b, o.elem, unsafe.Add(at, uintptr(i)*o.size))
			}
		case opTime:
			b = appendTime(b, (*time.Time)(at))
		}
	}
	return b
}

// appendLen appends 0 for a nil slice, and otherwise its length and 1.
func appendLen(b []byte, s *slice) []byte {
	if s.data == nil {
		return append(b, 0)
	}
	return binary.AppendUvarint(b, uint64(s.len)+1)
}

// appendTime appends t, behind the length of its encoding. A time whose offset from UTC cannot be encoded becomes the
// same instant in UTC.
func appendTime(b []byte, t *time.Time) []byte {
	start := len(b)
	b = append(b, 0)
	long, err := t.AppendBinary(b)
	if err != nil {
		long, _ = t.UTC().AppendBinary(b)
	}
	long[start] = byte(len(long) - start - 1)
	return long
}

// decodeTo decodes the value that b begins with to p, and returns the rest of b.
func decodeTo(b []byte, ops []op, p unsafe.Pointer) (rest []byte, err error) {
	for i := range ops {
		o := &ops[i]
		at := unsafe.Add(p, o.off)
		switch o.kind {
		case opBytes:
			if len(b) < o.n {
				return nil, errShort
			}
			b = b[copy(unsafe.Slice((*byte)(at), o.n), b):]
		case opText:
			var s []byte
			if s, b, err = take(b); err == nil {
				*(*string)(at) = string(s)
			}
		case opPlainSlice:
			b, err = decodePlainSlice(b, o, (*slice)(at))
		case opSlice:
			b, err = decodeSlice(b, o, at)
		case opArray:
			for i := 0; i < o.n && err == nil; i++ {
				b, err = decodeTo(b, o.elem, unsafe.Add(at, uintptr(i)*o.size))
			}
		case opTime:
			var s []byte
			if s, b, err = take(b); err == nil {
				err = (*time.Time)(at).UnmarshalBinary(s)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return b, nil
}

// length takes off b what appendLen has appended: a length, or -1 for nil. It fails if the rest of b is too short for
// so many elements, of at least least bytes each.
func length(b []byte, least uintptr) (n int, rest []byte, err error) {
	long, k := binary.Uvarint(b)
	switch {
	case k <= 0:
		return 0, nil, errShort
	case long == 0:
		return -1, b[k:], nil
	}
	long, b = long-1, b[k:]
	if least > 0 && long > uint64(len(b))/uint64(least) || long > math.MaxInt {
		return 0, nil, errLong
	}
	return int(long), b, nil
}

// take takes a length off b, and then so many bytes.
func take(b []byte) (taken, rest []byte, err error) {
	long, k := binary.Uvarint(b)
	if k <= 0 {
		return nil, nil, errShort
	}
	if b = b[k:]; long > uint64(len(b)) {
		return nil, nil, errLong
	}
	return b[:long], b[long:], nil
}

// nothing is what slices point to that are empty and not nil.
var nothing uint64

func decodePlainSlice(b []byte, o *op, s *slice) ([]byte, error) {
	n, b, err := length(b, o.size)
	if err != nil || n < 0 {
		*s = slice{}
		return b, err
	}
	size := n * int(o.size)
	data := unsafe.Pointer(&nothing)
	if size > 0 {
		data = unsafe.Pointer(unsafe.SliceData(make([]uint64, (size+7)/8))) // the alignment of any type
		b = b[copy(unsafe.Slice((*byte)(data), size), b):]
	}
	*s = slice{data, n, n}
	return b, nil
}

func decodeSlice(b []byte, o *op, at unsafe.Pointer) ([]byte, error) {
	n, b, err := length(b, uintptr(o.min))
	if err != nil || n < 0 {
		*(*slice)(at) = slice{}
		return b, err
	}
	made := reflect.MakeSlice(o.typ, n, n)
	data := made.UnsafePointer()
	for i := 0; i < n && err == nil; i++ {
		b, err = decodeTo(b, o.elem, unsafe.Add(data, uintptr(i)*o.size))
	}
	*(*slice)(at) = slice{data, n, n}
	return b, err
}
