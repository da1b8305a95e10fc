package sim

import "slices"

// contexts is the store of contexts beside the processing units. The contexts of queue pairs that are parked in a
// WAIT stay there; the rest of the room holds those of the queue pairs that were used last.
type contexts struct {
	room   int
	parked int
	recent []*queue // the last one used comes last
}

// use brings q's context to the store, and reports whether it was there.
func (c *contexts) use(q *queue) bool {
	if q.parked {
		q.parked = false
		c.parked--
		c.add(q)
		return true
	}
	if n := len(c.recent); n > 0 && c.recent[n-1] == q {
		return true
	}
	i := slices.Index(c.recent, q)
	if i >= 0 {
		copy(c.recent[i:], c.recent[i+1:])
		c.recent[len(c.recent)-1] = q
		return true
	}
	c.add(q)
	return false
}

// park keeps q's context, if there is room.
func (c *contexts) park(q *queue) {
	if i := slices.Index(c.recent, q); i >= 0 {
		c.recent = slices.Delete(c.recent, i, i+1)
	}
	if c.parked < c.room {
		q.parked = true
		c.parked++
		c.evict()
	}
}

func (c *contexts) add(q *queue) {
	c.recent = append(c.recent, q)
	c.evict()
}

func (c *contexts) evict() {
	if over := len(c.recent) + c.parked - c.room; over > 0 {
		c.recent = slices.Delete(c.recent, 0, min(over, len(c.recent)))
	}
}
