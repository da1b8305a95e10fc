package soft

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestQueueOfSegmentsKeepsItsOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q queue
		var want []uint32
		next := uint32(0)
		for range rapid.IntRange(0, 4000).Draw(t, "operations") {
			switch rapid.IntRange(0, 3).Draw(t, "operation") {
			case 0, 1:
				q.push(next)
				want = append(want, next)
				next++
			case 2:
				seg, ok := q.pop()
				if ok != (len(want) > 0) || ok && seg != want[0] {
					t.Fatalf("popped %d, %v, want the first of %v", seg, ok, want)
				}
				if ok {
					want = want[1:]
				}
			case 3:
				if len(want) > 0 {
					i := rapid.IntRange(0, len(want)-1).Draw(t, "at")
					if !q.remove(want[i]) {
						t.Fatalf("%d was not there to remove", want[i])
					}
					want = slices.Delete(want, i, i+1)
				}
			}
		}
		var got []uint32
		q.each(func(s uint32) bool { got = append(got, s); return true })
		if !slices.Equal(got, want) || q.len() != len(want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

func TestWordsKeepWhatTheyAreMadeOf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seg := rapid.Uint32Range(0, maxSegments-1).Draw(t, "segment")
		gen := rapid.Uint64().Draw(t, "generation") &^ 1
		off := rapid.Uint32Range(0, segGranules-1).Draw(t, "granule") * granule
		tag := rapid.Uint8().Draw(t, "tag")
		w := makeWord(seg, gen, off, tag)
		if w.segment() != seg || w.offset() != off || w.tag() != tag {
			t.Fatalf("%x: got %d, %d, %d, want %d, %d, %d", w, w.segment(), w.offset(), w.tag(), seg, off, tag)
		}
		if !w.alive(gen) {
			t.Fatalf("%x is not alive in its own generation %x", w, gen)
		}
		for _, other := range []uint64{gen + 1, gen + 2, gen - 1, gen - 2} {
			if w.alive(other) {
				t.Fatalf("%x of generation %x is alive in %x", w, gen, other)
			}
		}
		l := makeLive(gen)
		if l.gen()&genMask != gen>>1&genMask || l.objects() != 0 || l.granules() != 0 {
			t.Fatalf("a fresh account of %x: %x", gen, l)
		}
	})
}

func FuzzHeaderFits(f *testing.F) {
	f.Add(uint64(0), uint64(0), uint32(0))
	f.Add(^uint64(0), ^uint64(0), uint32(segGranules-1))
	f.Fuzz(func(t *testing.T, w0, w1 uint64, g uint32) {
		off := g % segGranules * granule
		h := parseHeader(w0, w1)
		if a, b := h.words(); a != w0 || b != w1 {
			t.Fatalf("%x %x became %x %x", w0, w1, a, b)
		}
		if h.fits(off) && (off+headerSize+h.size > SegmentSize || h.prefix()+uint32(h.klen) > h.size) {
			t.Fatalf("%+v at %d is said to fit", h, off)
		}
	})
}
