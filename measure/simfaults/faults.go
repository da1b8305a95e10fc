package simfaults

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"polder/far/named"
)

// names are the segments that must not be lost now, each by a name that says where its copies are: those of which
// the manifest knows, and those that the owner has without it.
func (c *cluster) names() (names []string) {
	if m := c.manifest(); m != nil {
		rooted, _ := namesIn(m.Root)
		for _, name := range rooted {
			var number uint64
			if _, err := fmt.Sscanf(name, "segment %d at ", &number); err == nil && m.Moved[number] != "" {
				name = m.Moved[number]
			}
			names = append(names, name)
		}
		for _, t := range m.Tail {
			name := t.Name
			if m.Moved[t.Number] != "" {
				name = m.Moved[t.Number]
			}
			names = append(names, name)
		}
	}
	for _, h := range c.servers {
		if s := h.now; s != nil && s.store != nil {
			for _, a := range s.segs {
				names = append(names, a.seg.Name())
			}
		}
	}
	return names
}

// copiesOf calls f with each copy of a segment that is there: the node, and its chunk.
func (c *cluster) copiesOf(name string, f func(n *node, id int)) {
	_, at, _ := strings.Cut(name, " at ")
	for one := range strings.SplitSeq(at, " and ") {
		on, chunk, _ := strings.Cut(one, "/")
		var life, id int
		if _, err := fmt.Sscanf(chunk, "chunk %d.%d", &life, &id); err != nil {
			c.wrong("%q names no segment", name)
		}
		for _, n := range c.nodes {
			if ch := n.chunks[id]; n.name == on && n.life == life && ch != nil && !ch.bad {
				f(n, id)
			}
		}
	}
}

// spares reports whether what is lost is no more than was promised to be survived: each segment keeps a good copy
// of those that go says are lost.
func (c *cluster) spares(lost func(n *node, id int) bool) bool {
	for _, name := range c.names() {
		left := 0
		c.copiesOf(name, func(n *node, id int) {
			if !lost(n, id) {
				left++
			}
		})
		if left == 0 {
			return false
		}
	}
	return true
}

func (c *cluster) during(least, most time.Duration) time.Duration {
	return least + time.Duration(c.w.Rand.Int64N(int64(most-least)))
}

// cutOff has nothing get between a and b, or only in one direction, for d.
func (c *cluster) cutOff(a, b string, d time.Duration) {
	way := c.w.Rand.IntN(3)
	if way != 1 {
		c.cuts[pair{a, b}] = c.w.Now() + d
	}
	if way != 2 {
		c.cuts[pair{b, a}] = c.w.Now() + d
	}
}

