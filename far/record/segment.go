package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// SegmentSize is the size of a segment's header, in bytes.
const SegmentSize = 64

const (
	magic  = 0x72646c6f50<<8 | format // "Poldr", read from the top
	format = 1

	seeded = 48 // the seed is computed from so many bytes of the header
)

// Stream is what a segment is for.
type Stream uint8

const (
	Data  Stream = 1 // entries, objects and pieces
	Pages Stream = 2 // pages, apart from the others: they die much sooner

	Checkpoints Stream = 3 // a part of a checkpoint
)

// Hash is the function that makes hashes of keys.
type Hash uint8

// XXH3 is the upper 40 bits of XXH3's 64, with a seed that the heap keeps to itself.
const XXH3 Hash = 1

// Segment is what the header of a segment says.
type Segment struct {
	Heap     uint64
	Log      uint32
	Stream   Stream
	Hash     Hash
	Writer   uint16
	Number   uint64
	Epoch    uint64
	Position uint64
}

// Put writes the header to b and returns the segment's seed.
func (s *Segment) Put(b []byte) (seed uint32) {
	b = b[:SegmentSize]
	clear(b)
	binary.LittleEndian.PutUint64(b, magic)
	binary.LittleEndian.PutUint64(b[8:], s.Heap)
	binary.LittleEndian.PutUint32(b[16:], s.Log)
	b[20], b[21] = byte(s.Stream), byte(s.Hash)
	binary.LittleEndian.PutUint16(b[22:], s.Writer)
	binary.LittleEndian.PutUint64(b[24:], s.Number)
	binary.LittleEndian.PutUint64(b[32:], s.Epoch)
	binary.LittleEndian.PutUint64(b[40:], s.Position)
	binary.LittleEndian.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
	return crc32.Checksum(b[:seeded], castagnoli)
}

// Seed is the segment's seed.
func (s *Segment) Seed() uint32 {
	var b [SegmentSize]byte
	return s.Put(b[:])
}

// DecodeSegment reads the header that b, which may be anything, begins with.
func DecodeSegment(b []byte) (s Segment, err error) {
	if len(b) < SegmentSize {
		return s, ErrShort
	}
	b = b[:SegmentSize]
	if m := binary.LittleEndian.Uint64(b); m != magic {
		return s, fmt.Errorf("they are no segment of format %d: they begin with %#x, want %#x", format, m, uint64(magic))
	}
	if got, want := crc32.Checksum(b[:60], castagnoli), binary.LittleEndian.Uint32(b[60:]); got != want {
		return s, fmt.Errorf("CRC32C of the segment's header is %08x, want %08x", got, want)
	}
	s = Segment{
		Heap:     binary.LittleEndian.Uint64(b[8:]),
		Log:      binary.LittleEndian.Uint32(b[16:]),
		Stream:   Stream(b[20]),
		Hash:     Hash(b[21]),
		Writer:   binary.LittleEndian.Uint16(b[22:]),
		Number:   binary.LittleEndian.Uint64(b[24:]),
		Epoch:    binary.LittleEndian.Uint64(b[32:]),
		Position: binary.LittleEndian.Uint64(b[40:]),
	}
	for _, z := range b[seeded:60] {
		if z != 0 {
			return s, errReserved
		}
	}
	if s.Stream < Data || s.Stream > Checkpoints || s.Hash != XXH3 {
		return s, fmt.Errorf("they are a segment of stream %d with hash %d, want %d to %d, and %d", s.Stream, s.Hash, Data, Checkpoints, XXH3)
	}
	return s, nil
}

var (
	// ErrShort: there are fewer bytes than there have to be.
	ErrShort = errors.New("they are too few for a record")

	errReserved = errors.New("what should be zero is not")
)
