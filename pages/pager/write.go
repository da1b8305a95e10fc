package pager

import "polder/pages"

// maxWrites is how many pages a client that writes to adjacent pages may write to without waiting again. Pages that
// it does not write to after all are written out in vain, so there are no more of them than are written out at a
// time.
const maxWrites = batch

// write lets the client write to a protected page. If the client has come to it by writing to adjacent pages one
// after another, the protection also ends for the resident pages that it will come to next, so that it need not wait
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
		f.state, f.used = dirty, true // all pages alike, so that adjacent ones are evicted together
	}
	m.must(m.fd.Protect(m.addr(first), uint64(last+1-first)*pages.Size, false))
}

// writable reports whether a page is resident, and its protection may end or has ended.
//
// Preconditions: m.mu is held.
func (m *mapping) writable(page int64) bool {
	if page < 0 || page >= int64(len(m.index)) {
		return false
	}
	at := m.index[page]
	return resident(at) && (m.frames[at-1].state == clean || m.frames[at-1].state == dirty)
}
