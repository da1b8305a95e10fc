package rebind

import "polder/internal/arena"

// A zeroer makes freed memory read as zero. It gives the pages of large places back to the operating system. Of small
// places it clears only the pages that somebody has written: most of what a manager with small chunks lends is never
// touched, and clearing a page that does not exist would make it exist.
type zeroer struct {
	mem    *arena.Mapping
	pinned bool           // the device keeps using the pages that it has pinned: none are given back
	pages  *arena.Pagemap // nil: everything counts as touched

	// The stretch of memory whose pages have been looked at since the last reset.
	from, to int // bytes; none if they are equal
	touched  []bool
}

const (
	// zeroInPlace is the size of the largest places that stay populated when they are freed.
	zeroInPlace = 64 << 10
	// zeroWindow is how many bytes' pages the zeroer looks up together.
	zeroWindow = 2 << 20
)

func newZeroer(mem *arena.Mapping, pinned bool) zeroer {
	z := zeroer{mem: mem, pinned: pinned, touched: make([]bool, zeroWindow/arena.PageSize)}
	if pinned {
		return z // pinned pages all exist
	}
	if p, err := arena.OpenPagemap(); err == nil {
		z.pages = p // without it, zeroing is only slower
	}
	return z
}

// reset forgets which pages were touched: more pages may have been touched since.
func (z *zeroer) reset() { z.from, z.to = 0, 0 }

// zero makes n bytes from off on read as zero.
//
// Preconditions: nobody has been able to reach these bytes since the last reset.
func (z *zeroer) zero(off, n int) {
	if !z.pinned && n > zeroInPlace && n%arena.PageSize == 0 && z.mem.Punch(off, n) == nil {
		return
	}
	mem := z.mem.Bytes()
	for end := off + n; off < end; {
		next := min(end, (off/arena.PageSize+1)*arena.PageSize)
		if z.dirty(off) {
			clear(mem[off:next])
		}
		off = next
	}
}

// dirty reports whether the page at off may have content.
func (z *zeroer) dirty(off int) bool {
	if z.pages == nil {
		return true
	}
	if off < z.from || off >= z.to {
		mem := z.mem.Bytes()
		from := off &^ (zeroWindow - 1)
		to := min(from+zeroWindow, len(mem))
		n := (to - from + arena.PageSize - 1) / arena.PageSize
		if z.pages.Touched(mem[from:], z.touched[:n]) != nil {
			return true
		}
		z.from, z.to = from, to
	}
	return z.touched[(off-z.from)/arena.PageSize]
}

func (z *zeroer) close() error {
	if z.pages == nil {
		return nil
	}
	return z.pages.Close()
}
