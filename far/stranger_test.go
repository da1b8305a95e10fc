package far

import (
	"bytes"
	"fmt"
	"testing"

	"polder/far/heap"
	"polder/far/object"
	"polder/far/objects"
	"polder/far/record"
)

// spot is where a far record lies.
type spot struct {
	segment uint64
	off     int
}

// farMemory is a copy of the bytes of all far segments, by position in the log.
func farMemory(h *Heap) map[uint64][]byte {
	mem := map[uint64][]byte{}
	h.core.Far.All(func(s *heap.FarSegment) {
		m := s.Seg.(*heap.MemSegment)
		m.Mu.Lock()
		defer m.Mu.Unlock()
		if header, err := record.DecodeSegment(m.Mem); err == nil {
			mem[header.Position] = bytes.Clone(m.Mem)
		}
	})
	return mem
}

// strangersView is which records of some owners whoever has the bytes of all far segments, and nothing else, takes
// for live and which for dead.
func strangersView(t *testing.T, mem map[uint64][]byte, of func(owner uint16) bool) (live, dead map[spot]bool) {
	t.Helper()
	live, dead = map[spot]bool{}, map[spot]bool{}
	type newest struct {
		version  uint64
		position uint64 // of two with the same version, one is a copy of the other, which is gone
		at       spot
	}
	best := map[string]newest{}
	for position, b := range mem { // in any order
		s, err := record.DecodeSegment(b)
		if err != nil {
			t.Fatal(err)
		}
		for off := record.SegmentSize; off < len(b); {
			r, err := record.Decode(b[off:], s.Seed(), off)
			if err != nil {
				break
			}
			at := spot{s.Number, off}
			off += r.Size()
			if !of(r.Owner()) {
				continue
			}
			name := fmt.Sprint(r.Owner(), r.Kind(), r.Number(), r.Key())
			was, ok := best[name]
			switch {
			case ok && (was.version > r.Version() || was.version == r.Version() && was.position > position):
				dead[at] = true
				continue
			case ok && was.version == r.Version() && r.Flags()&record.Moved == 0:
				t.Errorf("%+v has the version of %+v, and is no copy", at, was.at)
			case ok:
				delete(live, was.at)
				dead[was.at] = true
			}
			best[name] = newest{r.Version(), position, at}
			live[at] = true
		}
	}
	return live, dead
}

// farSpots is where the far records of the map of a number, and of all objects, are according to the heap.
func farSpots(h *Heap, id uint16) map[spot]bool {
	spots := map[spot]bool{}
	add := func(addr uint64) { spots[spot{addr / h.core.Far.Units, h.core.Far.Offset(addr)}] = true }
	h.core.Far.All(func(s *heap.FarSegment) {
		m := s.Seg.(*heap.MemSegment)
		m.Mu.Lock()
		b := bytes.Clone(m.Mem)
		m.Mu.Unlock()
		for off := record.SegmentSize; off < len(b); {
			r, err := record.Decode(b[off:], s.Seed, off)
			if err != nil {
				break
			}
			addr := s.ID*h.core.Far.Units + uint64(off)/record.Unit
			if k := r.Kind(); r.Owner() == id && (k == record.Entry || k == record.Piece) && h.maps.Owner(id).Live(r, addr) {
				add(addr)
			}
			off += r.Size()
		}
	})
	h.objects.All(func(_ uint64, w objects.Word) {
		if w.Far() {
			add(w.FarAddr())
		} else if w.Local() {
			if far := object.TailFar(*h.core.Logs.Object(w.Addr()).Tail()); far != 0 {
				add(far)
			}
		}
	})
	return spots
}

// Records can be read by a stranger: package record and the bytes of far memory tell exactly which records
// live, of entries, of large values and their pieces, and of objects.
func TestAStrangerFindsWhatLivesInFarMemory(t *testing.T) {
	for _, x := range []struct {
		name     string
		segments int // that the store has
		rounds   int
		clean    bool
	}{{"written", 4000, 1, false}, {"written and cleaned", 31, 20, true}} { // which is little more than what lives
		t.Run(x.name, func(t *testing.T) {
			h, m := newTinyHeap(t, heap.NewMemStore(tinySegment, x.segments), tiny.Logs+256<<10)
			ctx, other := t.Context(), h.NewByteMap("ballast")
			for i := range 400 {
				mustSet(t, m, key(i), value(uint64(i), 100+i))
			}
			mustSet(t, m, []byte("large"), value(1, 30000))
			ps := fillFar(t, h, 4000)
			evacuateBy(t, m, other)
			for round := range x.rounds {
				for i := range 100 {
					mustSet(t, m, key(4*i), value(uint64(round+i), 150))
					done(t, ps[i].Store(ctx, point{int64(round), 7}))
				}
				evacuateBy(t, m, other)
			}
			for _, p := range ps[:100] {
				for j := 0; p.IsLocal(); j++ {
					for _, ol := range []*heap.OpenLog{&h.core.Logs.Objects[0], h.core.Logs.Hot(heap.Scoped)} {
						if j%1000 == 0 { // it may be in there
							ol.Mu.Lock()
							h.core.Logs.Seal(ol)
							ol.Mu.Unlock()
						}
					}
					mustSet(t, other, key(j%600), value(0, 1000))
					if j == 100_000 {
						t.Fatal("an object stays local")
					}
				}
			}
			h.core.Cancel() // nothing moves from here on
			h.core.Wg.Wait()

			const first = 0 // the number of m
			// The other maps were there to fill local memory, and have newer entries there.
			live, dead := strangersView(t, farMemory(h), func(owner uint16) bool { return owner == first || owner >= objects.FirstOwner })
			want := farSpots(h, first)
			for at := range want {
				if !live[at] {
					t.Errorf("%+v lives, and the stranger took it for dead (%v) or did not find it", at, dead[at])
				}
			}
			for at := range live {
				if !want[at] {
					t.Errorf("%+v is dead, and the stranger took it for live", at)
				}
			}
			if len(dead) == 0 || len(live) < 4000 {
				t.Errorf("the test tested nothing: %d records live, %d are dead", len(live), len(dead))
			}
			if cleaned := h.Stats().CleanedSegments; x.clean && cleaned == 0 {
				st := h.Stats()
				t.Errorf("nothing was cleaned: %d far segments, %d bytes live, %d dead", st.FarSegments, st.FarLive, st.FarDead)
			}
		})
	}
}
