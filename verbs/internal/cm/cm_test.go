package cm

import (
	"bytes"
	"testing"

	"polder/verbs"
)

func FuzzDecodeCM(f *testing.F) {
	f.Add(uint8(Connect), Append(nil, 7, 0x123456, []byte("private")))
	f.Add(uint8(Accept), Append(nil, 1<<32-1, 1<<24-1, make([]byte, verbs.MaxPrivateData)))
	f.Add(uint8(Reject), Append(nil, 0, 0, []byte("no")))
	f.Add(uint8(Reject), Append(nil, 0, 1, nil))
	f.Add(uint8(Connect), []byte("short"))
	f.Fuzz(func(t *testing.T, typ uint8, body []byte) {
		id, qpn, data, err := Decode(Type(typ), body)
		if err != nil {
			return
		}
		if qpn >= 1<<24 || len(data) > MaxReason {
			t.Errorf("accepted queue pair %d with %d bytes", qpn, len(data))
		}
		if again := Append(nil, id, qpn, data); !bytes.Equal(again, body) {
			t.Errorf("%x decodes to what encodes to %x", body, again)
		}
	})
}