// trouble makes faults, one after the other, until the cluster is quiet.
func (c *cluster) trouble() {
	if c.quiet {
		return
	}
	c.w.After(c.during(50*time.Millisecond, 6*time.Second), c.trouble)
	r := c.w.Rand
	n, h := c.nodes[r.IntN(len(c.nodes))], c.servers[r.IntN(len(c.servers))]
	what := ""
	switch r.IntN(16) {
	case 0: // a node loses its memory
		if !n.up || !c.spares(func(o *node, _ int) bool { return o == n }) {
			return
		}
		away := c.during(50*time.Millisecond, 15*time.Second)
		n.crash(away, false)
		what = fmt.Sprintf("%s loses its memory, and is away for %v", n.name, away)
	case 1: // a zone does
		in := func(o *node, _ int) bool { return o.zone == n.zone }
		if !c.spares(in) {
			return
		}
		away := c.during(50*time.Millisecond, 15*time.Second)
		for _, o := range c.nodes {
			if in(o, 0) && o.up {
				o.crash(away, false)
			}
		}
		what = fmt.Sprintf("%s loses its memory, and is away for %v", n.zone, away)
	case 2:
		if !n.up {
			return
		}
		away := c.during(50*time.Millisecond, 4*time.Second)
		n.crash(away, true)
		what = fmt.Sprintf("%s is restarted with its memory, within %v", n.name, away)
	case 3:
		d := c.during(5*time.Millisecond, 8*time.Second)
		n.proc.Pause(d)
		what = fmt.Sprintf("%s stops for %v", n.name, d)
	case 4:
		n.slow = c.during(time.Millisecond, 80*time.Millisecond)
		d := c.during(100*time.Millisecond, 20*time.Second)
		c.w.After(d, func() { n.slow = 0 })
		what = fmt.Sprintf("%s takes up to %v for each request, for %v", n.name, n.slow, d)
	case 5, 6:
		d := c.during(20*time.Millisecond, 10*time.Second)
		c.cutOff(n.name, h.name, d)
		what = fmt.Sprintf("%s and %s are cut off from each other for %v", n.name, h.name, d)
	case 7:
		d := c.during(20*time.Millisecond, 10*time.Second)
		c.cutOff(h.name, holderName, d)
		what = fmt.Sprintf("%s is cut off from the holder for %v", h.name, d)
	case 8, 9:
		if h.now == nil {
			return
		}
		h.kill(h.now, c.during(10*time.Millisecond, 3*time.Second))
		what = h.name + " is killed"
	case 10:
		if h.now == nil {
			return
		}
		d := c.during(5*time.Millisecond, 8*time.Second)
		h.now.p.Pause(d)
		what = fmt.Sprintf("%s stops for %v", h.name, d)
	case 11, 12: // somebody takes the heap away from one that lives
		o := c.owner()
		if o == nil || o.host == h.name || h.now == nil {
			return
		}
		h.patience = c.during(time.Millisecond, 300*time.Millisecond)
		h.kill(h.now, time.Millisecond)
		if r.IntN(2) == 0 {
			c.cutOff(o.host, holderName, c.during(100*time.Millisecond, 8*time.Second))
		}
		what = fmt.Sprintf("%s has a patience of %v", h.name, h.patience)
	case 13: // bytes of a copy change
		what = c.damage(n)
	case 14:
		had := n.capacity
		n.capacity = len(n.chunks)
		d := c.during(100*time.Millisecond, 15*time.Second)
		c.w.After(d, func() { n.capacity = had })
		if had != c.cfg.chunks {
			n.capacity = had
			return
		}
		what = fmt.Sprintf("%s is full for %v", n.name, d)
	case 15:
		if r.IntN(2) == 0 {
			d := c.during(100*time.Millisecond, 5*time.Second)
			c.register.lossy = c.w.Now() + d
			what = fmt.Sprintf("messages to and from the holder get lost for %v", d)
			break
		}
		if n.leaving {
			return
		}
		n.leaving = true
		d := c.during(time.Second, 20*time.Second)
		c.w.After(d, func() { n.leaving = false })
		what = fmt.Sprintf("%s is to leave, for %v", n.name, d)
	}
	if what != "" {
		c.counts.faults++
		c.w.Note("fault: %s", what)
	}
}

// damage changes bytes of a chunk of n, of whose segment there is a good copy elsewhere.
func (c *cluster) damage(n *node) string {
	ids := slices.Sorted(maps.Keys(n.chunks))
	if len(ids) == 0 {
		return ""
	}
	id := ids[c.w.Rand.IntN(len(ids))]
	ch := n.chunks[id]
	if ch.bad || len(ch.data) < 1000 || !c.spares(func(o *node, i int) bool { return o == n && i == id }) {
		return ""
	}
	ch.bad = true
	for i := c.w.Rand.IntN(500); i < len(ch.data); i += 500 {
		ch.data[i] ^= byte(1 + c.w.Rand.IntN(255))
	}
	return fmt.Sprintf("bytes of chunk %d of %s change", id, n.name)
}

// heal ends all faults.
func (c *cluster) heal() {
	c.quiet = true
	clear(c.cuts)
	c.register.lossy = 0
	for _, n := range c.nodes {
		n.slow, n.leaving, n.capacity = 0, false, c.cfg.chunks
		n.up = true
	}
	for _, h := range c.servers {
		h.patience = named.DefaultPatience
	}
	c.w.Note("no more faults")
}
