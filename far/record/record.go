package record

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

const (
	// Unit is what the offsets and the sizes of records are multiples of.
	Unit = 16
	// AddrBits is how many bits a far address has: it is made of the number of a segment, and the place in the
	// segment, in units.
	AddrBits = 40
	// MaxAddr is the highest far address.
	MaxAddr = 1<<AddrBits - 1
	// HeaderSize is the size of a record's header.
	HeaderSize = 32
	// ExpirySize is the size of an expiry, which is in front of the key.
	ExpirySize = 8
	// NumberBits is how many bits a number has.
	NumberBits = 40
	// MaxBody is the greatest length of a body.
	MaxBody = 1<<24 - 1

	maxVersion = 1<<56 - 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Kind says what a record holds.
type Kind uint8

const (
	Entry      Kind = 1 + iota // an entry of a map; its number is the hash of its key
	Object                     // what a pointer refers to; its number is that of the pointer's word; no key
	Piece                      // a part of a large value: its key is the value's version and the part's number
	Page                       // a part of an owner's index; the owner chooses its number; no key
	Checkpoint                 // a stretch of a checkpoint; it has neither number nor key
)

// Flags say more of a record.
type Flags uint8

const (
	Moved   Flags = 1 << iota // the record is a copy that the cleaner made, as valid as the original
	Expires                   // the body begins with an expiry
	Large                     // the value stands for a large one that is in pieces; it is checked with the header

	known = Moved | Expires | Large
)

// Record is the bytes of a record, from its header on. There may be more behind it. Its methods may be called only on
// what Decode or DecodeHead has returned, or on a record that is being written (see Put). After DecodeHead, Value and
// Body may be called only if the record is Large.
type Record []byte

func (r Record) sum() uint32     { return binary.LittleEndian.Uint32(r) }
func (r Record) bodySum() uint32 { return binary.LittleEndian.Uint32(r[4:]) }

// Version is the version that the log gave the record.
func (r Record) Version() uint64 { return binary.LittleEndian.Uint64(r[8:]) >> 8 }

// Kind is what the record is of.
func (r Record) Kind() Kind { return Kind(r[8]) }

// Number is the number that the owner gave the record, in NumberBits bits.
func (r Record) Number() uint64 { return binary.LittleEndian.Uint64(r[16:]) >> 24 }

// Len is the length of the body.
func (r Record) Len() int { return int(binary.LittleEndian.Uint64(r[16:]) & MaxBody) }

// Owner is the number of the data structure that the record belongs to.
func (r Record) Owner() uint16 { return binary.LittleEndian.Uint16(r[24:]) }

// KeyLen is the length of the key.
func (r Record) KeyLen() int { return int(binary.LittleEndian.Uint16(r[26:])) }

// Flags are the record's flags.
func (r Record) Flags() Flags { return Flags(r[28]) }

// Tag is the tag, whose meaning is the user's.
func (r Record) Tag() uint8 { return r[29] }

// head is where the value begins.
func (r Record) head() int {
	n := HeaderSize + r.KeyLen()
	if r.Flags()&Expires != 0 {
		n += ExpirySize
	}
	return n
}

// end is where the padding begins.
func (r Record) end() int { return HeaderSize + r.Len() }

// Expiry is in milliseconds since 1970, 0 if there is none.
func (r Record) Expiry() int64 {
	if r.Flags()&Expires == 0 {
		return 0
	}
	return int64(binary.LittleEndian.Uint64(r[HeaderSize:]))
}

// Key is the key, empty if there is none.
func (r Record) Key() []byte { n := r.head(); return r[n-r.KeyLen() : n : n] }

// Value is the rest of the body.
func (r Record) Value() []byte { n := r.end(); return r[r.head():n:n] }

// Body is expiry, key and value.
func (r Record) Body() []byte { n := r.end(); return r[HeaderSize:n:n] }

// Size is the bytes that the record takes in a segment.
func (r Record) Size() int { return Size(r.Len()) }

// Size is the bytes that a record with a body of n bytes takes in a segment.
func Size(n int) int { return (HeaderSize + n + Unit - 1) &^ (Unit - 1) }

// Header is what the header of a record says, except for its version and its checksums.
type Header struct {
	Kind   Kind
	Flags  Flags
	Tag    uint8
	Owner  uint16
	Number uint64
	KeyLen int
}

// Put makes b, which is Size(len(body)) bytes long, a record with that header and body. It still has to be sealed.
func Put(b []byte, h Header, body []byte) Record {
	binary.LittleEndian.PutUint64(b, 0)
	binary.LittleEndian.PutUint64(b[8:], uint64(h.Kind))
	binary.LittleEndian.PutUint64(b[16:], h.Number<<24|uint64(len(body)))
	binary.LittleEndian.PutUint16(b[24:], h.Owner)
	binary.LittleEndian.PutUint16(b[26:], uint16(h.KeyLen))
	b[28], b[29], b[30], b[31] = byte(h.Flags), h.Tag, 0, 0
	clear(b[HeaderSize+copy(b[HeaderSize:], body):]) // what lay there before must not leave this process
	return Record(b)
}

// Move makes b, which is r.Size() bytes long, a copy of r for another place. The copy still has to be sealed.
func Move(b []byte, r Record) Record {
	clear(b[copy(b, r[:r.end()]):])
	b[28] |= byte(Moved)
	return Record(b)
}

// SetVersion gives r a version before it is sealed.
func (r Record) SetVersion(v uint64) {
	if v > maxVersion {
		panic("BUG: a log has no versions left")
	}
	binary.LittleEndian.PutUint64(r[8:], v<<8|uint64(r[8]))
}

// Seal computes the checksums of r for the offset off of a segment with that seed.
func (r Record) Seal(seed uint32, off int) {
	sum := r.headSum(seed, off)
	binary.LittleEndian.PutUint32(r, sum)
	binary.LittleEndian.PutUint32(r[4:], crc32.Update(sum, castagnoli, r.Value()))
}

func (r Record) headSum(seed uint32, off int) uint32 {
	return crc32.Update(seed^uint32(off/Unit), castagnoli, r[8:r.head()])
}

// DecodeHead checks that b, which may be anything, begins with the header and the key of a record that was sealed for
// that place. If the record is Large, it checks the value, too. If b is too short to tell, the error is ErrShort.
func DecodeHead(b []byte, seed uint32, off int) (Record, error) {
	if len(b) < HeaderSize {
		return nil, ErrShort
	}
	r := Record(b)
	// The lengths may be wrong before the checksum is known to be right.
	if r.head() > len(b) {
		return nil, ErrShort
	}
	if got, want := r.headSum(seed, off), r.sum(); got != want {
		return nil, fmt.Errorf("CRC32C of header and key is %08x, want %08x", got, want)
	}
	switch k, f := r.Kind(), r.Flags(); {
	case k < Entry || k > Checkpoint || f&^known != 0 || r[30] != 0 || r[31] != 0:
		return nil, fmt.Errorf("they are a record of kind %d with flags %#x, which this format does not know", k, uint8(f))
	case r.head() > r.end():
		return nil, fmt.Errorf("a key of %d bytes does not fit into a body of %d", r.KeyLen(), r.Len())
	case f&Large != 0:
		return r.checkBody()
	}
	return r, nil
}

// Decode checks that b, which may be anything, begins with a record that was sealed for that place, and returns the
// record alone, without its padding. If b is too short to tell, the error is ErrShort.
func Decode(b []byte, seed uint32, off int) (Record, error) {
	r, err := DecodeHead(b, seed, off)
	if err != nil || r.Flags()&Large != 0 {
		return r, err
	}
	return r.checkBody()
}

// checkBody checks the value of r, whose header and key have been checked.
func (r Record) checkBody() (Record, error) {
	n := r.end()
	if n > len(r) {
		return nil, ErrShort
	}
	if got, want := crc32.Update(r.sum(), castagnoli, r.Value()), r.bodySum(); got != want {
		return nil, fmt.Errorf("CRC32C of the value is %08x, want %08x", got, want)
	}
	return r[:n:n], nil
}
