package far

import (
	"encoding/binary"
	"errors"
	"polder/far/heap"
	"polder/far/objects"
	"polder/far/record"
	"polder/internal/invariants"
	"testing"
	"time"
)

// TestObjectsThatAreHiddenFromTheCleanerAreLost : what lives and has been hidden from the
// cleaner by who lends the memory is lost, and says so; and of what others have nothing is lost.
func TestObjectsThatAreHiddenFromTheCleanerAreLost(t *testing.T) {
	if invariants.Enabled {
		return // one goroutine does much; "make plain" runs it
	}
	for name, fn := range map[string]func(r record.Record){
		"by another number": func(r record.Record) { r[19] ^= 0x40 },
		"by their neighbours' size": func(r record.Record) {
			n := r.Size()
			if len(r) >= 2*n && record.Record(r[n:n+record.HeaderSize]).Size() == n {
				binary.LittleEndian.PutUint16(r[16:], binary.LittleEndian.Uint16(r[16:])+uint16(n))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, m := openEarly(t, heap.NewMemStore(tinySegment, 1000), 28*int64(tiny.SegSize))
			loseLeaves(t, h, m)
			ps := fillFar(t, h, 10_000)
			forged := 0
			for i := 0; i < len(ps); i += 4 {
				w := objects.Load(ps[i].word())
				if !w.Far() {
					continue
				}
				far, off := h.core.Far.Seg(w.FarAddr()), h.core.Far.Offset(w.FarAddr())
				s := far.Seg.(*heap.MemSegment)
				s.Mu.Lock()
				r := record.Record(s.Mem[off:])
				fn(r)
				r.Seal(far.Seed, off)
				s.Mu.Unlock()
				forged++
			}
			if forged == 0 {
				t.Fatal("there was nothing to forge")
			}
			for round := range int64(6) {
				for i, p := range ps {
					if i%4 >= 2 {
						done(t, p.Store(t.Context(), point{int64(i), round}))
					}
				}
			}
			if s := h.Stats(); s.CleanedSegments == 0 {
				t.Fatal("nothing was cleaned")
			}
			lost := 0
			for i, p := range ps {
				v, err := p.Load(t.Context())
				var le *LostError
				var ce *heap.CorruptError
				switch {
				case i%4 < 2 && (errors.As(err, &le) || errors.As(err, &ce)):
					lost++
				case err != nil || v.X != int64(i):
					t.Fatalf("object %d: %v, %v", i, v, err)
				}
				p.Free()
			}
			if lost == 0 {
				t.Error("nothing was lost")
			}
		})
	}
}

// loseLeaves has h lose leaves of m: then counts are not relied on.
func loseLeaves(t *testing.T, h *Heap, m *ByteMap) {
	t.Helper()
	for range 20 { // leaves may be written elsewhere meanwhile
		growLeaves(t, h, m)
		h.core.Far.All(func(s *heap.FarSegment) {
			if mem := s.Seg.(*heap.MemSegment); s.HasPages() {
				mem.Mu.Lock()
				clear(mem.Mem[record.SegmentSize:])
				mem.Mu.Unlock()
			}
		})
		m.Clear()
		for range 200 {
			if h.maps.Leaks() {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	t.Fatal("the heap has not found out that leaves are lost")
}
