package record_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"

	"polder/far/record"
)

// segment is the header of the segment that the tests' records are in.
var segment = record.Segment{
	Heap: 0x1122334455667788, Log: 3, Stream: record.Data, Hash: record.XXH3, Writer: 4,
	Number: 5, Epoch: 6, Position: 7,
}

const place = 4096 // of the tests' record in it

// sealed makes a record of version 9 for a place in segment.
func sealed(h record.Header, body []byte) record.Record {
	r := record.Put(make([]byte, record.Size(len(body))), h, body)
	r.SetVersion(9)
	r.Seal(segment.Seed(), place)
	return r
}

// entry is a sealed record that makes use of everything that there is.
func entry() record.Record {
	return sealed(record.Header{
		Kind: record.Entry, Flags: record.Expires, Tag: 7, Owner: 42, Number: 0x123456789a, KeyLen: 8,
	}, []byte("\x39\x30\x00\x00\x00\x00\x00\x00some keyand its value"))
}

func Example() {
	// Two records in a segment, as far memory has them.
	mem := make([]byte, 1024)
	s := record.Segment{Heap: 1, Stream: record.Data, Hash: record.XXH3, Number: 1}
	seed := s.Put(mem)
	at := record.SegmentSize
	for i, kv := range []string{"onefirst", "twosecond"} {
		r := record.Put(mem[at:at+record.Size(len(kv))], record.Header{Kind: record.Entry, KeyLen: 3}, []byte(kv))
		r.SetVersion(uint64(i + 1))
		r.Seal(seed, at)
		at += r.Size()
	}

	// A stranger walks over them.
	found, err := record.DecodeSegment(mem)
	for off := record.SegmentSize; err == nil; {
		var r record.Record
		if r, err = record.Decode(mem[off:], found.Seed(), off); err == nil {
			fmt.Printf("%d: version %d, %s = %s\n", off, r.Version(), r.Key(), r.Value())
			off += r.Size()
		}
	}
	// Output:
	// 64: version 1, one = first
	// 112: version 2, two = second
}

func TestARecordSaysWhatItWasGiven(t *testing.T) {
	r, err := record.Decode(entry(), segment.Seed(), place)
	if err != nil {
		t.Fatal(err)
	}
	if r.Kind() != record.Entry || r.Flags() != record.Expires || r.Tag() != 7 || r.Owner() != 42 || r.Number() != 0x123456789a ||
		r.Version() != 9 || r.Expiry() != 12345 || string(r.Key()) != "some key" || string(r.Value()) != "and its value" || r.Len() != 29 {
		t.Errorf("got %q: kind %d, flags %d, tag %d, owner %d, number %#x, version %d, expiry %d, key %q, value %q",
			r, r.Kind(), r.Flags(), r.Tag(), r.Owner(), r.Number(), r.Version(), r.Expiry(), r.Key(), r.Value())
	}
	bare, err := record.Decode(sealed(record.Header{Kind: record.Object, Number: 1<<record.NumberBits - 1}, nil), segment.Seed(), place)
	if err != nil || bare.Expiry() != 0 || len(bare.Key()) != 0 || len(bare.Value()) != 0 || bare.Number() != 1<<record.NumberBits-1 {
		t.Errorf("of an empty object: got %q, %v", bare, err)
	}
}

// The formats are written down in the package's comment, and nobody changes them unawares.
func TestTheFormatsAreWhatTheyWere(t *testing.T) {
	head := make([]byte, record.SegmentSize)
	segment.Put(head)
	for _, x := range []struct {
		what, want string
		got        []byte
	}{
		{"segment", "01506f6c6472000088776655443322110300000001010400050000000000000006000000000000000700000000000000000000000000000000000000dbf62f61", head},
		{"record", "155a8d0eebf101e301090000000000001d00009a785634122a000800020700003930000000000000736f6d65206b6579616e64206974732076616c7565000000", entry()},
	} {
		if got := hex.EncodeToString(x.got); got != x.want {
			t.Errorf("%s:\ngot  %s\nwant %s", x.what, got, x.want)
		}
	}
}

