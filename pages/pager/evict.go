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
// are up to a batch more.
func (m *mapping) low() int { return min(len(m.frames)/8, 4*batch) }

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
	b := make([]byte, pages.Size)
	for {
		select {
		case <-m.evict:
		case <-m.ctx.Done():
			return
		}
		for m.ctx.Err() == nil {
			m.mu.Lock()
			short := len(m.free) < m.low()+min(m.low(), batch)
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

// choose goes round the clock for pages that were not used since it came by the last time. It
// drops those that are clean, and protects those that are dirty, which it returns.
//
// Preconditions: m.mu is held.
func (m *mapping) choose(victims *[batch]uint32) (n, freed int) {
	var drops [batch]uint32
	gone := 0
	for range 2 * len(m.frames) {
		if n == batch || freed == batch {
			break
		}
		at := uint32(m.hand)
		if m.hand++; m.hand == len(m.frames) {
			m.hand = 0
		}
		f := &m.frames[at]
		switch {
		case f.pins > 0 || f.state != clean && f.state != dirty && f.state != parked:
		case f.used:
			f.used = false
		case f.state == parked: // its page is not in the memory
			m.forgetMark(at)
			m.evicted++
			m.release(at, wasHere|m.evicted&countMask)
			gone++
		case f.state == clean:
			f.state = evicting
			drops[freed] = at
			freed++
		default:
			m.must(m.fd.Protect(m.addr(f.page), pages.Size, true))
			f.state, f.want = evicting, false
			victims[n] = at
			n++
		}
	}
	m.drop(drops[:freed])
	return n, freed + gone
}

// drop takes pages that the volume has out of the memory, those that are in a row at once.
//
// Preconditions: m.mu is held; the pages are protected.
func (m *mapping) drop(frames []uint32) {
	slices.SortFunc(frames, func(a, b uint32) int { return cmp.Compare(m.frames[a].page, m.frames[b].page) })
	for len(frames) > 0 {
		first, n := m.frames[frames[0]].page, 0
		for ; n < len(frames) && m.frames[frames[n]].page == first+int64(n); n++ {
			page := first + int64(n)
			_, kept := m.volume.Extent(page*pages.Size, (page+1)*pages.Size)
			m.mark(page, kept)
		}
		m.must(m.memory.Punch(int(first*pages.Size), n*pages.Size))
		for _, at := range frames[:n] {
			m.evicted++
			m.release(at, wasHere|m.evicted&countMask)
		}
		m.s.stats.evicted.Add(int64(n))
		frames = frames[n:]
	}
}

// writeOut writes pages to the volume, and drops those that nobody has needed meanwhile. It
// returns how many.
func (m *mapping) writeOut(victims []uint32, b []byte) (freed int) {
	ctx, cancel := context.WithTimeout(m.ctx, m.s.cfg.Timeout)
	defer cancel()
	var failed error
	for _, at := range victims {
		page := m.frames[at].page // as long as it is evicting nobody else changes it
		_, err := m.memory.File().ReadAt(b, page*pages.Size)
		if err == nil {
			m.changes(page)
			err = m.volume.Write(ctx, b, page*pages.Size)
		}
		m.mu.Lock()
		f := &m.frames[at]
		if err == nil && !f.want && f.pins == 0 {
			m.drop([]uint32{at})
			freed++
		} else {
			f.state, f.used, f.want = dirty, true, false
			m.must(m.fd.Protect(m.addr(page), pages.Size, false))
			m.changed.Broadcast()
		}
		m.mu.Unlock()
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
