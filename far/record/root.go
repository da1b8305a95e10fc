package record

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

const (
	// MaxRoot is the most bytes of a root.
	MaxRoot = 64 << 10

	// rootMagic is "PolRoot" and a version. It is the version of the format of everything that is read through a
	// root, which is more than records. In version 1, leaves had words and tags in full.
	rootMagic = 0x746f6f526c6f50<<8 | 2
)

// Root says where a checkpoint is, and has the secrets that whoever lends far memory is not told.
type Root struct {
	Heap   uint64
	Epoch  uint64 // of the owner: whoever opens the heap raises it
	Seed   uint64 // of the hash of keys
	Key    [16]byte
	Length uint64            // of the checkpoint, in bytes; 0 if there is none yet
	Sum    [sha256.Size]byte // of the checkpoint, which may lie where anybody can write
	Parts  []Part            // what it consists of, in order
}

// Part is a segment that has a part of a checkpoint.
type Part struct {
	Name     string
	Epoch    uint64
	Position uint64
	Length   uint64 // of the part
}

// Encode returns the root as bytes.
func (r *Root) Encode() []byte {
	b := binary.LittleEndian.AppendUint64(nil, rootMagic)
	for _, v := range []uint64{r.Heap, r.Epoch, r.Seed} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	b = append(b, r.Key[:]...)
	b = binary.LittleEndian.AppendUint64(b, r.Length)
	b = append(b, r.Sum[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(r.Parts)))
	for _, p := range r.Parts {
		b = binary.LittleEndian.AppendUint64(b, p.Epoch)
		b = binary.LittleEndian.AppendUint64(b, p.Position)
		b = binary.LittleEndian.AppendUint64(b, p.Length)
		b = binary.LittleEndian.AppendUint16(b, uint16(len(p.Name)))
		b = append(b, p.Name...)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// DecodeRoot reads a root, which may be anything.
func DecodeRoot(b []byte) (*Root, error) {
	if len(b) < 4 || len(b) > MaxRoot {
		return nil, fmt.Errorf("a root of %d bytes, want 4 to %d", len(b), MaxRoot)
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if got := crc32.Checksum(body, castagnoli); got != sum {
		return nil, fmt.Errorf("CRC32C of the root is %08x, want %08x", got, sum)
	}
	d := &Decoder{B: body}
	switch m := d.U64(); {
	case m>>8 != rootMagic>>8:
		return nil, fmt.Errorf("the root begins with %#x, want %#x: it is none", m, uint64(rootMagic))
	case m != rootMagic:
		return nil, fmt.Errorf("the heap has format %d, and this program knows format %d: copy it with the program that wrote it (polder heap save), and load the copy",
			m&0xff, rootMagic&0xff)
	}
	r := &Root{Heap: d.U64(), Epoch: d.U64(), Seed: d.U64()}
	copy(r.Key[:], d.Bytes(len(r.Key)))
	r.Length = d.U64()
	copy(r.Sum[:], d.Bytes(len(r.Sum)))
	n := int(d.U32())
	for range n {
		p := Part{Epoch: d.U64(), Position: d.U64(), Length: d.U64()}
		p.Name = string(d.Bytes(int(d.U16())))
		if d.Err != nil {
			break
		}
		r.Parts = append(r.Parts, p)
	}
	if d.Err == nil && len(d.B) > 0 {
		d.Err = fmt.Errorf("%d bytes follow it", len(d.B))
	}
	return r, d.Err
}
