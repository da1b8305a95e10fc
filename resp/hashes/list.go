package hashes

import (
	"bytes"
	"encoding/binary"
	"iter"
)

// List is a list of fields and values, in the order in which the fields
// were added: the number of fields in four bytes, then for each a length, the
// field, a length, the value. Lengths are uvarints. A list without fields may
// be nil.
type List []byte

const listHead = 4

// Len is the number of fields.
func (l List) Len() int {
	if len(l) == 0 {
		return 0
	}
	return int(binary.LittleEndian.Uint32(l))
}

// Size is the number of bytes beside the head.
func (l List) Size() int { return max(0, len(l)-listHead) }

// bytesAt reads a length and as many bytes at i, and returns where they end.
func (l List) bytesAt(i int) (b []byte, next int) {
	n, w := uint64(l[i]), 1
	if n >= 0x80 {
		n, w = binary.Uvarint(l[i:])
	}
	i += w
	return l[i : i+int(n) : i+int(n)], i + int(n)
}

// All iterates over the fields and values. They alias the list.
func (l List) All() iter.Seq2[[]byte, []byte] {
	return func(yield func(field, value []byte) bool) {
		for i := listHead; i < len(l); {
			var f, v []byte
			f, i = l.bytesAt(i)
			v, i = l.bytesAt(i)
			if !yield(f, v) {
				return
			}
		}
	}
}

// find returns where field starts, where its value's length is, and where the
// value ends; start is -1 if there is no such field.
func (l List) find(field []byte) (start, val, end int) {
	for i := listHead; i < len(l); {
		f, v := l.bytesAt(i)
		_, end := l.bytesAt(v)
		if bytes.Equal(f, field) {
			return i, v, end
		}
		i = end
	}
	return -1, 0, 0
}

// Get returns the value of field, which aliases the list.
func (l List) Get(field []byte) (value []byte, ok bool) {
	start, val, _ := l.find(field)
	if start < 0 {
		return nil, false
	}
	value, _ = l.bytesAt(val)
	return value, true
}

// Set gives field a value and reports whether the field is new. Field and
// value must not alias the list.
func (l List) Set(field, value []byte) (List, bool) {
	if len(l) == 0 {
		l = append(l[:0], 0, 0, 0, 0)
	}
	start, val, end := l.find(field)
	if start < 0 {
		binary.LittleEndian.PutUint32(l, uint32(l.Len()+1))
		return appendBytes(appendBytes(l, field), value), true
	}
	var head [binary.MaxVarintLen64]byte
	h := head[:binary.PutUvarint(head[:], uint64(len(value)))]
	size := len(h) + len(value)
	oldLen := len(l)
	if grow := size - (end - val); grow > 0 {
		l = append(l, make([]byte, grow)...)
	}
	copy(l[val+size:], l[end:oldLen])
	copy(l[val:], h)
	copy(l[val+len(h):], value)
	return l[:val+size+oldLen-end], false
}

// Remove takes field out and reports whether it was there.
func (l List) Remove(field []byte) (List, bool) {
	start, _, end := l.find(field)
	if start < 0 {
		return l, false
	}
	l = append(l[:start], l[end:]...)
	binary.LittleEndian.PutUint32(l, uint32(l.Len()-1))
	return l, true
}

func appendBytes(l List, b []byte) List {
	l = binary.AppendUvarint(l, uint64(len(b)))
	return append(l, b...)
}
