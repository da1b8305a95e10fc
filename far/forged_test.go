package far

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"

	"polder/far/heap"
)

// forge changes the far entries of m that it is given by fn and computes their
// checksums anew, as whoever lends the memory can.
func forge(t *testing.T, h *Heap, m *ByteMap, fn func(e heap.Record) bool) (forged int) {
	t.Helper()
	for i := range m.shards {
		sh := &m.shards[i]
		sh.mu.Lock()
		for p := range place(len(sh.t.buckets) * bucketEntries) {
			w := *sh.t.word(p)
			if w == 0 || !w.far() {
				continue
			}
			s := h.core.Far.Seg(w.addr()).Seg.(*heap.MemSegment)
			s.Mu.Lock()
			if e := heap.Record(s.Mem[h.core.Far.Offset(w.addr()):]); fn(e) {
				e.Seal(w.addr())
				forged++
			}
			s.Mu.Unlock()
		}
		sh.mu.Unlock()
	}
	if forged == 0 {
		t.Fatal("there was nothing to forge")
	}
	return forged
}

func TestForgedHeadsOfLargeValuesAreRefused(t *testing.T) {
	for name, fn := range map[string]func(v []byte){
		"size":      func(v []byte) { binary.LittleEndian.PutUint64(v[8:], 1<<62) },
		"negative":  func(v []byte) { binary.LittleEndian.PutUint64(v[8:], 1<<63) },
		"piece":     func(v []byte) { binary.LittleEndian.PutUint32(v[16:], 1) },
		"version 0": func(v []byte) { binary.LittleEndian.PutUint64(v, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			h, m := newTinyHeap(t, heap.NewMemStore(tinySegment, 4000), 0)
			mustSet(t, m, key(0), value(0, 30000))
			evacuateAll(t, h, m)
			forge(t, h, m, func(e heap.Record) bool {
				if e.Big() {
					fn(e.Value())
				}
				return e.Big()
			})
			var ce *heap.CorruptError
			if e, err := m.Get(context.Background(), key(0), nil); !errors.As(err, &ce) {
				t.Errorf("Get: %d bytes, %v, want a CorruptError", len(e.Value), err)
			}
			if _, size, err := m.Stat(context.Background(), key(0)); !errors.As(err, &ce) {
				t.Errorf("Stat: %d bytes, %v, want a CorruptError", size, err)
			}
		})
	}
}

func TestForgedVersionIsNoValue(t *testing.T) {
	h, m := newTinyHeap(t, heap.NewMemStore(tinySegment, 4000), 0)
	mustSet(t, m, key(0), value(0, 30000))
	evacuateAll(t, h, m)
	forge(t, h, m, func(e heap.Record) bool {
		if e.Big() {
			binary.LittleEndian.PutUint64(e.Value(), 1000)
		}
		return e.Big()
	})
	var ce *heap.CorruptError
	if e, err := m.Get(context.Background(), key(0), nil); !errors.As(err, &ce) {
		t.Errorf("Get: %d bytes, %v, want a CorruptError", len(e.Value), err)
	}
}

func TestCleanerRefusesForgedEntries(t *testing.T) {
	h, m := newTinyHeap(t, heap.NewMemStore(tinySegment, 4000), 0)
	fillTiny(t, m, 500)
	even := func(k []byte) bool { return k[len(k)-1]%2 == 0 }
	forge(t, h, m, func(e heap.Record) bool {
		if !even(e.Key()) {
			return false
		}
		binary.LittleEndian.PutUint16(e[8:], 60000) // a map that there is not
		return true
	})
	for round := range 8 {
		for i := range 500 {
			if !even(key(i)) {
				mustSet(t, m, key(i), value(uint64(round+i), 1000))
			}
		}
	}
	if s := h.Stats(); s.CleanedSegments == 0 || s.Corrupt == 0 {
		t.Errorf("%d segments were cleaned, and %d forged entries noticed, want some of each", s.CleanedSegments, s.Corrupt)
	}
}
