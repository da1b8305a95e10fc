package far

import (
	"encoding/binary"
	"errors"
	"time"

	"polder/far/heap"
)

// hashOf is the hash of the key of e.
func hashOf(e heap.Record) hash { return hash(e.Number()) }

// record is an entry about to be written.
type record struct {
	key, value []byte
	expire     int64 // milliseconds since 1970, 0 for never
	tag        uint8
	flags      uint16
	txn        *Txn // that it is a part of, or nil
}

func newRecord(key []byte, e Entry) record {
	r := record{key: key, value: e.Value, tag: e.Tag}
	if !e.Expire.IsZero() {
		// Times outside the 48 bits are as good as the nearest one inside.
		r.expire = min(max(e.Expire.UnixMilli(), 1), 1<<48-1)
	}
	return r
}

func (r *record) size() int { return heap.RecordSize(len(r.key), len(r.value)) }

// put writes r into e, which is r.size() bytes.
func (r *record) put(e heap.Record, h hash, owner uint16) {
	binary.LittleEndian.PutUint32(e, 0)
	binary.LittleEndian.PutUint32(e[4:], uint32(len(r.value)))
	binary.LittleEndian.PutUint64(e[8:], uint64(h)<<16|uint64(owner))
	binary.LittleEndian.PutUint64(e[16:], uint64(r.expire)<<16|uint64(len(r.key)))
	binary.LittleEndian.PutUint64(e[24:], uint64(r.flags)<<48|uint64(r.tag)<<40)
	n := heap.HeaderSize
	n += copy(e[n:], r.key)
	n += copy(e[n:], r.value)
	clear(e[n:]) // what lay there before must not leave this process
}

// metaOf is the Entry of e without its value.
func metaOf(e heap.Record) Entry {
	m := Entry{Tag: e.Tag()}
	if x := e.Expire(); x != 0 {
		m.Expire = time.UnixMilli(x)
	}
	return m
}

// wordFlagsOf is the flags that e's word carries.
func wordFlagsOf(e heap.Record) word {
	var f word
	if e.Expire() != 0 {
		f |= wordTTL
	}
	if e.Flags()&heap.FlagPiece != 0 {
		f |= wordPiece
	}
	if e.Big() {
		f |= wordBig
	}
	return f
}

// appendHead appends the header and the key of e, and the bigHead if it has
// one, to dst.
func appendHead(dst, e heap.Record) heap.Record {
	n := heap.HeaderSize + e.Klen()
	if e.Big() {
		n += bigHeadSize
	}
	return append(dst, e[:n]...)
}

// putFar writes the far entry of an object into e, which has room for it,
// without sealing it.
func putFar(e heap.Record, number, serial uint64, data []byte) {
	binary.LittleEndian.PutUint32(e, 0)
	binary.LittleEndian.PutUint32(e[4:], uint32(len(data)))
	binary.LittleEndian.PutUint64(e[8:], number<<16|heap.ScopedID)
	binary.LittleEndian.PutUint64(e[16:], serial<<16)
	binary.LittleEndian.PutUint64(e[24:], 0)
	clear(e[heap.HeaderSize+copy(e[heap.HeaderSize:], data):])
}

// serialOf is that of the class of the object that e is.
func serialOf(e heap.Record) uint64 { return uint64(e.Expire()) }

var errObject = errors.New("they are not those of the object that was looked for")
