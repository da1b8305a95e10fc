package far

import "unsafe"

// bytesIn is the bytes of the string or byte slice that v is.
func bytesIn[T any](v *T, kind codecKind) []byte {
	if kind == codecString {
		s := *(*string)(unsafe.Pointer(v))
		return unsafe.Slice(unsafe.StringData(s), len(s))
	}
	return *(*[]byte)(unsafe.Pointer(v))
}

// setBytes makes v, a string or a byte slice, hold b, which nobody else changes.
func setBytes[T any](v *T, kind codecKind, b []byte) {
	if kind == codecString {
		*(*string)(unsafe.Pointer(v)) = unsafe.String(unsafe.SliceData(b), len(b))
		return
	}
	*(*[]byte)(unsafe.Pointer(v)) = b
}
