package hashes

import (
	"encoding/binary"
	"math/bits"

	"polder/far/record"
)

// BlockKeyLen is the length of the key of a block.
const BlockKeyLen = 8 + 4

// Large leads to the blocks of a hash: a linear hash table whose buckets are field lists, each stored under (id,
// bucket). An empty block is not stored. The lock of the hash's key guards the Large.
type Large struct {
	ID      uint64
	Count   int    // fields
	Bytes   int    // in all field lists, without their heads
	Buckets uint32 // at least 1, but see IsSmall; only grows
	Leads   int    // how many keys lead to it: 1, or 0 while a command takes it away; -1 if no key ever will
	Struck  Strikes
}

// IsSmall reports whether h is a small hash. A small hash has a Large only while fields are struck out of it.
func (h *Large) IsSmall() bool { return h.Buckets == 0 }

// Level returns how many bits of a hash all buckets use. The buckets below split, and those that were split off from
// them, use one more.
func (h *Large) Level() (level int, split uint32) {
	level = bits.Len32(h.Buckets) - 1
	return level, h.Buckets - 1<<level
}

// Bucket returns the block that has the fields with that hash.
func (h *Large) Bucket(hash uint32) uint32 {
	level, split := h.Level()
	b := hash & (1<<level - 1)
	if b < split {
		b = hash & (2<<level - 1)
	}
	return b
}

// Key returns the key of block b.
func (h *Large) Key(b uint32) []byte {
	k := make([]byte, BlockKeyLen)
	binary.BigEndian.PutUint64(k, h.ID)
	binary.BigEndian.PutUint32(k[8:], b)
	return k
}

// Interval returns the bucket b that has the hash Reverse32(pos), and the end of the bucket's interval. In the space
// of bit-reversed hashes, each bucket holds an interval. A split cuts an interval in two; no interval ever moves. So
// a cursor that goes through that space misses nothing.
func (h *Large) Interval(pos uint32) (b uint32, end uint64) {
	hash := bits.Reverse32(pos)
	b = h.Bucket(hash)
	level, split := h.Level()
	if b < split || b >= 1<<level {
		level++
	}
	width := uint64(1) << (32 - level)
	return b, uint64(pos)&^(width-1) + width
}

// Encode appends h, as
//
//	u64 id, u64 fields, u64 bytes, u32 buckets, u32 runs of strikes, and for each: u32 length, and so many u64
func (h *Large) Encode(b []byte) []byte {
	put32, put64 := binary.LittleEndian.AppendUint32, binary.LittleEndian.AppendUint64
	b = put64(put64(put64(b, h.ID), uint64(h.Count)), uint64(h.Bytes))
	b = put32(put32(b, h.Buckets), uint32(len(h.Struck)))
	for _, run := range h.Struck {
		b = put32(b, uint32(len(run)))
		for _, x := range run {
			b = put64(b, x)
		}
	}
	return b
}

// DecodeLarge takes from d what Encode has appended.
func DecodeLarge(d *record.Decoder) *Large {
	h := &Large{ID: d.U64(), Count: int(d.U64()), Bytes: int(d.U64()), Buckets: d.U32()}
	for range d.U32() {
		n := int(d.U32())
		b := d.Bytes(8 * n)
		if d.Err != nil {
			break
		}
		run := make([]uint64, n)
		for i := range run {
			run[i] = binary.LittleEndian.Uint64(b[8*i:])
		}
		h.Struck = append(h.Struck, run)
	}
	return h
}
