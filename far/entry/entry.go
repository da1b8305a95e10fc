package entry

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"polder/far/index"
	"polder/far/object"
	"polder/far/record"
)

// Local is an entry in local memory: an object.Object whose data is
//
//	16  u16  length of the key
//	18  u8   tag
//	19  u8   flags
//	20       body: the expiry (i64, milliseconds since 1970), if the flags say that there is one; the
//	         key; the value
//
// In far memory an entry is a record with the same body. Whoever has read the record turns it into an entry in place:
// see Localize. If only the head of an entry was read, the value is missing.
//
// The object's number is the hash of the key. Without the lock of the shard the evacuator reads only the length and
// the owner, which never change.
type Local object.Object

const (
	// Header is the bytes in front of the body.
	Header = object.Header + 4

	expires = 1 << 0 // there is an expiry

	// Big: the value is a Large; what it stands for lies in pieces.
	Big = 1 << 1
	// Piece: the entry is a piece of a large value.
	Piece = 1 << 2
)

func (e Local) head() uint64     { return binary.LittleEndian.Uint64(e) }
func (e Local) tail() uint64     { return binary.LittleEndian.Uint64(e[8:]) }
func (e Local) Hash() Hash       { return Hash(object.HeadNumber(e.head())) }
func (e Local) Owner() uint16    { return object.TailOwner(e.tail()) }
func (e Local) Far() uint64      { return object.TailFar(e.tail()) }
func (e Local) Staged() bool     { return e.tail()&object.TailStaged != 0 }
func (e Local) Klen() int        { return int(binary.LittleEndian.Uint16(e[16:])) }
func (e Local) Vlen() int        { return e.End() - e.valueAt() }
func (e Local) Tag() uint8       { return e[18] }
func (e Local) Big() bool        { return e[19]&Big != 0 }
func (e Local) Key() []byte      { n := e.valueAt(); return e[n-e.Klen() : n : n] }
func (e Local) Value() []byte    { n := e.End(); return e[e.valueAt():n:n] }
func (e Local) Size() int        { return object.Size(e.End() - object.Header) }
func (e Local) FarSize() int     { return record.Size(e.End() - Header) }
func (e Local) Expired() bool    { return e.expires() && e.late() }
func (e Local) expires() bool    { return e[19]&expires != 0 }
func (e Local) setTail(t uint64) { atomic.StoreUint64(object.Object(e).Tail(), t) }

// late is Expired for an entry that has an expiry. Most entries have none, and Expired says so without this call.
func (e Local) late() bool { return Expired(e.Expire()) }

// Clean reports whether the entry has a valid far copy.
func (e Local) Clean() bool { return e.Far() != 0 }

// SetFar records that the entry's far copy is at addr, or that it has none if addr is 0.
func (e Local) SetFar(addr uint64) { e.setTail(object.NewTail(addr, e.Owner())) }

// SetStaged notes that the far copy of the entry is being written.
func (e Local) SetStaged() { e.setTail(object.NewTail(0, e.Owner()) | object.TailStaged) }

// End is where the value ends.
func (e Local) End() int { return object.Header + object.HeadLen(e.head()) }

// valueAt is where the value begins.
func (e Local) valueAt() int {
	n := Header + e.Klen()
	if e.expires() {
		n += record.ExpirySize
	}
	return n
}

// Expire is when the entry expires, in milliseconds since 1970, or 0 if it does not.
func (e Local) Expire() int64 {
	if !e.expires() {
		return 0
	}
	return int64(binary.LittleEndian.Uint64(e[Header:]))
}

// Expired reports whether the time at has come, in milliseconds since 1970, or 0 for never.
func Expired(at int64) bool { return at != 0 && at <= time.Now().UnixMilli() }

// WordFlags is the flags that e's word in the index carries.
func WordFlags(e Local) index.Word {
	var f index.Word
	if e.expires() {
		f |= index.TTL
	}
	if e[19]&Piece != 0 {
		f |= index.Piece
	}
	if e.Big() {
		f |= index.Big
	}
	return f
}

// AppendHead appends e without its value to dst. If the value is a Large, it is appended, too.
func AppendHead(dst, e Local) Local {
	n := e.valueAt()
	if e.Big() {
		n = e.End()
	}
	return append(dst, e[:n]...)
}

