package pager

import "polder/pages"

const (
	maxWindow = 64 // pages that are read ahead at a time
	maxMarks  = 8
)

// marks are pages that were read ahead and are kept from the client, though they have frames: that one of them is touched
// says that a stream has come so far, and the next window is read while the client uses the rest of this one.
type marks struct {
	frames [maxMarks]uint32 // + 1, or 0
	next   int              // whose page the client gets if all are in use
	stands [maxMarks]int64  // for which page of its stream
	pages  [maxMarks][pages.Size]byte
}

// park keeps the page of a frame from the client. To its stream it stands for another page, if that is there already.
//
// Preconditions: m.mu is held; the frame is loading.
func (m *mapping) park(at uint32, page []byte, stands int64) {
	k := &m.marks
	i := k.next
	for n := range k.frames {
		if k.frames[n] == 0 {
			i = n
		}
	}
	if k.frames[i] != 0 {
		m.unpark(k.frames[i]-1, false)
		k.next = (i + 1) % maxMarks
	}
	k.frames[i] = at + 1
	k.stands[i] = stands
	copy(k.pages[i][:], page)
	m.frames[at].state = parked
	m.changed.Broadcast()
}

// unpark gives the client the page of a frame that was kept from it, and returns the page that it stands for.
//
// Preconditions: m.mu is held; the frame is parked.
func (m *mapping) unpark(at uint32, write bool) (stands int64) {
	i := m.forgetMark(at)
	m.frames[at].state = loading
	m.placeLocked([]uint32{at}, m.marks.pages[i][:], write)
	return m.marks.stands[i]
}

// forgetMark has a frame be no mark any more, and returns the number that it had.
//
// Preconditions: m.mu is held.
func (m *mapping) forgetMark(at uint32) int {
	for i, f := range m.marks.frames {
		if f == at+1 {
			m.marks.frames[i] = 0
			return i
		}
	}
	return -1
}

// readAhead reads those pages of a window that are not there, as far as frames are free.
func (m *mapping) readAhead(j job, b []byte) {
	var numbers [maxWindow]int64
	var frames [maxWindow]uint32
	w, n := j.ahead, 0
	m.mu.Lock()
	for i := range w.Count {
		page := w.First + i*w.Stride
		if page < 0 || page >= int64(len(m.index)) || len(m.free) <= m.low()/2 {
			break
		}
		if at := m.index[page]; resident(at) || at == poisoned || m.isLost(page) {
			continue
		}
		frames[n], _ = m.claim(page)
		numbers[n] = page
		n++
	}
	m.mu.Unlock()
	mark := -1
	if j.stream && n > 0 { // the last page that is read up to where the stream's next window is due
		for mark = 0; mark+1 < n && (w.Mark()-numbers[mark+1])*w.Stride >= 0; mark++ {
		}
	}
	for from := 0; from < n; from += pages.MaxRead {
		to := min(from+pages.MaxRead, n)
		if err := m.volume.ReadPages(m.ctx, numbers[from:to], b[from*pages.Size:to*pages.Size]); err != nil {
			m.abandon(frames[from:n])
			return
		}
		m.s.stats.ahead.Add(int64(to - from))
		if mark < from || mark >= to {
			m.placeAll(frames[from:to], b[from*pages.Size:to*pages.Size], false)
			continue
		}
		m.placeAll(frames[from:mark], b[from*pages.Size:mark*pages.Size], false)
		m.mu.Lock()
		if f := &m.frames[frames[mark]]; f.pins > 0 || f.want { // somebody waits for it
			m.placeLocked(frames[mark:mark+1], b[mark*pages.Size:(mark+1)*pages.Size], false)
		} else {
			m.park(frames[mark], b[mark*pages.Size:(mark+1)*pages.Size], w.Mark())
		}
		m.mu.Unlock()
		m.placeAll(frames[mark+1:to], b[(mark+1)*pages.Size:to*pages.Size], false)
	}
}

// follow has a stream go on that has come to a page.
//
// Preconditions: m.mu is held.
func (m *mapping) follow(page int64) {
	if w := m.streams.Access(page, 1); w.Count > 0 {
		select {
		case m.jobs <- job{ahead: w, stream: true}:
		default: // more important work waits
		}
	}
}
