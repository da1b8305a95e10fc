package saved

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

const (
	// Version is the version of the format.
	Version = 1
	magic   = 0x70616e536c6f50<<8 | Version // "PolSnap"

	// HeaderSize is how long the header of a part is.
	HeaderSize = 32
	// MaxBody is the longest body. A record of a segment fits, with the header of the segment.
	MaxBody = 32 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Kind says what a part has.
type Kind uint32

// The kinds of parts, see the package's page.
const (
	Start Kind = 1 + iota
	Segment
	Checkpoint
	Root
	End
)

// Part is a part of a snapshot.
type Part struct {
	Kind Kind
	Of   uint64
	Off  uint64
	Body []byte
}

// Size is how long the part is.
func (p *Part) Size() int { return HeaderSize + len(p.Body) }

// AppendMagic appends to b the magic number with which a file begins.
func AppendMagic(b []byte) []byte { return binary.LittleEndian.AppendUint64(b, magic) }

// AppendStart appends the first part of a snapshot of a heap.
func AppendStart(b []byte, heap uint64, segmentSize int) []byte {
	return Append(b, Part{Kind: Start, Of: heap, Body: binary.LittleEndian.AppendUint64(nil, uint64(segmentSize))})
}

// Append appends a part to b.
func Append(b []byte, p Part) []byte {
	at := len(b)
	put32, put64 := binary.LittleEndian.AppendUint32, binary.LittleEndian.AppendUint64
	b = put32(put32(b, 0), crc32.Checksum(p.Body, castagnoli))
	b = put32(put32(b, uint32(p.Kind)), uint32(len(p.Body)))
	b = put64(put64(b, p.Of), p.Off)
	binary.LittleEndian.PutUint32(b[at:], crc32.Checksum(b[at+4:], castagnoli))
	return append(b, p.Body...)
}

// decodeHeader checks the header of a part. It returns how long the part's body is, and the CRC32C of the body.
func decodeHeader(b []byte) (p Part, n int, sum uint32, err error) {
	if got, want := crc32.Checksum(b[4:HeaderSize], castagnoli), binary.LittleEndian.Uint32(b); got != want {
		return p, 0, 0, fmt.Errorf("CRC32C of its header is %08x, want %08x", got, want)
	}
	p = Part{Kind: Kind(binary.LittleEndian.Uint32(b[8:])), Of: binary.LittleEndian.Uint64(b[16:]), Off: binary.LittleEndian.Uint64(b[24:])}
	length := binary.LittleEndian.Uint32(b[12:])
	switch {
	case p.Kind < Start || p.Kind > End:
		return p, 0, 0, fmt.Errorf("it is of kind %d, which this format does not know", p.Kind)
	case length > MaxBody:
		return p, 0, 0, fmt.Errorf("it has %d bytes, at most %d", length, MaxBody)
	}
	return p, int(length), binary.LittleEndian.Uint32(b[4:]), nil
}

// Decode takes the first part from b, which has to be whole, and returns the rest of b.
func Decode(b []byte) (p Part, rest []byte, err error) {
	if len(b) < HeaderSize {
		return p, b, fmt.Errorf("%d bytes are no part", len(b))
	}
	p, n, sum, err := decodeHeader(b)
	if err != nil {
		return p, b, err
	}
	if len(b) < HeaderSize+n {
		return p, b, fmt.Errorf("%d bytes of a part, want %d", len(b), HeaderSize+n)
	}
	p.Body = b[HeaderSize : HeaderSize+n : HeaderSize+n]
	if got := crc32.Checksum(p.Body, castagnoli); got != sum {
		return p, b, fmt.Errorf("CRC32C of its body is %08x, want %08x", got, sum)
	}
	return p, b[HeaderSize+n:], nil
}
