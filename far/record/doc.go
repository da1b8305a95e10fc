// Package record is the bytes of far memory: the header of a segment and the records
// behind it. It encodes, decodes and checks them; it reads and writes nothing, and keeps no
// state. What it decodes may be anything: somebody else lends the memory.
//
// Whoever has the bytes of a segment needs nothing else to walk over what is in it:
//
//	s, err := record.DecodeSegment(mem)
//	for off := record.SegmentSize; err == nil; {
//		var r record.Record
//		if r, err = record.Decode(mem[off:], s.Seed(), off); err == nil {
//			off += r.Size()
//		}
//	}
//
// All integers are little-endian, and everything begins at a multiple of [Unit].
//
// # Segment
//
// A segment begins with 64 bytes that are written with its first records, and never again:
//
//	 0  u64  magic number, with the version of the format in its lowest byte
//	 8  u64  heap
//	16  u32  log of the heap
//	20  u8   stream: what the segment is for
//	21  u8   hash of keys
//	22  u16  writer
//	24  u64  number of the segment, as far addresses call it
//	32  u64  epoch of the owner that opened it
//	40  u64  position: a count of the segments that the log has opened, this one included, and of the parts of
//	         checkpoints
//	48  12 B zero
//	60  u32  CRC32C of the above
//
// The CRC32C of its first 48 bytes is the segment's seed, with which the checksums of all records in it begin. The
// number of a segment is used again when the segment is gone, a position in one epoch never: no two segments have the
// same seed but by chance.
//
// # Record
//
// A record is a header of 32 bytes, and a body, padded to a multiple of 16:
//
//	 0  u32  CRC32C of bytes 8 to 31, of the expiry and of the key
//	 4  u32  the same, continued over the value
//	 8  u64  version (56 bits, from bit 8), kind (8 bits)
//	16  u64  number (40 bits, from bit 24), length of the body (24 bits)
//	24  u16  owner
//	26  u16  length of the key
//	28  u8   flags
//	29  u8   tag, the user's
//	30  u16  zero
//	32       body: the expiry (i64, milliseconds since 1970), if the flags say that there is one; the
//	         key; the value
//
// Both checksums begin with the segment's seed and the offset of the record in the segment. So a record fails its
// check if it is of another heap, log or segment, of an earlier life of the segment, or of another place in it.
// Header and key can be checked, and read, without the value.
//
// Versions are counted by the log: when a changed record is written again, it gets a higher version. Of two records
// of the same owner, kind, number and key, the one with the higher version is right; if the versions are the same, so
// is the rest.
package record
