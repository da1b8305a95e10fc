package entry

import "encoding/binary"

// Large stands for a value that is too long for one entry: it is the value in the entry of the key. The value itself
// is stored as pieces. These are entries of the same map that no user sees; only the Large's version and the pieces'
// numbers name them. Pieces are written before the key's entry and never change. So whoever has read a Large either
// reads the value that it stood for, or finds pieces missing and knows that there is a newer one.
type Large struct {
	Version uint64 // never 0, never used again
	Size    int
	Piece   int // size of every piece but the last
}

// LargeSize is the length of what Encode returns.
const LargeSize = 20

// LargeOf returns the Large that is the value of e.
func LargeOf(e Local) Large { return DecodeLarge(e.Value()) }

// DecodeLarge returns the Large that Encode has encoded as v, which has LargeSize bytes.
func DecodeLarge(v []byte) Large {
	return Large{
		Version: binary.LittleEndian.Uint64(v),
		Size:    int(binary.LittleEndian.Uint64(v[8:])),
		Piece:   int(binary.LittleEndian.Uint32(v[16:])),
	}
}

// Encode is l as the value of an entry.
func (l Large) Encode() []byte {
	v := make([]byte, 0, LargeSize)
	v = binary.LittleEndian.AppendUint64(v, l.Version)
	v = binary.LittleEndian.AppendUint64(v, uint64(l.Size))
	return binary.LittleEndian.AppendUint32(v, uint32(l.Piece))
}

// Count is the number of pieces.
func (l Large) Count() int { return (l.Size + l.Piece - 1) / l.Piece }

// PieceKeySize is the length of the key of a piece.
const PieceKeySize = 12

// Key is the key of piece i.
func (l Large) Key(i int) (k [PieceKeySize]byte) {
	binary.LittleEndian.PutUint64(k[:], l.Version)
	binary.LittleEndian.PutUint32(k[8:], uint32(i))
	return k
}
