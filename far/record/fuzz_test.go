package record_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"testing"

	"polder/far/record"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal makes the checksums of b, whatever else is in it, those of a record at off, as whoever lends the
// memory can. It reports whether there is room for what b claims to have.
func seal(b []byte, seed uint32, off int) bool {
	if len(b) < record.HeaderSize {
		return false
	}
	body := int(binary.LittleEndian.Uint64(b[16:]) & record.MaxBody)
	head := record.HeaderSize + int(binary.LittleEndian.Uint16(b[26:]))
	if record.Flags(b[28])&record.Expires != 0 {
		head += record.ExpirySize
	}
	if head > len(b) {
		return false
	}
	sum := crc32.Update(seed^uint32(off/record.Unit), castagnoli, b[8:head])
	binary.LittleEndian.PutUint32(b, sum)
	if end := record.HeaderSize + body; head <= end && end <= len(b) {
		binary.LittleEndian.PutUint32(b[4:], crc32.Update(sum, castagnoli, b[head:end]))
	}
	return true
}

// Far bytes may be anything. What is taken is within them, and comes out the same when it is
// written again; bytes whose checksums somebody has made right are no exception.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(entry()), false)
	f.Add([]byte(entry()), true)
	f.Add([]byte(sealed(record.Header{Kind: record.Object, Number: 1, Owner: 0xffff}, nil)), true)
	f.Add([]byte(sealed(record.Header{Kind: record.Entry, Flags: record.Large | record.Moved, KeyLen: 1}, []byte("kvalue"))), true)
	f.Add([]byte(sealed(record.Header{Kind: record.Piece, KeyLen: 12}, make([]byte, 100))), true)
	f.Add([]byte{}, true)
	f.Add(bytes.Repeat([]byte{0xff}, 100), true)
	seed := segment.Seed()
	f.Fuzz(func(t *testing.T, b []byte, forged bool) {
		b = bytes.Clone(b)
		if forged {
			seal(b, seed, place)
		}
		head, herr := record.DecodeHead(b, seed, place)
		if herr == nil {
			head.Key()
			head.Expiry()
			if head.Flags()&record.Large != 0 {
				head.Value()
			}
		}
		r, err := record.Decode(b, seed, place)
		if err != nil {
			return
		}
		if herr != nil {
			t.Fatalf("%q is right, but its head: %v", b, herr)
		}
		if len(r.Key())+len(r.Value()) > r.Len() || len(r) != record.HeaderSize+r.Len() || r.Size() < len(r) {
			t.Fatalf("decoded %q from %q", r, b)
		}
		again := record.Put(make([]byte, r.Size()), record.Header{
			Kind: r.Kind(), Flags: r.Flags(), Tag: r.Tag(), Owner: r.Owner(), Number: r.Number(), KeyLen: r.KeyLen(),
		}, r.Body())
		again.SetVersion(r.Version())
		again.Seal(seed, place)
		if !bytes.Equal(again[:len(r)], r) {
			t.Fatalf("got %q, want %q", again, r)
		}
	})
}

func FuzzDecodeSegment(f *testing.F) {
	b := make([]byte, record.SegmentSize)
	segment.Put(b)
	f.Add(b, false)
	f.Add(b, true)
	f.Add(b[:10], false)
	f.Fuzz(func(t *testing.T, b []byte, forged bool) {
		b = bytes.Clone(b)
		if forged && len(b) >= record.SegmentSize {
			binary.LittleEndian.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
		}
		s, err := record.DecodeSegment(b)
		if err != nil {
			return
		}
		again := make([]byte, record.SegmentSize)
		s.Put(again)
		if !bytes.Equal(again, b[:record.SegmentSize]) {
			t.Fatalf("got %q, want %q", again, b)
		}
	})
}
