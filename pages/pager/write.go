package pager

import "polder/pages"

// maxWrites is how many pages a client that writes to pages in a row may write to before it waits again. Pages that
// it then does not write to are written out in vain: so there are no more of them than are written out at a time.
const maxWrites = batch

// write lets a client write to a protected page. If the client is writing to adjacent pages, one after another, write
// also ends the protection of the pages that come next, as far as they are there, so that the client need not wait
// for each. They count as written to.
//
// Preconditions: m.mu is held; the page's frame is clean or dirty.
func (m *mapping) write(page int64) {
	m.s.stats.writes.Add(1)
	first, last := page, page
	w := m.writes.Access(page, 1)
	if w.Count > 0 && (w.Stride == 1 || w.Stride == -1) {
		for end := w.First + w.Count*w.Stride; last+w.Stride != end && m.writable(last+w.Stride); {
			last += w.Stride
		}
		m.writes.Reached(w, last, last)
	}
	first, last = min(first, last), max(first, last)
	for i := first; i <= last; i++ {
		f := &m.frames[m.index[i]-1]
		f.state, f.used = dirty, true // the same for all, so that they are evicted together
	}
	m.must(m.fd.Protect(m.addr(first), uint64(last+1-first)*pages.Size, false))
}

// writable reports whether the protection of a page may end, or has.
//
// Preconditions: m.mu is held.
func (m *mapping) writable(page int64) bool {
	if page < 0 || page >= int64(len(m.index)) {
		return false
	}
	at := m.index[page]
	return resident(at) && (m.frames[at-1].state == clean || m.frames[at-1].state == dirty)
}
