package pager

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"polder/pages"
)

const (
	batch = 32  // dirty pages evicted at a time; whoever writes to one of them waits until they are written out
	drops = 128 // clean pages dropped at a time
)

// low is the number of free frames at which the evictor begins; it goes on until there are enough. It is 0 if there
// is a frame for each page.
func (m *mapping) low() int {
	if len(m.frames) == len(m.index) {
		return 0
	}
	return min(max(len(m.frames)/32, min(len(m.frames)/8, 8)), drops)
}

func (m *mapping) enough() int { return 2 * m.low() }

// poke has the evictor check whether frames are needed.
func (m *mapping) poke() {
	select {
	case m.evict <- struct{}{}:
	default:
	}
}

// evictor keeps frames free until the mapping ends.
func (m *mapping) evictor() {
	b := make([]byte, batch*pages.Size)
	for {
		select {
		case <-m.evict:
		case <-m.ctx.Done():
			return
		}
		for m.ctx.Err() == nil {
			var c chosen
			m.mu.Lock()
			if len(m.free) < m.enough() {
				m.choose(&c, m.low(), false)
			}
			m.mu.Unlock()
			m.drop(c.clean[:c.dropped])
			freed := c.freed + c.dropped
			if c.victims > 0 {
				freed += m.writeOut(c.dirty[:c.victims], b)
			}
			if freed == 0 {
				break
			}
		}
	}
}

// together is how many kept pages that lie side by side are evicted together. If they were taken one by one, resident
// pages and evicted ones would alternate, and each system call would be for few pages.
const together = 16

// chosen are frames whose pages are about to go.
type chosen struct {
	dirty, clean [drops]uint32
	victims      int // entries of dirty that are used, at most batch
	dropped      int // entries of clean that are used
	freed        int // frames that were freed at once
}

// choose takes frames in the policy's order, until it has batch dirty ones or most clean ones. It protects the dirty
// pages against writes; with leave it takes no dirty ones. Both lists are ordered by page.
//
// Preconditions: m.mu is held.
func (m *mapping) choose(c *chosen, most int, leave bool) {
	tries := 2 * (len(m.frames) - len(m.free))
	if leave {
		tries = min(tries, 4*most)
	}
	full := func() bool { return c.victims >= batch || c.dropped >= most }
	for ; tries > 0 && !full(); tries-- {
		at := m.policy.next()
		first, wasKept := m.frames[at].page/together*together, m.policy.keeps(at)
		if taken := m.take(c, at, leave); !taken && leave && !wasKept && m.frames[at].state == dirty {
			break // the pages behind it were read ahead and are to be used first: the evictor must write it out
		} else if !taken || !wasKept {
			continue
		}
		for page := first; page < min(first+together, int64(len(m.index))) && !full(); page++ {
			if i := m.index[page]; resident(i) && m.policy.keeps(i-1) {
				m.take(c, i-1, leave)
			}
		}
	}
	m.byPage(c.clean[:c.dropped])
	m.byPage(c.dirty[:c.victims])
	for rest := c.dirty[:c.victims]; len(rest) > 0; {
		row := m.row(rest)
		rest = rest[len(row):]
		m.s.stats.protects.Add(1)
		m.must(m.fd.Protect(m.addr(m.frames[row[0]].page), uint64(len(row))*pages.Size, true))
	}
}

// take takes a frame whose page can go, and reports whether it did. A page that was used since the last look is
// spared once. A parked frame is freed at once. With leave, a dirty page stays.
//
// Preconditions: m.mu is held.
func (m *mapping) take(c *chosen, at uint32, leave bool) bool {
	f := &m.frames[at]
	switch {
	case f.pins > 0 || f.state != clean && f.state != dirty && f.state != parked:
		return false
	case f.used:
		f.used = false
		return false
	case f.state == dirty && leave:
		return false
	}
	m.policy.chose(at)
	switch f.state {
	case parked: // its page is not in the memory
		m.forgetMark(at)
		m.release(at, m.policy.gone(at))
		c.freed++
		return true
	case clean:
		c.clean[c.dropped] = at
		c.dropped++
	case dirty:
		c.dirty[c.victims] = at
		c.victims++
	}
	f.state, f.want = evicting, false
	return true
}