// New is what an entry is made from.
type New struct {
	Key, Value []byte
	Expire     int64 // milliseconds since 1970, 0 for never
	Tag        uint8
	Flags      uint8 // Big and Piece
}

// Body is the length of the body.
func (r *New) Body() int {
	n := len(r.Key) + len(r.Value)
	if r.Expire != 0 {
		n += record.ExpirySize
	}
	return n
}

// Size is how many bytes the entry takes in local memory, and FarSize in far memory.
func (r *New) Size() int    { return object.Size(Header - object.Header + r.Body()) }
func (r *New) FarSize() int { return record.Size(r.Body()) }

// Put writes r into e, which is r.Size() bytes.
func (r *New) Put(e Local, h Hash, owner uint16) {
	object.Object(e).SetHead(object.Head(uint64(h), Header-object.Header+r.Body()))
	e.setTail(object.NewTail(0, owner))
	binary.LittleEndian.PutUint16(e[16:], uint16(len(r.Key)))
	e[18], e[19] = r.Tag, r.Flags
	n := Header
	if r.Expire != 0 {
		e[19] |= expires
		binary.LittleEndian.PutUint64(e[n:], uint64(r.Expire))
		n += record.ExpirySize
	}
	n += copy(e[n:], r.Key)
	n += copy(e[n:], r.Value)
	clear(e[n:]) // what lay there before must not leave this process
}

// PutFar writes the record of e into b, which is e.FarSize() bytes.
func (e Local) PutFar(b []byte) {
	rh := record.Header{Kind: record.Entry, Tag: e.Tag(), Owner: e.Owner(), Number: uint64(e.Hash()), KeyLen: e.Klen()}
	if e[19]&Piece != 0 {
		rh.Kind = record.Piece
	}
	if e.expires() {
		rh.Flags |= record.Expires
	}
	if e.Big() {
		rh.Flags |= record.Large
	}
	record.Put(b, rh, e[Header:e.End()])
}

// Localize turns r, the record of an entry or a piece at the far address addr, into that entry, clean, in r's own
// bytes. The entry ends where r does: an entry's header is shorter than the record's header that it replaces.
func Localize(r record.Record, addr uint64) Local {
	flags := byte(0)
	if r.Kind() == record.Piece {
		flags |= Piece
	}
	if r.Flags()&record.Expires != 0 {
		flags |= expires
	}
	if r.Flags()&record.Large != 0 {
		flags |= Big
	}
	head := object.Head(r.Number(), Header-object.Header+r.Len())
	tail, klen, tag := object.NewTail(addr, r.Owner()), r.KeyLen(), r.Tag()
	e := Localized(r)
	binary.LittleEndian.PutUint64(e, head)
	binary.LittleEndian.PutUint64(e[8:], tail)
	binary.LittleEndian.PutUint16(e[16:], uint16(klen))
	e[18], e[19] = tag, flags
	return e
}

// Localized returns the entry that Localize has made of r.
func Localized(r record.Record) Local { return Local(r[record.HeaderSize-Header:]) }

// Hash is the part of a key's hash that the heap keeps: as many bits as a record's number has. The low 32 bits are
// the tag, and those above choose the shard.
type Hash uint64

const HashBits = 40

func (h Hash) Tag() uint32 { return uint32(h) }

// Kept is what a checkpoint keeps of e in addition to its hash.
func (e Local) Kept() []byte { return e[object.Header:e.End()] }

// NewOfKept returns the New of an entry that a checkpoint has kept as b.
func NewOfKept(b []byte) (New, error) {
	const at = Header - object.Header
	if len(b) < at {
		return New{}, fmt.Errorf("an entry of %d bytes", len(b))
	}
	r := New{Tag: b[2], Flags: b[3] &^ expires}
	klen, body := int(binary.LittleEndian.Uint16(b)), b[at:]
	if b[3]&expires != 0 && len(body) >= 8 {
		r.Expire, body = int64(binary.LittleEndian.Uint64(body)), body[8:]
	}
	if klen > len(body) || r.Flags&^(Big|Piece) != 0 {
		return New{}, fmt.Errorf("an entry of %d bytes with a key of %d", len(b), klen)
	}
	r.Key, r.Value = body[:klen], body[klen:]
	return r, nil
}

// Small makes e an entry that has no pieces.
func (e Local) Small() { e[19] &^= Big }
