package wire

import (
	"bytes"
	"testing"
)

func TestFieldsComeBackAsTheyWere(t *testing.T) {
	loc := Location{Found: true, Region: 1, Offset: 2, Length: 3, Page: 4, Word: 5, Expires: 6}
	msg := Writer(nil).U8(1).U16(2).U32(3).U64(4).String("five").AppendLocation(loc).AppendLocation(Location{}).Raw([]byte("rest"))
	r := Read(msg)
	if a, b, c, d, e := r.U8(), r.U16(), r.U32(), r.U64(), string(r.Bytes()); a != 1 || b != 2 || c != 3 || d != 4 || e != "five" {
		t.Fatalf("got %d %d %d %d %q, want 1 2 3 4 five", a, b, c, d, e)
	}
	if got := r.Location(); got != loc {
		t.Fatalf("got %+v, want %+v", got, loc)
	}
	if got := r.Location(); got.Found {
		t.Fatalf("got %+v, want nothing found", got)
	}
	if !r.More() || r.Err() == nil {
		t.Fatal("something is left over, and it is not told")
	}
	if got := string(r.Rest()); got != "rest" || r.Err() != nil {
		t.Fatalf("got %q, %v, want rest", got, r.Err())
	}
	if got := r.U64(); got != 0 || r.Err() == nil {
		t.Fatalf("behind the end: got %d, %v, want 0 and an error", got, r.Err())
	}
}

// FuzzReader takes fields from arbitrary bytes, in an order that they say
// themselves: nothing may be read outside of them.
func FuzzReader(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7}, []byte{1, 2, 3, 4, 5, 6})
	f.Add([]byte(Writer(nil).String("key").U64(7)), []byte{4, 3})
	f.Fuzz(func(t *testing.T, msg, order []byte) {
		r := Read(msg)
		taken := 0
		for _, what := range order {
			switch what % 7 {
			case 0:
				r.U8()
			case 1:
				r.U16()
			case 2:
				r.U32()
			case 3:
				r.U64()
			case 4:
				b := r.Bytes()
				taken += len(b)
				if !bytes.Contains(msg, b) {
					t.Fatalf("%q is not part of the message", b)
				}
			case 5:
				r.Location()
			case 6:
				if b := r.Take(int(int8(what))); len(b) > len(msg) {
					t.Fatalf("took %d of %d bytes", len(b), len(msg))
				}
			}
		}
		if taken > len(msg) {
			t.Fatalf("took %d of %d bytes", taken, len(msg))
		}
		rest := r.Rest()
		if r.Err() == nil && !bytes.HasSuffix(msg, rest) {
			t.Fatal("the rest is not the end of the message")
		}
	})
}
