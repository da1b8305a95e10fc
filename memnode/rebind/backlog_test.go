package rebind

import (
	"bytes"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"polder/internal/arena"
)

// TestABacklogIsAQueueOfDifferentSections: the oldest first, each once, however long
// it has been in use.
func TestABacklogIsAQueueOfDifferentSections(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const sections = 4
		b := newBacklog(sections)
		var want []uint32
		left := uint64(0)
		for range rapid.IntRange(0, 100).Draw(t, "operations") {
			if i := rapid.Uint32Range(0, 2*sections-1).Draw(t, "section"); i < sections {
				b.enqueue(i)
				if !slices.Contains(want, i) {
					want = append(want, i)
				}
			} else if len(want) > 0 {
				if got := b.first(); got != want[0] {
					t.Fatalf("got %d, want %d", got, want[0])
				}
				b.dequeue()
				want = want[1:]
				left++
			}
			if b.empty() != (len(want) == 0) || b.done != left || b.end() != left+uint64(len(want)) {
				t.Fatalf("empty is %v, done %d, end %d, with %d left and %v in it", b.empty(), b.done, b.end(), left, want)
			}
			if len(b.queue) > 2*sections {
				t.Fatalf("a queue of %d sections has grown to %d", sections, len(b.queue))
			}
		}
	})
}

// TestZeroingTouchesOnlyWhatIsDirty: everything reads as zero, pages without content
// get none, and large places lose theirs.
func TestZeroingTouchesOnlyWhatIsDirty(t *testing.T) {
	for _, known := range []bool{true, false} {
		const size = 2*zeroWindow + 3*zeroInPlace
		mem, err := arena.Anonymous(size, false)
		if err != nil {
			t.Fatal(err)
		}
		pages, err := arena.OpenPagemap()
		if err != nil {
			t.Fatal(err)
		}
		touched := func(off, n int) (count int) {
			page := make([]bool, n/arena.PageSize)
			if err := pages.Touched(mem.Bytes()[off:], page); err != nil {
				t.Fatal(err)
			}
			for _, v := range page {
				if v {
					count++
				}
			}
			return count
		}
		z := newZeroer(mem, false)
		if !known { // as where there is no page map
			if err := z.close(); err != nil {
				t.Fatal(err)
			}
			z.pages = nil
		}
		b := mem.Bytes()
		const small, large, last = zeroWindow - zeroInPlace/2, zeroWindow + zeroInPlace, size - zeroInPlace
		for _, off := range []int{small + 1, small + zeroInPlace - 1, large, last, size - 1} {
			b[off] = 1
		}
		b[small-1], b[large-1] = 7, 7 // others'
		z.reset()
		z.zero(small, zeroInPlace)
		z.zero(large, 2*zeroInPlace)
		z.zero(last, zeroInPlace)
		if known {
			if got := touched(small, zeroInPlace); got != 2 {
				t.Errorf("%d pages of a small place have content, want the 2 that had", got)
			}
		}
		if got := touched(large, 2*zeroInPlace); got != 0 {
			t.Errorf("%d pages of a large place have content", got)
		}
		if b[small-1] != 7 || b[large-1] != 7 {
			t.Error("a neighbour was zeroed")
		}
		b[small-1], b[large-1] = 0, 0
		if !bytes.Equal(b, make([]byte, size)) {
			t.Error("not all is zero")
		}

		// What is written later is seen after a reset.
		b[small] = 1
		z.reset()
		z.zero(small, 8)
		if b[small] != 0 {
			t.Error("a page that was touched after another reset is not zeroed")
		}
		for _, err := range []error{z.close(), pages.Close(), mem.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	}
}
