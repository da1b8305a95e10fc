package arrayscan

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"

	"pgregory.net/rapid"
)

// local is an array in this process's memory. Before is called before every
// operation.
type local struct {
	mem    []byte
	before func()
}

func (l *local) Read(_ context.Context, off uint64, n int) ([]byte, error) {
	l.before()
	return append([]byte(nil), l.mem[off:][:n]...), nil
}

func (l *local) CompareAndSwap(_ context.Context, ops []Swap) ([]uint64, error) {
	l.before()
	var was []uint64
	for _, op := range ops {
		w := binary.LittleEndian.Uint64(l.mem[op.Off:])
		if was = append(was, w); w == op.Old {
			binary.LittleEndian.PutUint64(l.mem[op.Off:], op.New)
		}
	}
	return was, nil
}

// TestBlocksAreNobodyElses: whatever another client does between two operations, a
// block has one owner, lies at a multiple of its size, and all of it can be had.
func TestBlocksAreNobodyElses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const words, piece = 256, 64
		l := &local{mem: make([]byte, 8*words)}
		owner := make([]uint64, words)
		take := func(who uint64, at, class int) {
			if at%(1<<class) != 0 {
				t.Fatalf("class %d at %d", class, at)
			}
			for i := at; i < at+1<<class; i++ {
				if owner[i] != 0 {
					t.Fatalf("chunk %d is given to %d, and %d has it", i, who, owner[i])
				}
				owner[i] = who
			}
		}
		one, two := New(l, 1, words, piece), New(&local{mem: l.mem, before: func() {}}, 2, words, piece)
		l.before = func() {
			if !rapid.Bool().Draw(t, "the other is faster") {
				return
			}
			class := rapid.IntRange(0, 3).Draw(t, "its class")
			if at, err := two.Alloc(t.Context(), class); err == nil {
				take(2, at, class)
			}
		}
		for {
			class := rapid.IntRange(0, 6).Draw(t, "class")
			at, err := one.Alloc(t.Context(), class)
			if errors.Is(err, ErrFull) {
				if class == 0 {
					break
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			take(1, at, class)
			if rapid.Bool().Draw(t, "free") {
				clear(owner[at : at+1<<class])
				if err := one.Free(t.Context(), at, class); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i, who := range owner {
			if got := binary.LittleEndian.Uint64(l.mem[8*i:]); who == 0 || got != who {
				t.Fatalf("chunk %d is %d's, its word says %d", i, who, got)
			}
		}
	})
}
