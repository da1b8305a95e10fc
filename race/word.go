package race

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"polder/pool/malloc"
)

// A word is what a slot holds: from the top, 8 bits of fingerprint, 8 of length, the two
// bits below, and the block, or the number of a vacant word.
type word uint64

const (
	// frozen: the subtable is being split, and the slot does not change any more.
	frozen word = 1 << (malloc.RefBits + 1)
	// tentative: a Put is looking whether the key is in another slot as well.
	tentative word = 1 << malloc.RefBits

	refMask = tentative - 1
)

func (w word) vacant() bool      { return w.length() == 0 }
func (w word) frozen() bool      { return w&frozen != 0 }
func (w word) tentative() bool   { return w&tentative != 0 }
func (w word) fingerprint() byte { return byte(w >> 56) }
func (w word) length() byte      { return byte(w >> 48) }
func (w word) ref() malloc.Ref   { return malloc.Ref(w & refMask) }

// is reports whether w is v, frozen or not.
func (w word) is(v word) bool { return (w^v)&^frozen == 0 }

func newWord(fingerprint byte, length byte, r malloc.Ref) word {
	return word(fingerprint)<<56 | word(length)<<48 | word(r)
}

// Lengths in a word: multiples of 64 bytes up to 127 of them, then steps of 256 bytes. They are finer than
// internal/sizeclass's, because all of a length is read. The last length stands for a block that has a chunk of its
// own, whatever its size.
const (
	step, largeStep = 64, 256
	steps           = 127
	ownChunk        = 255
	maxStepped      = step*steps + (malloc.MaxPaged-step*steps)/largeStep*largeStep
)

// lengthOf is the length in a word, and the size in bytes of the block, for n bytes.
func lengthOf(n int) (length byte, size int) {
	switch {
	case n <= step*steps:
		length = byte((n + step - 1) / step)
	case n <= maxStepped:
		length = byte(steps + (n-step*steps+largeStep-1)/largeStep)
	default:
		return ownChunk, max(n, malloc.MaxPaged+1)
	}
	return length, sizeOf(length)
}

// sizeOf is the size of a block by its length in the word.
func sizeOf(length byte) int {
	if length <= steps {
		return step * int(length)
	}
	return step*steps + largeStep*(int(length)-steps)
}

// A hash places a key.
type hash xxh3.Uint128

func (h hash) fingerprint() byte { return byte(h.Hi >> 56) }

// pairs are the offsets of a key's two pairs of buckets in a subtable of n groups, at least 2.
func (h hash) pairs(n uint32) [2]int64 {
	first := uint32(h.Lo>>32) % n
	second := (first + 1 + uint32(h.Hi)%(n-1)) % n
	return [2]int64{
		int64(first)*groupSize + int64(h.Hi>>32&1)*bucketSize,
		int64(second)*groupSize + int64(h.Hi>>33&1)*bucketSize,
	}
}

// A block: the low half of the key's hash, by which a subtable splits; the lengths of key
// and value, 4 bytes each; key; value. All little-endian.
const headerSize = 16

func encode(b []byte, h hash, key, value []byte) {
	le := binary.LittleEndian
	le.PutUint64(b, h.Lo)
	le.PutUint32(b[8:], uint32(len(key)))
	le.PutUint32(b[12:], uint32(len(value)))
	n := copy(b[headerSize:], key)
	clear(b[headerSize+n+copy(b[headerSize+n:], value):])
}

// decode returns the key and value of a block, if its lengths fit into it.
func decode(b []byte) (key, value []byte, ok bool) {
	le := binary.LittleEndian
	k, v := int64(le.Uint32(b[8:])), int64(le.Uint32(b[12:]))
	if b = b[headerSize:]; k+v > int64(len(b)) {
		return nil, nil, false
	}
	return b[:k], b[k : k+v], true
}