func TestSizes(t *testing.T) {
	for _, x := range []struct{ body, want int }{{0, 32}, {16, 48}, {64, 96}, {16 + 64, 112}, {4096, 4128}, {1, 48}, {17, 64}} {
		if got := record.Size(x.body); got != x.want {
			t.Errorf("a body of %d bytes takes %d, want %d", x.body, got, x.want)
		}
	}
}

func TestEveryDamagedBitIsNoticed(t *testing.T) {
	good := entry()
	head := record.HeaderSize + record.ExpirySize + len("some key")
	for i := range 8 * (record.HeaderSize + good.Len()) {
		bad := bytes.Clone(good)
		bad[i/8] ^= 1 << (i % 8)
		if _, err := record.Decode(bad, segment.Seed(), place); err == nil {
			t.Errorf("bit %d may be damaged", i)
		}
		ofHead := i < 8*head && (i/8 < 4 || i/8 >= 8)
		if _, err := record.DecodeHead(bad, segment.Seed(), place); err == nil && ofHead {
			t.Errorf("bit %d may be damaged in the head", i)
		}
	}
	if _, err := record.DecodeHead(good[:head], segment.Seed(), place); err != nil {
		t.Errorf("the head alone: %v", err)
	}
	for n := range head {
		if _, err := record.DecodeHead(good[:n], segment.Seed(), place); err != record.ErrShort {
			t.Errorf("%d bytes of the head: got %v, want %v", n, err, record.ErrShort)
		}
	}
	for n := range record.HeaderSize + good.Len() {
		if _, err := record.Decode(good[:n], segment.Seed(), place); err != record.ErrShort {
			t.Errorf("%d bytes: got %v, want %v", n, err, record.ErrShort)
		}
	}
}

// A value that stands for another is checked with its key.
func TestTheHeadOfALargeValueIsCheckedWhole(t *testing.T) {
	r := sealed(record.Header{Kind: record.Entry, Flags: record.Large, KeyLen: 3}, []byte("keyhead of a large value"))
	if got, err := record.DecodeHead(r, segment.Seed(), place); err != nil || string(got.Value()) != "head of a large value" {
		t.Errorf("got %q, %v", got, err)
	}
	r[len(r)-12] ^= 1
	if _, err := record.DecodeHead(r, segment.Seed(), place); err == nil {
		t.Error("its value may be damaged")
	}
}

// Bytes that were right somewhere else are not right here.
func TestARecordOfAnotherPlaceIsRefused(t *testing.T) {
	r := entry()
	for what, change := range map[string]func(s *record.Segment){
		"heap":                          func(s *record.Segment) { s.Heap++ },
		"log":                           func(s *record.Segment) { s.Log++ },
		"writer":                        func(s *record.Segment) { s.Writer++ },
		"segment":                       func(s *record.Segment) { s.Number++ },
		"epoch":                         func(s *record.Segment) { s.Epoch++ },
		"life of the segment's number":  func(s *record.Segment) { s.Position++ },
		"stream":                        func(s *record.Segment) { s.Stream++ },
		"segment, with another's place": func(s *record.Segment) { s.Number, s.Position = s.Number+1, s.Position+1 },
	} {
		other := segment
		change(&other)
		for _, decode := range []func([]byte, uint32, int) (record.Record, error){record.Decode, record.DecodeHead} {
			if got, err := decode(r, other.Seed(), place); err == nil {
				t.Errorf("a record of another %s was taken: %q", what, got)
			}
		}
	}
	for _, off := range []int{0, record.Unit, place - record.Unit, place + record.Unit, 2 * place} {
		if got, err := record.Decode(r, segment.Seed(), off); err == nil {
			t.Errorf("a record of offset %d was taken at %d: %q", place, off, got)
		}
	}
}

