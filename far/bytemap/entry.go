package bytemap

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"polder/far/heap"
	"polder/far/index"
	"polder/far/record"
)

// entry is an entry of a map in local memory: a heap.Object whose data is
//
//	16  u16  length of the key
//	18  u8   tag
//	19  u8   flags
//	20       body: the expiry (i64, milliseconds since 1970), if the flags say that there is one; the
//	         key; the value
//
// In far memory it is a record with the same body, which whoever has read it turns into an entry
// where it lies: see localize. Of an entry whose head alone was read, the value is missing.
//
// The number is the hash of the key. What the evacuator reads without the lock of the shard is
// the length and the owner, which never change.
type entry heap.Object

const (
	entryHeader = heap.ObjectHeader + 4 // bytes in front of the body

	entryExpires = 1 << 0 // there is an expiry
	entryBig     = 1 << 1 // the value is a bigHead, the rest lies in pieces
	entryPiece   = 1 << 2 // the entry is a piece of a large value
)

func (e entry) head() uint64     { return binary.LittleEndian.Uint64(e) }
func (e entry) tail() uint64     { return binary.LittleEndian.Uint64(e[8:]) }
func (e entry) Hash() hash       { return hash(heap.HeadNumber(e.head())) }
func (e entry) Owner() uint16    { return heap.TailOwner(e.tail()) }
func (e entry) Far() uint64      { return heap.TailFar(e.tail()) }
func (e entry) Staged() bool     { return e.tail()&heap.TailStaged != 0 }
func (e entry) Klen() int        { return int(binary.LittleEndian.Uint16(e[16:])) }
func (e entry) Vlen() int        { return e.end() - e.valueAt() }
func (e entry) Tag() uint8       { return e[18] }
func (e entry) Big() bool        { return e[19]&entryBig != 0 }
func (e entry) Key() []byte      { n := e.valueAt(); return e[n-e.Klen() : n : n] }
func (e entry) Value() []byte    { n := e.end(); return e[e.valueAt():n:n] }
func (e entry) Size() int        { return heap.ObjectSize(e.end() - heap.ObjectHeader) }
func (e entry) FarSize() int     { return record.Size(e.end() - entryHeader) }
func (e entry) Expired() bool    { return expired(e.Expire()) }
func (e entry) expires() bool    { return e[19]&entryExpires != 0 }
func (e entry) setTail(t uint64) { atomic.StoreUint64(heap.Object(e).Tail(), t) }

// Clean reports whether the entry has a valid far copy.
func (e entry) Clean() bool { return e.Far() != 0 }

// SetFar gives the entry the far copy at addr, or none.
func (e entry) SetFar(addr uint64) { e.setTail(heap.NewTail(addr, e.Owner())) }

// SetStaged notes that the far copy of the entry is being written.
func (e entry) SetStaged() { e.setTail(heap.NewTail(0, e.Owner()) | heap.TailStaged) }

// end is where the value ends.
func (e entry) end() int { return heap.ObjectHeader + heap.HeadLen(e.head()) }

// valueAt is where the value begins.
func (e entry) valueAt() int {
	n := entryHeader + e.Klen()
	if e.expires() {
		n += record.ExpirySize
	}
	return n
}

// Expire is in milliseconds since 1970, 0 if there is no expiry.
func (e entry) Expire() int64 {
	if !e.expires() {
		return 0
	}
	return int64(binary.LittleEndian.Uint64(e[entryHeader:]))
}

func expired(at int64) bool { return at != 0 && at <= time.Now().UnixMilli() }

// entryAt is the entry at a local address.
func (h *Maps) entryAt(addr uint64) entry { return entry(h.core.Logs.At(addr)) }

// metaOf is the Entry of e without its value.
func metaOf(e entry) Entry {
	m := Entry{Tag: e.Tag()}
	if x := e.Expire(); x != 0 {
		m.Expire = time.UnixMilli(x)
	}
	return m
}

