package bytemap

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"

	"polder/far/heap"
	"polder/far/index"
	"polder/far/record"
	"polder/internal/invariants"
)

// forge changes the far entries of m that it is given by fn and computes their
// checksums anew, as whoever lends the memory can.
func forge(t *testing.T, h *testHeap, m *Map, fn func(r record.Record) bool) (forged int) {
	t.Helper()
	for i := range m.shards() {
		sh := m.at(i)
		sh.mu.Lock()
		for p := range index.Place(len(sh.t.Buckets) * index.BucketEntries) {
			w := *sh.t.Word(p)
			if w == 0 || !w.Far() {
				continue
			}
			far, off := h.core.Far.Seg(w.Addr()), h.core.Far.Offset(w.Addr())
			s := far.Seg.(*heap.MemSegment)
			s.Mu.Lock()
			if r := record.Record(s.Mem[off:]); fn(r) {
				r.Seal(far.Seed, off)
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
			forge(t, h, m, func(r record.Record) bool {
				large := r.Flags()&record.Large != 0
				if large {
					fn(r.Value())
				}
				return large
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
	forge(t, h, m, func(r record.Record) bool {
		large := r.Flags()&record.Large != 0
		if large {
			binary.LittleEndian.PutUint64(r.Value(), 1000)
		}
		return large
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
	forge(t, h, m, func(r record.Record) bool {
		if !even(r.Key()) {
			return false
		}
		binary.LittleEndian.PutUint16(r[24:], 30000) // a map that there is not
		return true
	})
	for round := 0; round < 8 || round < 200 && h.Stats().Corrupt == 0; round++ {
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

// What is one map's is not taken for another's, nor for an object or a piece, whatever the checksums say.
func TestForgedRecordsAreRefused(t *testing.T) {
	for name, fn := range map[string]func(r record.Record){
		"of another map":       func(r record.Record) { r[24]++ },
		"of an object":         func(r record.Record) { r[8] = byte(record.Object) },
		"of a piece":           func(r record.Record) { r[8] = byte(record.Piece) },
		"with another hash":    func(r record.Record) { r[19] ^= 1 },
		"with a shorter value": func(r record.Record) { r[16] -= 32 },
		"with an expiry":       func(r record.Record) { r[28] |= byte(record.Expires) },
	} {
		t.Run(name, func(t *testing.T) {
			h, m := newTinyHeap(t, heap.NewMemStore(tinySegment, 4000), 0)
			mustSet(t, m, key(0), value(0, 200))
			evacuateAll(t, h, m)
			forge(t, h, m, func(r record.Record) bool { fn(r); return true })
			var ce *heap.CorruptError
			if e, err := m.Get(t.Context(), key(0), nil); !errors.As(err, &ce) {
				t.Errorf("Get: %q, %v, want a CorruptError", e.Value, err)
			}
		})
	}
}

// TestEntriesThatAreHiddenFromTheCleanerAreLost: whoever lends the memory can make the cleaner
// take what lives in a segment for something else. What it has not found there is lost then:
// its words say so, and not what is written in another segment's place for it; and of what
// others have nothing is lost.
func TestEntriesThatAreHiddenFromTheCleanerAreLost(t *testing.T) {
	if invariants.Enabled {
		return // one goroutine does much; "make plain" runs it
	}
	notWithLeaves(t)
	for name, fn := range map[string]func(r record.Record){
		"by another hash": func(r record.Record) { r[19] ^= 1 },
		"by their neighbours' size": func(r record.Record) {
			n := r.Size()
			if next := record.Record(r[n : n+record.HeaderSize]); len(r) >= 2*n && next.Size() == n {
				body := uint32(r[16]) | uint32(r[17])<<8 | uint32(r[18])<<16
				body += uint32(n)
				r[16], r[17], r[18] = byte(body), byte(body>>8), byte(body>>16)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, m := newTinyHeap(t, heap.NewMemStore(tinySegment, 400), 0)
			const keys = 3000
			fillTiny(t, m, keys)
			h.leavesLost.Store(true) // as it is once a leaf was lost: then counts are not relied on
			hidden := func(i int) bool { return i%4 == 0 }
			number := make(map[string]int)
			for i := range keys {
				number[string(key(i))] = i
			}
			forge(t, h, m, func(r record.Record) bool {
				if i, ok := number[string(r.Key())]; !ok || !hidden(i) {
					return false
				}
				fn(r)
				return true
			})
			for round := range 12 {
				for i := range keys {
					if i%4 >= 2 {
						mustSet(t, m, key(i), value(uint64(round+i), 1000))
					}
				}
			}
			if s := h.Stats(); s.CleanedSegments == 0 {
				t.Fatal("nothing was cleaned")
			}
			again := make(map[int]bool) // what was lost, and set
			for round := range 2 {      // the second time when some of the hidden ones were set
				for i := range keys {
					e, err := m.Get(t.Context(), key(i), nil)
					var le *heap.LostError
					var ce *heap.CorruptError
					switch {
					case i%4 < 2 && !again[i] && (errors.As(err, &le) || errors.As(err, &ce)):
						again[i] = true
						mustSet(t, m, key(i), value(uint64(i), 1000))
					case err != nil:
						t.Fatalf("round %d, key %d: %v", round, i, err)
					case len(e.Value) != 1000:
						t.Fatalf("round %d, key %d has %d bytes", round, i, len(e.Value))
					}
				}
			}
			if len(again) == 0 {
				t.Error("nothing was lost")
			}
		})
	}
}
