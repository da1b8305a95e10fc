package memnode

import (
	"time"

	"polder/internal/failpoint"
)

// A backlog is sections that something was freed in, the oldest first. Each is in it
// at most once.
type backlog struct {
	queue  []uint32
	queued []bool // by section: in queue
	head   int    // of queue
	done   uint64 // sections that have left it
}

func newBacklog(sections uint32) backlog { return backlog{queued: make([]bool, sections)} }

func (b *backlog) empty() bool { return b.head == len(b.queue) }

// end is what done will be when everything that is in the backlog now has left it.
func (b *backlog) end() uint64 { return b.done + uint64(len(b.queue)-b.head) }

func (b *backlog) enqueue(section uint32) {
	if !b.queued[section] {
		b.queued[section] = true
		b.queue = append(b.queue, section)
	}
}

// first is the oldest section.
//
// Preconditions: there is one.
func (b *backlog) first() uint32 { return b.queue[b.head] }

// dequeue removes the first.
func (b *backlog) dequeue() {
	b.queued[b.first()] = false
	b.done++
	if b.head++; b.empty() {
		b.queue, b.head = b.queue[:0], 0
	} else if b.head >= len(b.queued) {
		b.queue, b.head = append(b.queue[:0], b.queue[b.head:]...), 0
	}
}

// batchSections is the most sections that are looked through for one batch.
const batchSections = 64

// rebindBatch gives what was freed first new keys: as much as is bound at a time, of
// as many sections as that is in.
func (m *finemem) rebindBatch() {
	full := false
	for i := 0; i < batchSections && !full && !m.empty(); i++ {
		if full = m.keys.collect(m.first()); !full {
			m.dequeue()
		}
	}
	n, err := m.keys.renew()
	m.rebound.Add(int64(n))
	if err != nil {
		m.node.log.Warn("cannot rebind windows", "error", err)
		if full {
			m.dequeue() // it will be found again when everything is looked at
		}
	}
}

// rebind gives all that was freed in a section new keys.
func (m *finemem) rebind(section uint32) {
	for full := true; full; {
		full = m.keys.collect(section)
		n, err := m.keys.renew()
		m.rebound.Add(int64(n))
		if err != nil {
			m.node.log.Warn("cannot rebind windows", "section", section, "error", err)
			return
		}
	}
}

// settling is how far the node is with what a client has asked it to settle.
type settling struct {
	rebound uint64 // backlog.done when all that had been freed has new keys
	closed  uint32 // sections whose idle spans have been closed
}

// settleSlice is how long the control goroutine settles at a time.
const settleSlice = time.Millisecond

// settle deals, for a while, with what had been freed when s asked first, and then
// closes spans that nobody has anything of. It reports whether that is all; if not, s
// is to ask again. Clients count a section's frees up before they free there.
func (m *finemem) settle(s *session) bool {
	start := time.Now()
	p, begun := m.settles[s]
	if !begun {
		m.poll(start)
		p.rebound = m.end()
	}
	for p.rebound > m.done {
		m.rebindBatch()
		if time.Since(start) > settleSlice {
			m.settles[s] = p
			return false
		}
	}
	for ; p.closed < m.table.Sections(); p.closed++ {
		if p.closed%256 == 0 && time.Since(start) > settleSlice {
			m.settles[s] = p
			return false
		}
		m.table.CloseIdle(p.closed, failpoint.Hit)
	}
	delete(m.settles, s)
	return true
}
