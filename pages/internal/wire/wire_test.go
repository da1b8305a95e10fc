package wire

import (
	"bytes"
	"testing"
)

// FuzzMessages: what can be read of a message is what it was made of.
func FuzzMessages(f *testing.F) {
	pin := Request{ID: 1, Op: OpPin, Flags: Write, Off: 4096, N: 1}
	f.Add(Attach{Size: 1 << 30, Local: 1 << 20, Base: 1 << 40, Resume: true, Pins: []Request{pin, pin}}.Append(nil))
	f.Add(Attach{Size: 1 << 30, Local: 1 << 20, Base: 1 << 40, Name: "results", Pins: []Request{pin}}.Append(nil))
	f.Add(Attach{Remove: true, Name: "results"}.Append(nil))
	f.Add(pin.Append(nil))
	f.Add(Reply{ID: 7, Status: Lost, Text: "it was lost"}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, err := ParseAttach(b); err == nil && !bytes.Equal(a.Append(nil), b) {
			t.Errorf("%x is read as %+v", b, a)
		}
		if r, err := ParseRequest(b); err == nil && !bytes.Equal(r.Append(nil), b) {
			t.Errorf("%x is read as %+v", b, r)
		}
		if r, err := ParseReply(b); err == nil && !bytes.Equal(r.Append(nil), b) {
			t.Errorf("%x is read as %+v", b, r)
		}
	})
}
