package copies

import (
	"testing"

	"polder/far/store"
)

// TestAReadForWhichNoCopyIsLeftFails: a copy may go between the moment at which a second read looks whether there is one and the
// moment at which it begins. What other copies have is read all the same.
func TestAReadForWhichNoCopyIsLeftFails(t *testing.T) {
	var places []Place
	for _, name := range []string{"a", "b"} {
		places = append(places, Place{Name: name, Store: store.NewMemStore(64<<10, 10)})
	}
	s, err := Open(Config{Places: places})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var ops []store.ReadOp
	for range 3 {
		g, err := s.Alloc(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Write(t.Context(), []byte("here"), 0); err != nil {
			t.Fatal(err)
		}
		ops = append(ops, store.ReadOp{Seg: g, Buf: make([]byte, 4)})
	}
	all := uint64(1<<len(places) - 1)
	for _, tried := range [][]uint64{{all, all, all}, {all, 0, 1}, {0, all, 2}, {1, 2, all}} {
		for i := range ops {
			ops[i].Err = nil
			clear(ops[i].Buf)
		}
		if s.readRound(t.Context(), new(readCall), ops, tried, false) {
			t.Errorf("places left out %v: all was read", tried)
		}
		for i, op := range ops {
			if gone := tried[i] == all; gone != (op.Err == errNoCopy) || gone == (string(op.Buf) == "here") {
				t.Errorf("places left out %v: read %d: %q, %v", tried, i, op.Buf, op.Err)
			}
		}
	}
}