func TestAMovedRecordIsTheSameElsewhere(t *testing.T) {
	r, err := record.Decode(entry(), segment.Seed(), place)
	if err != nil {
		t.Fatal(err)
	}
	other := segment
	other.Number++
	room := bytes.Repeat([]byte{0xff}, r.Size())
	record.Move(room, r).Seal(other.Seed(), 64)
	m, err := record.Decode(room, other.Seed(), 64)
	if err != nil || m.Flags() != r.Flags()|record.Moved || m.Version() != r.Version() || !bytes.Equal(m.Body(), r.Body()) {
		t.Errorf("got %q, %v, want %q with another flag", m, err, r)
	}
	if pad := room[len(m):]; !bytes.Equal(pad, make([]byte, len(pad))) {
		t.Errorf("behind it was left %q", pad)
	}
}

func TestASegmentSaysWhatItWasGiven(t *testing.T) {
	b := bytes.Repeat([]byte{0xff}, 100)
	seed := segment.Put(b)
	got, err := record.DecodeSegment(b)
	if err != nil || got != segment || got.Seed() != seed {
		t.Errorf("got %+v with seed %#x, %v, want %+v with %#x", got, got.Seed(), err, segment, seed)
	}
	for i := range 8 * record.SegmentSize {
		bad := bytes.Clone(b)
		bad[i/8] ^= 1 << (i % 8)
		if s, err := record.DecodeSegment(bad); err == nil {
			t.Errorf("bit %d may be damaged: %+v", i, s)
		}
	}
	for n := range record.SegmentSize {
		if _, err := record.DecodeSegment(b[:n]); err != record.ErrShort {
			t.Errorf("%d bytes: got %v, want %v", n, err, record.ErrShort)
		}
	}
}

// What this format does not know is refused, though its checksums are right.
func TestWhatIsNotKnownIsRefused(t *testing.T) {
	for what, change := range map[string]func(r record.Record){
		"kind 0":                      func(r record.Record) { r[8] = 0 },
		"a kind to come":              func(r record.Record) { r[8] = byte(record.Checkpoint) + 1 },
		"a flag to come":              func(r record.Record) { r[28] |= 0x80 },
		"a bit that is zero":          func(r record.Record) { r[31] = 1 },
		"a key longer than the body":  func(r record.Record) { r[16] = 15; r[26] = 8 },
		"no body for the expiry, key": func(r record.Record) { r[16] = 7; r[26] = 0 },
	} {
		r := entry()
		change(r)
		seal(r, segment.Seed(), place)
		if got, err := record.Decode(r, segment.Seed(), place); err == nil {
			t.Errorf("%s: got %q", what, got)
		}
	}
	for what, s := range map[string]record.Segment{
		"stream": {Stream: record.Checkpoints + 1, Hash: record.XXH3},
		"hash":   {Stream: record.Data, Hash: record.XXH3 + 1},
	} {
		b := make([]byte, record.SegmentSize)
		s.Put(b)
		if got, err := record.DecodeSegment(b); err == nil {
			t.Errorf("an unknown %s: got %+v", what, got)
		}
	}
}

// A heap of another format is named as such, whatever else of its root would be wrong.
func TestARootOfAnotherFormatSaysWhatIsToBeDone(t *testing.T) {
	b := (&record.Root{Heap: 1}).Encode()
	if _, err := record.DecodeRoot(b); err != nil {
		t.Fatal(err)
	}
	b[0]--
	binary.LittleEndian.PutUint32(b[len(b)-4:], crc32.Checksum(b[:len(b)-4], crc32.MakeTable(crc32.Castagnoli)))
	if _, err := record.DecodeRoot(b); err == nil || !strings.Contains(err.Error(), "has format 1, and this program knows format 2: copy it") {
		t.Errorf("got %v", err)
	}
	b[1]++
	binary.LittleEndian.PutUint32(b[len(b)-4:], crc32.Checksum(b[:len(b)-4], crc32.MakeTable(crc32.Castagnoli)))
	if _, err := record.DecodeRoot(b); err == nil || !strings.Contains(err.Error(), "it is none") {
		t.Errorf("of what is no root: got %v", err)
	}
}
