package rdb

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"time"
)

// AppendStart begins a file such as a server of this version of Redis could have written. It has about as many keys
// as keys says.
func AppendStart(b []byte, redis string, now time.Time, keys int) []byte {
	b = fmt.Appendf(b, "%s%04d", magic, Version)
	for _, aux := range [][2]string{{"redis-ver", redis}, {"redis-bits", "64"}, {"ctime", strconv.FormatInt(now.Unix(), 10)}} {
		b = AppendString(AppendString(append(b, opAux), aux[0]), aux[1])
	}
	b = append(b, opSelect, 0)
	return append(AppendLen(append(b, opResize), keys), 0)
}

// AppendStringKey begins a key that is a string; the value is appended with AppendString. The key never expires if
// expire is zero.
func AppendStringKey(b, key []byte, expire time.Time) []byte {
	return appendKey(b, typeString, key, expire)
}

// AppendHashKey begins a key that is a hash. Its fields and values are appended in turn with AppendString. The last
// HashLen bytes of the result are for the number of fields, which PutHashLen may put there later.
func AppendHashKey(b, key []byte, expire time.Time) []byte {
	return append(appendKey(b, typeHash, key, expire), make([]byte, HashLen)...)
}

// HashLen is how many bytes the number of fields of a hash takes.
const HashLen = 5

// PutHashLen writes the number of fields to the first bytes of b.
func PutHashLen(b []byte, n int) {
	b[0] = 0x80
	binary.BigEndian.PutUint32(b[1:], uint32(n))
}

func appendKey(b []byte, typ byte, key []byte, expire time.Time) []byte {
	if !expire.IsZero() {
		b = binary.LittleEndian.AppendUint64(append(b, opExpireMs), uint64(expire.UnixMilli()))
	}
	return AppendString(append(b, typ), key)
}

// AppendLen appends a length.
func AppendLen(b []byte, n int) []byte {
	switch {
	case n < 1<<6:
		return append(b, byte(n))
	case n < 1<<14:
		return append(b, 0x40|byte(n>>8), byte(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, 0x80), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, 0x81), uint64(n))
}

// AppendString appends a string as it is.
func AppendString[T string | []byte](b []byte, s T) []byte { return append(AppendLen(b, len(s)), s...) }

// Overhead is the most bytes that a key takes beside its own bytes and those of its value. A hash takes up to
// OverheadEach more for each field and each value.
const (
	Overhead     = 1 + 8 + 1 + 9 + 9
	OverheadEach = 9
)

// AppendEnd ends a file. Crc is the checksum of everything before.
func AppendEnd(b []byte, crc uint64) []byte {
	return binary.LittleEndian.AppendUint64(append(b, opEOF), Sum(crc, []byte{opEOF}))
}
