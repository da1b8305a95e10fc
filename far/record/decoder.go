package record

import (
	"encoding/binary"
	"fmt"
)

// Decoder reads what binary.LittleEndian.AppendUint64 and the like have written. After an error it returns zeros.
type Decoder struct {
	B   []byte // what is left
	Err error
}

// Bytes returns the next n bytes, nil if there are fewer.
func (d *Decoder) Bytes(n int) []byte {
	if d.Err == nil && (n < 0 || n > len(d.B)) {
		d.Err = fmt.Errorf("%d bytes are left, want %d more", len(d.B), n)
	}
	if d.Err != nil {
		return nil
	}
	b := d.B[:n:n]
	d.B = d.B[n:]
	return b
}

// U64 returns the next integer of 8 bytes.
func (d *Decoder) U64() uint64 {
	if b := d.Bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// U32 returns the next integer of 4 bytes.
func (d *Decoder) U32() uint32 {
	if b := d.Bytes(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// U16 returns the next integer of 2 bytes.
func (d *Decoder) U16() uint16 {
	if b := d.Bytes(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}
