package pager

import "polder/pages"

const (
	maxWindow = 128 // pages that are read ahead at a time, at most
	maxMarks  = 8
	// overThere is over how many windows the next window of a stream may extend where some pages are resident
	// already.
	overThere = 8
)

// marks are pages that were read ahead and have frames, but are kept from the client. When the client touches one of
// them, its stream has come that far, and the next window is read while the client uses the rest of this one.
type marks struct {
	frames [maxMarks]uint32 // frame + 1, or 0
	next   int              // index of the mark whose page the client gets if all are in use
	pages  [maxMarks][pages.Size]byte
}

// park makes a frame's page a mark: the client does not get it until it touches it, or until its mark is needed for
// another page.
//
// Preconditions: m.mu is held; the frame is loading.
func (m *mapping) park(at uint32, page []byte) {
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
	copy(k.pages[i][:], page)
	m.frames[at].state = parked
}

// unpark gives the client the page of a parked frame.
//
// Preconditions: m.mu is held; the frame is parked.
func (m *mapping) unpark(at uint32, write bool) {
	i := m.forgetMark(at)
	m.frames[at].state = loading
	row := []uint32{at}
	m.placed(row, write, m.copyIn(row, m.marks.pages[i][:], write))
}

// forgetMark takes a frame out of the marks, and returns the index that it had there, or -1 if it was none.
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

// readAhead reads those pages of a window that are not resident, as long as frames are free or can be freed at once.
func (m *mapping) readAhead(j job, b []byte) {
	var numbers [maxWindow]int64
	var frames [maxWindow]uint32
	w, n, mark := j.ahead, 0, -1
	m.mu.Lock()
	page, most := w.First, w.Count
	if j.stream { // it passes the resident pages in no time
		most *= overThere
	}
	for i := int64(0); i < most && n < int(w.Count); i, page = i+1, page+w.Stride {
		if page < 0 || page >= int64(len(m.index)) || len(m.free) <= m.low()/2 && !m.makeRoom(int(w.Count)-n) {
			break
		}
		if at := m.index[page]; resident(at) || at == poisoned || m.isLost(page) {
			continue
		}
		frames[n], _ = m.claim(page)
		numbers[n] = page
		n++
	}
	if j.stream && n > 0 {
		mark = (n - 1) / 2
		m.streams.Reached(w, page-w.Stride, numbers[mark])
	}
	m.mu.Unlock()
	for from := 0; from < n; from += pages.MaxRead {
		to := min(from+pages.MaxRead, n)
		if err := m.volume.ReadPages(m.ctx, numbers[from:to], b[:(to-from)*pages.Size]); err != nil {
			m.abandon(frames[from:n])
			return
		}
		m.s.stats.ahead.Add(int64(to - from))
		if mark < from || mark >= to {
			m.place(frames[from:to], b, false)
			continue
		}
		m.place(frames[from:mark], b, false)
		m.placeMark(frames[mark], b[(mark-from)*pages.Size:(mark-from+1)*pages.Size])
		m.place(frames[mark+1:to], b[(mark+1-from)*pages.Size:], false)
	}
}

// placeMark parks the page at which the stream's next window is to be read. If the client has come to the page
// already, it gets the page, and the stream goes on.
func (m *mapping) placeMark(at uint32, page []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := &m.frames[at]
	if f.pins == 0 && !f.want {
		m.park(at, page)
		return
	}
	row := []uint32{at}
	m.placed(row, false, m.copyIn(row, page, false))
	m.follow(f.page)
}

// follow tells the streams that the client has come to a page, and has the next window read if it is due.
//
// Preconditions: m.mu is held.
func (m *mapping) follow(page int64) {
	if w := m.streams.Access(page, 1); w.Count > 0 && !m.over {
		select {
		case m.jobs <- job{ahead: w, stream: true}:
		default: // more important work waits
		}
	}
}
