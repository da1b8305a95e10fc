package wire

import (
	"encoding/binary"

	"polder/verbs"
)

// MetadataSize is the size of an encoded Metadata.
const MetadataSize = 32

// Metadata is the answer to an allocation Hello of manager finemem, whose session secret is the service secret. It
// says where the metadata is that the client allocates by, and under which user ID.
//
//	 0  u64  address of the metadata region
//	 8  u32  its rkey, for the queue pair that was connected
//	12  u16  user id, from 1 to 2^14-1
//	14  u16  0
//	16  u64  bytes of memory
//	24  u64  bytes of the least allocation, a power of two
type Metadata struct {
	Addr  uint64
	Key   verbs.RKey
	User  uint16
	Bytes uint64
	Least uint64
}

const maxUser = 1<<14 - 1

// Append appends m's encoding to b.
func (m *Metadata) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, m.Addr)
	b = binary.LittleEndian.AppendUint32(b, uint32(m.Key))
	b = binary.LittleEndian.AppendUint16(b, m.User)
	b = binary.LittleEndian.AppendUint16(b, 0)
	b = binary.LittleEndian.AppendUint64(b, m.Bytes)
	return binary.LittleEndian.AppendUint64(b, m.Least)
}

// Decode sets m from b.
func (m *Metadata) Decode(b []byte) error {
	if len(b) != MetadataSize {
		return malformed("metadata described in %d bytes, want %d", len(b), MetadataSize)
	}
	le := binary.LittleEndian
	v := Metadata{
		Addr: le.Uint64(b), Key: verbs.RKey(le.Uint32(b[8:])), User: le.Uint16(b[12:]),
		Bytes: le.Uint64(b[16:]), Least: le.Uint64(b[24:]),
	}
	switch {
	case le.Uint16(b[14:]) != 0:
		return malformed("metadata with reserved bytes set")
	case v.User == 0 || v.User > maxUser:
		return malformed("metadata for user %d, want 1 to %d", v.User, maxUser)
	case v.Least == 0 || v.Least&(v.Least-1) != 0 || v.Bytes < v.Least || v.Addr%8 != 0 || v.Addr > 1<<63:
		return malformed("metadata at %#x of %d bytes by %d", v.Addr, v.Bytes, v.Least)
	}
	*m = v
	return nil
}
