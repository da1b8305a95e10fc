package pager

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"polder/pages"
)

// batch is how many dirty pages are evicted at a time.
const batch = 32

// low is how many frames the evictor keeps free: at fewer it begins, and goes on until there
// are enough.
func (m *mapping) low() int { return min(len(m.frames)/8, 4*batch) }

func (m *mapping) enough() int { return m.low() + min(m.low(), batch) }

// poke has the evictor look whether frames are needed.
func (m *mapping) poke() {
	select {
	case m.evict <- struct{}{}:
	default:
	}
}

// evictor keeps frames free until the mapping ends.
func (m *mapping) evictor() {
	var victims [batch]uint32
	b := make([]byte, batch*pages.Size)
	for {
		select {
		case <-m.evict:
		case <-m.ctx.Done():
			return
		}
		for m.ctx.Err() == nil {
			m.mu.Lock()
			short := len(m.free) < m.enough()
			n, freed := 0, 0
			if short {
				n, freed = m.choose(&victims)
			}
			m.mu.Unlock()
			if n > 0 {
				freed += m.writeOut(victims[:n], b)
			}
			if freed == 0 {
				break
			}
		}
	}
}

// choose has the policy say which pages go. It drops those that are clean, and protects those
// that are dirty, which it returns, ordered by page.
//
// Preconditions: m.mu is held.
func (m *mapping) choose(victims *[batch]uint32) (n, freed int) {
	var drops [batch]uint32
	gone := 0
	for tries := 2 * (len(m.frames) - len(m.free)); tries > 0 && n < batch && freed < batch; tries-- {
		at := m.policy.next()
		f := &m.frames[at]
		switch {
		case f.pins > 0 || f.state != clean && f.state != dirty && f.state != parked:
			continue
		case f.used:
			f.used = false
			continue
		case f.state == parked: // its page is not in the memory
			m.forgetMark(at)
			m.release(at, m.policy.gone(at))
			gone++
		case f.state == clean:
			f.state = evicting
			drops[freed] = at
			freed++
		default:
			f.state, f.want = evicting, false
			victims[n] = at
			n++
		}
		m.policy.chose()
	}
	m.drop(drops[:freed])
	m.byPage(victims[:n])
	for rest := victims[:n]; len(rest) > 0; {
		row := m.row(rest)
		rest = rest[len(row):]
		m.must(m.fd.Protect(m.addr(m.frames[row[0]].page), uint64(len(row))*pages.Size, true))
	}
	return n, freed + gone
}

// byPage orders frames by their pages.
//
// Preconditions: m.mu is held.
func (m *mapping) byPage(frames []uint32) {
	slices.SortFunc(frames, func(a, b uint32) int { return cmp.Compare(m.frames[a].page, m.frames[b].page) })
}

// row is the first of frames, as far as their pages are in a row.
func (m *mapping) row(frames []uint32) []uint32 {
	n := 1
	for n < len(frames) && m.frames[frames[n]].page == m.frames[frames[n-1]].page+1 {
		n++
	}
	return frames[:n]
}

// drop takes pages that the volume has out of the memory, those that are in a row at once.
//
// Preconditions: m.mu is held; the pages are protected.
func (m *mapping) drop(frames []uint32) {
	m.byPage(frames)
	for len(frames) > 0 {
		row := m.row(frames)
		frames = frames[len(row):]
		first := m.frames[row[0]].page
		for i := range row {
			page := first + int64(i)
			_, kept := m.volume.Extent(page*pages.Size, (page+1)*pages.Size)
			m.mark(page, kept)
		}
		m.must(m.memory.Punch(int(first*pages.Size), len(row)*pages.Size))
		for _, at := range row {
			m.release(at, m.policy.gone(at))
		}
		m.s.stats.evicted.Add(int64(len(row)))
	}
}

// writeOut writes pages to the volume, those that are in a row at once, and drops those that
// nobody has needed meanwhile. It returns how many.
//
// Preconditions: the victims are as choose has returned them; b has room for their pages.
func (m *mapping) writeOut(victims []uint32, b []byte) (freed int) {
	ctx, cancel := context.WithTimeout(m.ctx, m.s.cfg.Timeout)
	defer cancel()
	var failed error
	for len(victims) > 0 {
		row := m.row(victims) // as long as they are evicting nobody else changes their pages
		victims = victims[len(row):]
		first, b := m.frames[row[0]].page, b[:len(row)*pages.Size]
		_, err := m.memory.File().ReadAt(b, first*pages.Size)
		written := 0
		for ; err == nil && written < len(row); written++ {
			page := first + int64(written)
			m.changes(page)
			if err = m.volume.Write(ctx, b[written*pages.Size:][:pages.Size], page*pages.Size); err != nil {
				break
			}
		}
		freed += m.dropWritten(row, written)
		if err != nil {
			failed = fmt.Errorf("cannot evict: %w", err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stuck = nil
	if freed == 0 && failed != nil {
		m.failures++
		m.stuck = failed
		m.changed.Broadcast()
	}
	return freed
}

// dropWritten drops the first pages of a row, so many, that nobody needs, and has the others stay.
func (m *mapping) dropWritten(row []uint32, written int) (freed int) {
	var drops [batch]uint32
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, at := range row {
		f := &m.frames[at]
		if i < written && !f.want && f.pins == 0 {
			drops[freed] = at
			freed++
			continue
		}
		f.state, f.used, f.want = dirty, true, false
		m.must(m.fd.Protect(m.addr(f.page), pages.Size, false))
		m.changed.Broadcast()
	}
	m.drop(drops[:freed])
	return freed
}
