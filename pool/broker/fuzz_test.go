package broker

import (
	"bytes"
	"reflect"
	"testing"

	"polder/verbs"
)

func FuzzRequest(f *testing.F) {
	for _, r := range []request{
		{op: opAttach}, {op: opAlloc, class: 18, node: 63, session: 1<<64 - 1},
		{op: opFree, class: 3, first: 8, session: 7},
	} {
		b := make([]byte, requestSize)
		r.encode(b)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var r request
		if r.decode(b) != nil {
			return
		}
		again := make([]byte, requestSize)
		if r.encode(again); !bytes.Equal(again, b) {
			t.Errorf("%x became %x", b, again)
		}
	})
}

func FuzzAnswer(f *testing.F) {
	for _, a := range []answer{
		{}, {status: statusBad}, {status: statusOK, first: 5, addr: 1 << 40, keys: []verbs.RKey{1, 2, 3}},
		{keys: make([]verbs.RKey, maxKeys)},
	} {
		f.Add(a.append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var a, again answer
		if a.decode(b) != nil {
			return
		}
		encoded := a.append(nil)
		if !bytes.HasPrefix(b, encoded) {
			t.Errorf("%x became %x", b, encoded)
		}
		if err := again.decode(encoded); err != nil || !reflect.DeepEqual(a, again) {
			t.Errorf("got %+v, %v, want %+v", again, err, a)
		}
	})
}

func FuzzHello(f *testing.F) {
	f.Add(appendWelcome(nil, []string{"127.0.0.1:7070", "[::1]:7070"}))
	f.Add(appendRefusal(nil, "user 1 is not served"))
	f.Add(appendHello(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		addrs, err := decodeWelcome(b)
		if err != nil {
			return
		}
		if again := appendWelcome(nil, addrs); !bytes.Equal(again, b) {
			t.Errorf("%x became %x", b, again)
		}
	})
}