// makeRoom drops clean pages to make room for n others, as far as there are clean pages, and reports whether it has
// freed any frame. It is for readers ahead that are faster than the evictor, which may have only one of two
// processors and is woken late.
//
// Preconditions: m.mu is held; makeRoom releases it while pages are dropped.
func (m *mapping) makeRoom(n int) bool {
	var c chosen
	m.choose(&c, min(n, m.low()), true)
	m.mu.Unlock()
	m.drop(c.clean[:c.dropped])
	m.mu.Lock()
	return c.dropped+c.freed > 0
}

// byPage orders frames by their pages.
//
// Preconditions: m.mu is held.
func (m *mapping) byPage(frames []uint32) {
	slices.SortFunc(frames, func(a, b uint32) int { return cmp.Compare(m.frames[a].page, m.frames[b].page) })
}

// row returns the longest prefix of frames whose pages are adjacent.
func (m *mapping) row(frames []uint32) []uint32 {
	n := 1
	for n < len(frames) && m.frames[frames[n]].page == m.frames[frames[n-1]].page+1 {
		n++
	}
	return frames[:n]
}

// drop takes pages that the volume has out of the memory, adjacent ones with one system call. m.mu is not held
// meanwhile, so that other pages can come and go.
//
// Preconditions: the frames are evicting and belong to the caller; their pages are protected, and in order; m.mu is
// not held.
func (m *mapping) drop(frames []uint32) {
	for rest := frames; len(rest) > 0; {
		row := m.row(rest)
		rest = rest[len(row):]
		first := m.frames[row[0]].page
		for i := range row {
			page := first + int64(i)
			_, kept := m.volume.Extent(page*pages.Size, (page+1)*pages.Size)
			m.mark(page, kept)
		}
		m.s.stats.drops.Add(1)
		m.must(m.memory.Punch(int(first*pages.Size), len(row)*pages.Size))
	}
	m.s.stats.evicted.Add(int64(len(frames)))
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, at := range frames {
		page, want := m.frames[at].page, m.frames[at].want
		m.release(at, m.policy.gone(at))
		if want { // whoever needs the page tries again
			m.must(m.fd.Wake(m.addr(page), pages.Size))
		}
	}
}

// writeOut writes the pages of victims to the volume, and drops those that nobody has needed meanwhile. It reads
// adjacent pages from the memory at once. It returns how many frames it has freed.
//
// Preconditions: victims is what choose has returned; b has room for their pages.
func (m *mapping) writeOut(victims []uint32, b []byte) (freed int) {
	ctx, cancel := context.WithTimeout(m.ctx, m.s.cfg.Timeout)
	defer cancel()
	var numbers [batch]int64
	for i, at := range victims {
		numbers[i] = m.frames[at].page
	}
	m.volume.WillWrite(ctx, numbers[:len(victims)])
	var failed error
	for len(victims) > 0 {
		row := m.row(victims) // while frames are evicting, nobody else changes their pages
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

// dropWritten drops those of the first written pages of a row that nobody has needed meanwhile. All other pages of
// the row stay.
func (m *mapping) dropWritten(row []uint32, written int) (freed int) {
	var gone [batch]uint32
	m.mu.Lock()
	for i, at := range row {
		f := &m.frames[at]
		if i < written && !f.want && f.pins == 0 {
			gone[freed] = at
			freed++
			continue
		}
		m.policy.stays(at)
		f.state, f.used, f.want = dirty, true, false
		m.must(m.fd.Protect(m.addr(f.page), pages.Size, false))
		m.changed.Broadcast()
	}
	m.mu.Unlock()
	m.drop(gone[:freed])
	return freed
}
