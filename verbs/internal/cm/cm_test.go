package cm

import (
	"bytes"
	"errors"
	"testing"

	"polder/verbs"
)

func TestMalformedMessagesAreRefused(t *testing.T) {
	for name, m := range map[string]struct {
		t    Type
		body []byte
	}{
		"no type":                      {0, Append(nil, 1, 2, nil)},
		"a type that there is not":     {Reject + 1, Append(nil, 1, 2, nil)},
		"too short":                    {Connect, make([]byte, HeaderSize-1)},
		"too much private data":        {Accept, Append(nil, 1, 2, make([]byte, verbs.MaxPrivateData+1))},
		"too long a reason":            {Reject, Append(nil, 1, 0, make([]byte, MaxReason+1))},
		"a queue pair of 25 bits":      {Connect, Append(nil, 1, 1<<24, nil)},
		"a rejection and a queue pair": {Reject, Append(nil, 1, 2, nil)},
	} {
		if _, _, _, err := Decode(m.t, m.body); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: got %v, want ErrMalformed", name, err)
		}
	}
}

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
