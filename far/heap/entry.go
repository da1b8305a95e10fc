package heap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"
)

// Record is the bytes of a record that locks keep in place, or of any far record, from its header on; there may
// be more bytes behind it. All integers are little-endian:
//
//	 0  u32  CRC32C of the rest of the header and of the key
//	 4  u32  length of the value
//	 8  u64  hash or other number (48 bits), owner (16 bits)
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
type Record []byte

const (
	HeaderSize  = 32
	TrailerSize = 4
)

const (
	FlagStaged = 1 << iota // local only: the far copy is being written
	FlagBig                // the value is a bigHead, the rest lies in pieces
	FlagPiece              // the entry is a piece of a large value
)

var Castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (e Record) crc() uint32    { return binary.LittleEndian.Uint32(e) }
func (e Record) Vlen() int      { return int(binary.LittleEndian.Uint32(e[4:])) }
func (e Record) Number() uint64 { return binary.LittleEndian.Uint64(e[8:]) >> 16 }
func (e Record) Owner() uint16  { return binary.LittleEndian.Uint16(e[8:]) }
func (e Record) Klen() int      { return int(binary.LittleEndian.Uint16(e[16:])) }
func (e Record) Expire() int64  { return int64(binary.LittleEndian.Uint64(e[16:]) >> 16) }
func (e Record) Far() uint64    { return binary.LittleEndian.Uint64(e[24:]) & AddrMask }
func (e Record) Tag() uint8     { return e[29] }
func (e Record) Flags() uint16  { return binary.LittleEndian.Uint16(e[30:]) }
func (e Record) End() int       { return HeaderSize + e.Klen() + e.Vlen() + TrailerSize }
func (e Record) Size() int      { return RecordSize(e.Klen(), e.Vlen()) }
func (e Record) Key() []byte    { n := HeaderSize + e.Klen(); return e[HeaderSize:n:n] }
func (e Record) Value() []byte  { n := e.End() - TrailerSize; return e[HeaderSize+e.Klen() : n : n] }
func (e Record) Staged() bool   { return e.Flags()&FlagStaged != 0 }
func (e Record) Big() bool      { return e.Flags()&FlagBig != 0 }
func (e Record) SetFlag(f byte) { e[30] |= f }

func (e Record) ClearFlag(f byte) { e[30] &^= f }

// Clean reports whether the record has a valid far copy.
func (e Record) Clean() bool { return e.Far() != 0 && !e.Staged() }

func (e Record) SetFar(addr uint64) {
	v := binary.LittleEndian.Uint64(e[24:])
	binary.LittleEndian.PutUint64(e[24:], v&^AddrMask|addr)
}

// Seal makes e the bytes that are to be written to addr.
func (e Record) Seal(addr uint64) {
	e.SetFar(addr)
	e.ClearFlag(FlagStaged)
	sum := e.headSum()
	binary.LittleEndian.PutUint32(e, sum)
	binary.LittleEndian.PutUint32(e[e.End()-TrailerSize:], crc32.Update(sum, Castagnoli, e.Value()))
}

func (e Record) headSum() uint32 {
	return crc32.Checksum(e[4:HeaderSize+e.Klen()], Castagnoli)
}

// Expired reports whether the record's time has come.
func (e Record) Expired() bool {
	x := e.Expire()
	return x != 0 && x <= time.Now().UnixMilli()
}

func RecordSize(klen, vlen int) int {
	return (HeaderSize + klen + vlen + TrailerSize + Unit - 1) &^ (Unit - 1)
}

// DecodeHead checks that b begins with the header and the key of a record that
// was sealed for addr. The bytes may be anything. The error is errShort if b
// is too short to tell.
func DecodeHead(b []byte, addr uint64) (Record, error) {
	if len(b) < HeaderSize {
		return nil, ErrShort
	}
	e := Record(b)
	if e.Far() != addr {
		return nil, fmt.Errorf("they belong to address %#x, not %#x", e.Far(), addr)
	}
	if HeaderSize+e.Klen() > len(b) {
		return nil, ErrShort
	}
	if got, want := e.headSum(), e.crc(); got != want {
		return nil, fmt.Errorf("CRC32C of header and key is %08x, want %08x", got, want)
	}
	if e.Big() {
		return DecodeEntry(b, addr) // its value is used without being asked for
	}
	return e, nil
}

// DecodeEntry checks that b begins with an entire record that was sealed for
// addr. The bytes may be anything.
func DecodeEntry(b []byte, addr uint64) (Record, error) {
	if len(b) < HeaderSize {
		return nil, ErrShort
	}
	e := Record(b)
	if e.Far() != addr {
		return nil, fmt.Errorf("they belong to address %#x, not %#x", e.Far(), addr)
	}
	n := e.End()
	if n > len(b) {
		return nil, ErrShort
	}
	sum := e.headSum()
	if want := e.crc(); sum != want {
		return nil, fmt.Errorf("CRC32C of header and key is %08x, want %08x", sum, want)
	}
	sum = crc32.Update(sum, Castagnoli, e.Value())
	if want := binary.LittleEndian.Uint32(e[n-TrailerSize:]); sum != want {
		return nil, fmt.Errorf("CRC32C of the value is %08x, want %08x", sum, want)
	}
	return e[:n], nil
}

// ErrShort: there are fewer bytes than the record claims to have.
var ErrShort = errors.New("they are too few for the entry")
