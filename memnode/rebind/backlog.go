package rebind

// A backlog is a queue of sections in which something was freed, the oldest first. Each section is in it at most
// once.
type backlog struct {
	queue  []uint32
	queued []bool // by section: in queue
	head   int    // index in queue of the oldest section
	done   uint64 // how many sections have left it
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