// wordFlagsOf is the flags that e's word carries.
func wordFlagsOf(e entry) index.Word {
	var f index.Word
	if e.expires() {
		f |= index.TTL
	}
	if e[19]&entryPiece != 0 {
		f |= index.Piece
	}
	if e.Big() {
		f |= index.Big
	}
	return f
}

// appendHead appends e without its value, but with a bigHead, to dst.
func appendHead(dst, e entry) entry {
	n := e.valueAt()
	if e.Big() {
		n = e.end()
	}
	return append(dst, e[:n]...)
}

// newEntry is an entry about to be written.
type newEntry struct {
	key, value []byte
	expire     int64 // milliseconds since 1970, 0 for never
	tag        uint8
	flags      uint8 // but entryExpires
	txn        *Txn  // that it is a part of, or nil
}

func newEntryOf(key []byte, e Entry) newEntry {
	r := newEntry{key: key, value: e.Value, tag: e.Tag}
	if !e.Expire.IsZero() {
		r.expire = max(e.Expire.UnixMilli(), 1)
	}
	return r
}

// body is the length of the body.
func (r *newEntry) body() int {
	n := len(r.key) + len(r.value)
	if r.expire != 0 {
		n += record.ExpirySize
	}
	return n
}

func (r *newEntry) size() int    { return heap.ObjectSize(entryHeader - heap.ObjectHeader + r.body()) }
func (r *newEntry) farSize() int { return record.Size(r.body()) }

// put writes r into e, which is r.size() bytes.
func (r *newEntry) put(e entry, h hash, owner uint16) {
	heap.Object(e).SetHead(heap.ObjectHead(uint64(h), entryHeader-heap.ObjectHeader+r.body()))
	e.setTail(heap.NewTail(0, owner))
	binary.LittleEndian.PutUint16(e[16:], uint16(len(r.key)))
	e[18], e[19] = r.tag, r.flags
	n := entryHeader
	if r.expire != 0 {
		e[19] |= entryExpires
		binary.LittleEndian.PutUint64(e[n:], uint64(r.expire))
		n += record.ExpirySize
	}
	n += copy(e[n:], r.key)
	n += copy(e[n:], r.value)
	clear(e[n:]) // what lay there before must not leave this process
}

// putFar makes b, which is e.FarSize() bytes, the record of e.
func (e entry) putFar(b []byte) {
	rh := record.Header{Kind: record.Entry, Tag: e.Tag(), Owner: e.Owner(), Number: uint64(e.Hash()), KeyLen: e.Klen()}
	if e[19]&entryPiece != 0 {
		rh.Kind = record.Piece
	}
	if e.expires() {
		rh.Flags |= record.Expires
	}
	if e.Big() {
		rh.Flags |= record.Large
	}
	record.Put(b, rh, e[entryHeader:e.end()])
}

// localize turns the record r of an entry or a piece, which lies at a far address, into that entry,
// clean. It ends where r does: an entry's header is shorter than a record's, in whose place it is.
func localize(r record.Record, addr uint64) entry {
	flags := byte(0)
	if r.Kind() == record.Piece {
		flags |= entryPiece
	}
	if r.Flags()&record.Expires != 0 {
		flags |= entryExpires
	}
	if r.Flags()&record.Large != 0 {
		flags |= entryBig
	}
	head := heap.ObjectHead(r.Number(), entryHeader-heap.ObjectHeader+r.Len())
	tail, klen, tag := heap.NewTail(addr, r.Owner()), r.KeyLen(), r.Tag()
	e := localized(r)
	binary.LittleEndian.PutUint64(e, head)
	binary.LittleEndian.PutUint64(e[8:], tail)
	binary.LittleEndian.PutUint16(e[16:], uint16(klen))
	e[18], e[19] = tag, flags
	return e
}

// localized is what localize has made of r.
func localized(r record.Record) entry { return entry(r[record.HeaderSize-entryHeader:]) }
