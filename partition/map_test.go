package partition

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"polder/holder"
)

func id(n int) string { return fmt.Sprintf("%040x", n) }

func someMap() *Map {
	m := newMap(4)
	m.Epoch = math.MaxUint64
	m.Servers = []Server{{id(1), "10.0.0.1:6379", 7, false, -1, 0}, {id(2), "[fe80::1%eth0]:6379", 0, true, 2, 4}}
	m.Owner = []string{id(1), "", id(2), id(2)}
	m.Next = []string{"", "", id(1), ""}
	m.Load = []Level{idle, unknown, 100, math.MaxUint8}
	return m
}

func TestAMapIsReadAsItWasWritten(t *testing.T) {
	removing := newMap(2)
	removing.Removing = true
	for _, want := range []*Map{someMap(), newMap(1), removing} {
		b := want.Encode()
		got, err := Decode(b)
		if err != nil || !reflect.DeepEqual(got, want) || !IsMap(b) {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
		for i := range b {
			if _, err := Decode(b[:i]); err == nil {
				t.Errorf("the first %d bytes of a map are taken for one", i)
			}
		}
	}
	m := someMap()
	if s, ok := m.Server(id(2)); !ok || s != m.Servers[1] {
		t.Errorf("server 2 is %+v, %v, want %+v", s, ok, m.Servers[1])
	}
	if s, ok := m.Server(id(3)); ok {
		t.Errorf("server 3 is %+v, want none", s)
	}
}

// TestAMapWithoutLoadsIsRead, as a server wrote it that knew of none.
func TestAMapWithoutLoadsIsRead(t *testing.T) {
	want := someMap()
	want.Load = make([]Level, 4)
	want.Servers[0].Extra, want.Servers[1].Extra, want.Servers[1].Expects = 0, 0, 0
	got, err := Decode([]byte(`{"magic":"polder partitions","format":1,"epoch":18446744073709551615,"partitions":4,"servers":[` +
		`{"id":"` + id(1) + `","addr":"10.0.0.1:6379","beat":7},{"id":"` + id(2) + `","addr":"[fe80::1%eth0]:6379","leaving":true}],` +
		`"owner":[0,-1,1,1],"next":[-1,-1,0,-1]}`))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if b := string(want.Encode()); strings.Contains(b, "load") || strings.Contains(b, "extra") || strings.Contains(b, "expects") {
		t.Errorf("it is written as %s, want nothing of loads", b)
	}
}

func TestTheLargestMapFitsIntoARegister(t *testing.T) {
	m := newMap(MaxPartitions)
	m.Epoch = math.MaxUint64
	for i := range 64 {
		m.Servers = append(m.Servers, Server{id(i), strings.Repeat("h", maxAddr-6) + ":65535", math.MaxUint64, true, -MaxPartitions, MaxPartitions})
	}
	for p := range m.Owner {
		m.Owner[p], m.Next[p], m.Load[p] = id(63), id(62), math.MaxUint8
	}
	b := m.Encode()
	if got, err := Decode(b); len(b) > holder.MaxValue || err != nil || !reflect.DeepEqual(got, m) {
		t.Errorf("1024 partitions of 64 servers take %d bytes, want up to %d; they are read with error %v", len(b), holder.MaxValue, err)
	}
}

func TestWhatIsNoMapIsRefused(t *testing.T) {
	server := func(e *encoded, i int, f func(*encodedServer)) { f(&e.Servers[i]) }
	for name, spoil := range map[string]func(e *encoded){
		"another format":                 func(e *encoded) { e.Format = 2 },
		"no partitions":                  func(e *encoded) { e.Partitions, e.Owner, e.Next = 0, nil, nil },
		"too many partitions":            func(e *encoded) { e.Partitions, e.Owner, e.Next = 1025, make([]int, 1025), make([]int, 1025) },
		"a negative count":               func(e *encoded) { e.Partitions = -1 },
		"too few owners":                 func(e *encoded) { e.Owner = e.Owner[:3] },
		"too many next owners":           func(e *encoded) { e.Next = append(e.Next, nobody) },
		"too few loads":                  func(e *encoded) { e.Load = e.Load[:3] },
		"too much of a share":            func(e *encoded) { server(e, 0, func(s *encodedServer) { s.Extra = 5 }) },
		"too little of a share":          func(e *encoded) { server(e, 0, func(s *encodedServer) { s.Extra = -5 }) },
		"an expected partition too many": func(e *encoded) { server(e, 0, func(s *encodedServer) { s.Expects = 5 }) },
		"a negative expectation":         func(e *encoded) { server(e, 0, func(s *encodedServer) { s.Expects = -1 }) },
		"an unknown owner":               func(e *encoded) { e.Owner[0] = 2 },
		"a very unknown owner":           func(e *encoded) { e.Owner[0] = -2 },
		"an unknown next owner":          func(e *encoded) { e.Next[0] = 2 },
		"a next owner after nobody":      func(e *encoded) { e.Next[1] = 0 },
		"a next owner that is owner":     func(e *encoded) { e.Next[0] = 0 },
		"servers in disorder":            func(e *encoded) { e.Servers[0], e.Servers[1] = e.Servers[1], e.Servers[0] },
		"a server twice":                 func(e *encoded) { e.Servers[1] = e.Servers[0] },
		"a short ID":                     func(e *encoded) { server(e, 0, func(s *encodedServer) { s.ID = s.ID[1:] }) },
		"an ID in upper case":            func(e *encoded) { server(e, 1, func(s *encodedServer) { s.ID = strings.Repeat("A", 40) }) },
		"no port":                        func(e *encoded) { server(e, 0, func(s *encodedServer) { s.Addr = "10.0.0.1" }) },
		"port 0":                         func(e *encoded) { server(e, 0, func(s *encodedServer) { s.Addr = "10.0.0.1:0" }) },
		"no host":                        func(e *encoded) { server(e, 0, func(s *encodedServer) { s.Addr = ":6379" }) },
		"a line in the host":             func(e *encoded) { server(e, 0, func(s *encodedServer) { s.Addr = "a\nb:6379" }) },
		"a long host":                    func(e *encoded) { server(e, 0, func(s *encodedServer) { s.Addr = strings.Repeat("h", 300) + ":6379" }) },
	} {
		var e encoded
		if err := json.Unmarshal(someMap().Encode(), &e); err != nil {
			t.Fatal(err)
		}
		spoil(&e)
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(b); err == nil {
			t.Errorf("%s: %s is taken for a map", name, b)
		}
	}
	good := string(someMap().Encode())
	for name, b := range map[string]string{
		"something else":        "\x03PolMan",
		"something after":       good + "{}",
		"spaces without an end": good + strings.Repeat(" ", holder.MaxValue),
		"a second magic":        good[:len(good)-1] + `,"magic":"something else"}`,
	} {
		if _, err := Decode([]byte(b)); err == nil {
			t.Errorf("%s: it is taken for a map", name)
		}
	}
	if IsMap([]byte("\x03PolMan")) || IsMap(nil) {
		t.Error("something else is said to be a map")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(someMap().Encode())
	f.Add(newMap(1).Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Decode(b)
		if err != nil {
			return
		}
		again, err := Decode(m.Encode())
		if err != nil || !reflect.DeepEqual(m, again) {
			t.Fatalf("%+v became %+v, %v", m, again, err)
		}
		step(m, func(string) bool { return false }) // must not panic
	})
}
