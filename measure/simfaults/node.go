package simfaults

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"polder/internal/turns"
)

// A node lends chunks. It is what a memory node is to those who use it: what memnode and the pool promise, in a few lines.
type node struct {
	c          *cluster
	name, zone string
	proc       *turns.Process

	up       bool
	life     int    // which of its memories this is
	fence    uint64 // the lowest epoch that it serves
	chunks   map[int]*chunk
	given    map[int]bool // chunks that were given back
	next     int
	capacity int
	slow     time.Duration // up to so long does each request take
	leaving  bool
	ends     bool    // as soon as it is empty
	gone     bool    // it has
	idle     bool    // it lends what its host does not need
	pressed  bool    // which needs more: what cannot be dropped is to be moved
	links    []*link // that it has not ended

	outage   time.Duration // until when it cannot be reached by all
	precious time.Duration // until when it can,
	brief    bool          // but for a moment
}

type chunk struct {
	epoch uint64 // in which it was lent
	data  []byte // what was written to; beyond it are zeros
	bad   bool   // it has other bytes than were written
	may   bool   // it may vanish
	gone  bool   // it has
}

func (c *cluster) newNode(name, zone string) *node {
	n := &node{c: c, name: name, zone: zone, capacity: c.cfg.chunks, up: true, life: 1}
	n.proc = c.w.Process(name, 0)
	n.forget()
	return n
}

// forget has the node lose its memory.
func (n *node) forget() { n.chunks, n.given, n.fence = map[int]*chunk{}, map[int]bool{}, 0 }

// end ends links, those of lower epochs than that only.
func (n *node) end(below uint64) {
	kept := n.links[:0]
	for _, l := range n.links {
		if l.epoch >= below {
			kept = append(kept, l)
			continue
		}
		l.there.ended, l.reads.ended = true, true
		l.place.p.After(n.c.hop(), func() { l.place.broken(l) })
	}
	n.links = kept
}

// moves reports whether what n has is moved elsewhere.
func (n *node) moves() bool { return n.leaving || n.pressed }

// away takes note that n cannot be reached, or not by all, for d. It reports false if that must not be.
func (n *node) away(d time.Duration) bool {
	now := n.c.w.Now()
	if now < n.precious && !(n.brief && d < 2500*time.Millisecond && now > n.outage+time.Second) {
		return false
	}
	n.outage = max(n.outage, now+d)
	return true
}

// crash ends the node for some time. If it is not warm its memory is lost.
func (n *node) crash(away time.Duration, warm bool) {
	n.up = false
	n.end(1 << 63)
	if !warm {
		n.life++
		n.forget()
	} else if n.c.harness("warm-node-forgets-fence") {
		n.fence = 0
	}
	n.c.w.After(away, func() { n.up = !n.gone })
}

// connect is a client's hello. It returns the reason for refusing it.
func (n *node) connect(l *link, has func(id int) bool) error {
	switch {
	case !n.up:
		return errDown
	case l.epoch < n.fence:
		return errFenced
	}
	n.fence = l.epoch
	if n.c.harness("answer-before-fence") {
		epoch := l.epoch
		n.proc.After(2*time.Second, func() { n.end(epoch) })
	} else {
		n.end(l.epoch)
	}
	n.revoke(l.epoch)
	for _, o := range n.links { // the client's own, from which it has gone away
		if o.place == l.place {
			o.there.ended, o.reads.ended = true, true
		}
	}
	for id, ch := range n.chunks { // whose answers it has not got
		if ch.epoch == l.epoch && !has(id) {
			n.drop(id)
		}
	}
	n.links = append(n.links, l)
	return nil
}

func (n *node) lend(epoch uint64) (id int, err error) {
	if n.used() >= n.capacity {
		return 0, errFull
	}
	n.next++
	n.chunks[n.next] = &chunk{epoch: epoch}
	return n.next, nil
}

// used is how many chunks have memory.
func (n *node) used() (used int) {
	for _, ch := range n.chunks {
		if !ch.gone {
			used++
		}
	}
	return used
}

// revoke ends the permissions to drop chunks that were given in an epoch, with the connection over which they were.
func (n *node) revoke(epoch uint64) {
	for _, ch := range n.chunks {
		ch.may = ch.may && ch.epoch != epoch
	}
}

// squeeze has the node give memory back to its host: so many chunks, of which it drops those that it may, and asks for others to be moved. It returns how
// many it has dropped.
func (n *node) squeeze(chunks int) (dropped int) {
	late := n.c.during(0, []time.Duration{time.Millisecond, 3 * time.Second}[n.c.w.Rand.IntN(2)]) // clients hear of it
	for _, id := range slices.Sorted(maps.Keys(n.chunks)) {
		ch := n.chunks[id]
		if dropped == chunks || !ch.may {
			continue
		}
		dropped++
		ch.data, ch.may, ch.gone = nil, false, true
		for _, l := range n.links {
			if l.epoch == ch.epoch {
				n.proc.After(late, func() {
					l.back.send(func() {
						if g := l.place.lent[id]; g != nil && g.vanish == vanishes {
							g.vanish = vanished
						}
					})
				})
			}
		}
	}
	n.capacity = n.used()
	n.pressed = dropped < chunks
	return dropped
}

func (n *node) drop(id int) {
	delete(n.chunks, id)
	n.given[id] = true
}

// find returns a chunk of a life. It is the client's error if that was given back.
func (n *node) find(life, id int, what string) (*chunk, error) {
	ch := n.chunks[id]
	switch {
	case life != n.life && n.c.harness("trust-returning-node"):
		return &chunk{}, nil
	case life != n.life:
		return nil, errLost
	case ch == nil && what != "read":
		n.c.wrong("%s/chunk %d.%d was given back, and is %s", n.name, life, id, what)
	}
	if ch == nil {
		return nil, fmt.Errorf("%s has no chunk %d", n.name, id)
	}
	return ch, nil
}

func (ch *chunk) write(p []byte, off int) {
	if n := off + len(p); n > len(ch.data) {
		ch.data = append(ch.data, make([]byte, n-len(ch.data))...)
	}
	copy(ch.data[off:], p)
}

func (ch *chunk) read(p []byte, off int) {
	clear(p)
	if off < len(ch.data) {
		copy(p, ch.data[off:])
	}
}
