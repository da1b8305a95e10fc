package memnode

import (
	"testing"

	"polder/internal/arena"
)

// TestOnlyOnesOwnChunksAreRead: from the first byte to the last, before and after.
func TestOnlyOnesOwnChunksAreRead(t *testing.T) {
	const size, count = 4096, 8
	mem, err := arena.Anonymous(size*count, false)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	for i := range mem.Bytes() {
		mem.Bytes()[i] = byte(i / size)
	}
	own := [count]bool{2: true, 3: true, 5: true, 7: true}
	has := func(i uint32) bool { return own[i] }
	l := &lent{&memory{mem: mem, size: size}, count, func(i uint32) bool { return has(i) }}
	for _, c := range []struct {
		chunk uint32
		off   uint64
		n     int
		want  bool
	}{
		{2, 0, size, true}, {2, 0, 2 * size, true}, {2, size - 1, 2, true}, {2, size, size, true}, {7, size - 1, 1, true},
		{2, 0, 2*size + 1, false}, {3, size - 1, 2, false}, {1, size - 1, 2, false}, {1, size, 1, true}, {4, 0, 1, false},
		{2, 0, 4 * size, false}, {7, size - 1, 2, false}, {7, size, 1, false}, {8, 0, 1, false}, {1<<32 - 1, 0, 1, false},
		{2, 1 << 63, 1, false}, {2, 1<<64 - 1, 2, false}, {2, 0, 0, false},
	} {
		b := make([]byte, c.n)
		if got := l.Read(c.chunk, c.off, b); got != c.want {
			t.Errorf("%d bytes at %d of chunk %d: got %v, want %v", c.n, c.off, c.chunk, got, c.want)
		}
	}
	// It is given back, and lent to somebody else, while it is copied.
	looks := 0
	has = func(uint32) bool { looks++; return looks == 1 }
	if l.Read(2, 0, make([]byte, 1)) {
		t.Error("a chunk that was taken away while it was read was given out")
	}
}
