package far

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"
)

// entry is the bytes of an entry, local or far, from its header on; there may
// be more bytes behind it. All integers are little-endian:
//
//	 0  u32  CRC32C of the rest of the header and of the key
//	 4  u32  length of the value
//	 8  u64  hash (48 bits), map (16 bits)
//	16  u64  expiry in milliseconds since 1970, 0 for none (48 bits),
//	         length of the key (16 bits)
//	24  u64  flags (16 bits, from bit 48), tag (8 bits, from bit 40), address
//	         of the far copy (40 bits): of far bytes their own, so that bytes
//	         of another place are noticed
//	32       key, value
//	    u32  CRC32C of the value, continued from that of header and key;
//	         zeros up to a multiple of 16
//
// The checksums are those of the far copy; without one they mean nothing.
type entry []byte

const (
	headerSize  = 32
	trailerSize = 4
)

const (
	flagStaged = 1 << iota // local only: the far copy is being written
	flagBig                // the value is a bigHead, the rest lies in pieces
	flagPiece              // the entry is a piece of a large value
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (e entry) crc() uint32    { return binary.LittleEndian.Uint32(e) }
func (e entry) vlen() int      { return int(binary.LittleEndian.Uint32(e[4:])) }
func (e entry) hash() hash     { return hash(binary.LittleEndian.Uint64(e[8:]) >> 16) }
func (e entry) mapID() uint16  { return binary.LittleEndian.Uint16(e[8:]) }
func (e entry) klen() int      { return int(binary.LittleEndian.Uint16(e[16:])) }
func (e entry) expire() int64  { return int64(binary.LittleEndian.Uint64(e[16:]) >> 16) }
func (e entry) far() uint64    { return binary.LittleEndian.Uint64(e[24:]) & addrMask }
func (e entry) tag() uint8     { return e[29] }
func (e entry) flags() uint16  { return binary.LittleEndian.Uint16(e[30:]) }
func (e entry) end() int       { return headerSize + e.klen() + e.vlen() + trailerSize }
func (e entry) size() int      { return entrySize(e.klen(), e.vlen()) }
func (e entry) key() []byte    { n := headerSize + e.klen(); return e[headerSize:n:n] }
func (e entry) value() []byte  { n := e.end() - trailerSize; return e[headerSize+e.klen() : n : n] }
func (e entry) staged() bool   { return e.flags()&flagStaged != 0 }
func (e entry) big() bool      { return e.flags()&flagBig != 0 }
func (e entry) setFlag(f byte) { e[30] |= f }

func (e entry) clearFlag(f byte) { e[30] &^= f }

// clean reports whether the entry has a valid far copy.
func (e entry) clean() bool { return e.far() != 0 && !e.staged() }

func (e entry) setFar(addr uint64) {
	v := binary.LittleEndian.Uint64(e[24:])
	binary.LittleEndian.PutUint64(e[24:], v&^addrMask|addr)
}

// appendHead appends the header and the key of e, and the bigHead if it has
// one, to dst.
func (e entry) appendHead(dst entry) entry {
	n := headerSize + e.klen()
	if e.big() {
		n += bigHeadSize
	}
	return append(dst, e[:n]...)
}

// seal makes e the bytes that are to be written to addr.
func (e entry) seal(addr uint64) {
	e.setFar(addr)
	e.clearFlag(flagStaged)
	sum := e.headSum()
	binary.LittleEndian.PutUint32(e, sum)
	binary.LittleEndian.PutUint32(e[e.end()-trailerSize:], crc32.Update(sum, castagnoli, e.value()))
}

func (e entry) headSum() uint32 {
	return crc32.Checksum(e[4:headerSize+e.klen()], castagnoli)
}

// expired reports whether the entry's time has come.
func (e entry) expired() bool {
	x := e.expire()
	return x != 0 && x <= time.Now().UnixMilli()
}

// meta is the Entry of e without its value.
func (e entry) meta() Entry {
	m := Entry{Tag: e.tag()}
	if x := e.expire(); x != 0 {
		m.Expire = time.UnixMilli(x)
	}
	return m
}

// wordFlags are the flags that e's word carries.
func (e entry) wordFlags() word {
	var f word
	if e.expire() != 0 {
		f |= wordTTL
	}
	if e.flags()&flagPiece != 0 {
		f |= wordPiece
	}
	if e.big() {
		f |= wordBig
	}
	return f
}

func entrySize(klen, vlen int) int {
	return (headerSize + klen + vlen + trailerSize + unit - 1) &^ (unit - 1)
}

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

func (r *record) size() int { return entrySize(len(r.key), len(r.value)) }

// put writes r into e, which is r.size() bytes.
func (r *record) put(e entry, h hash, mapID uint16) {
	binary.LittleEndian.PutUint32(e, 0)
	binary.LittleEndian.PutUint32(e[4:], uint32(len(r.value)))
	binary.LittleEndian.PutUint64(e[8:], uint64(h)<<16|uint64(mapID))
	binary.LittleEndian.PutUint64(e[16:], uint64(r.expire)<<16|uint64(len(r.key)))
	binary.LittleEndian.PutUint64(e[24:], uint64(r.flags)<<48|uint64(r.tag)<<40)
	n := headerSize
	n += copy(e[n:], r.key)
	n += copy(e[n:], r.value)
	clear(e[n:]) // what lay there before must not leave this process
}

// decodeHead checks that b begins with the header and the key of an entry that
// was sealed for addr. The bytes may be anything. The error is errShort if b
// is too short to tell.
func decodeHead(b []byte, addr uint64) (entry, error) {
	if len(b) < headerSize {
		return nil, errShort
	}
	e := entry(b)
	if e.far() != addr {
		return nil, fmt.Errorf("they belong to address %#x, not %#x", e.far(), addr)
	}
	if headerSize+e.klen() > len(b) {
		return nil, errShort
	}
	if got, want := e.headSum(), e.crc(); got != want {
		return nil, fmt.Errorf("CRC32C of header and key is %08x, want %08x", got, want)
	}
	if e.big() {
		return decodeEntry(b, addr) // its value is used without being asked for
	}
	return e, nil
}

// decodeEntry checks that b begins with an entire entry that was sealed for
// addr. The bytes may be anything.
func decodeEntry(b []byte, addr uint64) (entry, error) {
	if len(b) < headerSize {
		return nil, errShort
	}
	e := entry(b)
	if e.far() != addr {
		return nil, fmt.Errorf("they belong to address %#x, not %#x", e.far(), addr)
	}
	n := e.end()
	if n > len(b) {
		return nil, errShort
	}
	sum := e.headSum()
	if want := e.crc(); sum != want {
		return nil, fmt.Errorf("CRC32C of header and key is %08x, want %08x", sum, want)
	}
	sum = crc32.Update(sum, castagnoli, e.value())
	if want := binary.LittleEndian.Uint32(e[n-trailerSize:]); sum != want {
		return nil, fmt.Errorf("CRC32C of the value is %08x, want %08x", sum, want)
	}
	return e[:n], nil
}

// errShort: there are fewer bytes than the entry claims to have.
var errShort = errors.New("they are too few for the entry")
