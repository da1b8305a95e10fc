package simfaults

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"polder/internal/turns"
)

// A node lends chunks. It does in a few lines what memnode and the pool promise to those who use a memory node.
type node struct {
	c          *cluster
	name, zone string
	proc       *turns.Process

	up       bool
	life     int    // one more each time that it loses its memory
	fence    uint64 // the lowest epoch that it serves
	chunks   map[int]*chunk
	given    map[int]bool // chunks that were given back
	next     int
	capacity int
	slow     time.Duration // added delay of a request, at most
	leaving  bool
	ends     bool    // it is to end as soon as it is empty
	gone     bool    // it has ended for good
	idle     bool    // it lends only what its host does not need now
	pressed  bool    // its host needs more than it could drop: the chunks that are left are to be moved
	links    []*link // connections that it has not ended

	outage   time.Duration // until when some servers or all cannot reach it
	precious time.Duration // until when all servers must be able to reach it,
	brief    bool          // except for moments: brief outages are allowed
}

type chunk struct {
	epoch uint64 // in which it was lent
	data  []byte // up to the last byte that was written; zeros follow
	bad   bool   // it has other bytes than were written to it
	may   bool   // the node may drop it
	gone  bool   // the node has dropped it
}

func (c *cluster) newNode(name, zone string) *node {
	n := &node{c: c, name: name, zone: zone, capacity: c.cfg.chunks, up: true, life: 1}
	n.proc = c.w.Process(name, 0)
	n.forget()
	return n
}

// forget has the node lose its memory.
func (n *node) forget() { n.chunks, n.given, n.fence = map[int]*chunk{}, map[int]bool{}, 0 }

// end ends the links of epochs lower than below.
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

// moves reports whether the owner is to move n's copies to other nodes.
func (n *node) moves() bool { return n.leaving || n.pressed }

// away notes that some servers or all cannot reach n for d. It returns false, and notes nothing, if n must stay
// reachable.
func (n *node) away(d time.Duration) bool {
	now := n.c.w.Now()
	if now < n.precious && !(n.brief && d < 2500*time.Millisecond && now > n.outage+time.Second) {
		return false
	}
	n.outage = max(n.outage, now+d)
	return true
}

// crash takes the node down for the duration away. Unless warm is set, its memory is lost.
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

// connect is a server's hello, which opens link l. It fences lower epochs, and drops chunks of this epoch that the
// server does not have, by has. It returns the reason if it refuses.
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
	for _, o := range n.links { // the server's older links, which it no longer uses
		if o.place == l.place {
			o.there.ended, o.reads.ended = true, true
		}
	}
	for id, ch := range n.chunks { // lent in this epoch, but the server has not got the answer
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

// used returns how many chunks have memory.
func (n *node) used() (used int) {
	for _, ch := range n.chunks {
		if !ch.gone {
			used++
		}
	}
	return used
}

// revoke ends the permissions to drop chunks of an epoch: they last only as long as the connection over which they
// were given.
func (n *node) revoke(epoch uint64) {
	for _, ch := range n.chunks {
		ch.may = ch.may && ch.epoch != epoch
	}
}

// squeeze has the node give back the memory of so many chunks to its host. It drops chunks that it may drop; if they
// are too few, it asks for the others to be moved. It returns how many it has dropped.
func (n *node) squeeze(chunks int) (dropped int) {
	// late is how long it takes until clients hear of it.
	late := n.c.during(0, []time.Duration{time.Millisecond, 3 * time.Second}[n.c.w.Rand.IntN(2)])
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

// find returns a chunk that was lent in a life of the node. If the chunk has been given back, only reading it is
// allowed; any other use, which what describes, is the server's mistake.
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
