package bytemap

import (
	"bytes"
	"errors"
	"polder/far/heap"
	"polder/far/record"
	"testing"
)

// What an earlier or another heap has left in far memory is not taken for this one's, though the key, the hash and the
// size are the same; nor what this heap has written elsewhere.
func TestBytesOfElsewhereAreNotTaken(t *testing.T) {
	// filled makes a heap of which the first far segment begins with the entry of a key with a value.
	filled := func(t *testing.T, v string) (*testHeap, *Map) {
		h, m := newTinyHeap(t, heap.NewMemStore(tinySegment, 4000), tiny.Logs+64<<10)
		h.seed = 1
		for range 3 {
			mustSet(t, m, key(0), []byte(v))
			evacuateAll(t, h, m)
		}
		return h, m
	}
	where := func(m *Map) (s *heap.FarSegment, off int) {
		hs := m.hash(key(0))
		for p := range m.shard(hs).t.Matches(hs.Tag()) {
			w := *m.shard(hs).t.Word(p)
			return m.h.core.Far.Seg(w.Addr()), m.h.core.Far.Offset(w.Addr())
		}
		t.Fatal("the key is not in the index")
		return nil, 0
	}
	numberOf := func(m *Map) uint64 {
		s, _ := where(m)
		mem := s.Seg.(*heap.MemSegment)
		mem.Mu.Lock()
		defer mem.Mu.Unlock()
		header, err := record.DecodeSegment(mem.Mem)
		if err != nil {
			t.Fatal(err)
		}
		return header.Heap
	}
	// earlier is an older record of the key, in another segment.
	earlier := func(m *Map) []byte {
		now, _ := where(m)
		var found []byte
		m.h.core.Far.All(func(s *heap.FarSegment) {
			mem := s.Seg.(*heap.MemSegment)
			mem.Mu.Lock()
			defer mem.Mu.Unlock()
			for off := record.SegmentSize; off < len(mem.Mem); {
				r, err := record.Decode(mem.Mem[off:], s.Seed, off)
				if err != nil {
					break
				}
				if r.Owner() == m.id && string(r.Key()) == string(key(0)) && s != now {
					found = bytes.Clone(mem.Mem[off : off+r.Size()])
				}
				off += r.Size()
			}
		})
		return found
	}
	for name, foreign := range map[string]func(t *testing.T, m *Map) []byte{
		"heap": func(t *testing.T, m *Map) []byte {
			_, other := filled(t, "bad")
			s, off := where(other)
			if numberOf(m) == numberOf(other) {
				t.Error("two heaps have the same number")
			}
			return bytes.Clone(s.Seg.(*heap.MemSegment).Mem[off:][:64])
		},
		"segment": func(t *testing.T, m *Map) []byte { return earlier(m) },
	} {
		t.Run(name, func(t *testing.T) {
			h, m := filled(t, "old")
			mustSet(t, m, key(0), []byte("new"))
			evacuateAll(t, h, m)
			b := foreign(t, m)
			s, off := where(m)
			mem := s.Seg.(*heap.MemSegment)
			mem.Mu.Lock()
			if b == nil || bytes.Equal(mem.Mem[off:][:len(b)], b) {
				t.Fatal("there is nothing foreign")
			}
			copy(mem.Mem[off:], b)
			mem.Mu.Unlock()
			var ce *heap.CorruptError
			if e, err := m.Get(t.Context(), key(0), nil); !errors.As(err, &ce) {
				t.Errorf("Get: %q, %v, want a CorruptError", e.Value, err)
			}
		})
	}
}
