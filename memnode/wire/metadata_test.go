package wire

import (
	"bytes"
	"errors"
	"testing"
)

func FuzzMetadata(f *testing.F) {
	good := Metadata{Addr: 1 << 32, Key: 0x1234, User: 7, Bytes: 1 << 30, Least: 4096}
	f.Add(good.Append(nil))
	bad := good
	bad.User = 1 << 14
	f.Add(bad.Append(nil))
	bad = good
	bad.Least = 4095
	f.Add(bad.Append(nil))
	f.Add([]byte("short"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m Metadata
		if err := m.Decode(b); err != nil {
			if !errors.Is(err, ErrMalformed) || m != (Metadata{}) {
				t.Fatalf("%v, %+v", err, m)
			}
			return
		}
		if !bytes.Equal(m.Append(nil), b) {
			t.Fatalf("%x decodes as %+v, which is another encoding", b, m)
		}
	})
}
