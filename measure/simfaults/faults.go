package simfaults

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"polder/far/named"
)

// names returns the names of the segments that must not be lost now: those that the manifest lists, those of roots
// that may still get into the manifest, and those with values that servers have open. A name says where the segment's
// copies are.
func (c *cluster) names() []string {
	names := c.listed()
	if m := c.manifest(); m != nil {
		for _, root := range c.coming {
			rooted, _ := namesIn(*root)
			for _, name := range rooted {
				names = append(names, movedTo(m, numberOf(name), name))
			}
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

// listed returns the names of the segments that the manifest lists: those of the root, and those of the log.
func (c *cluster) listed() (names []string) {
	if m := c.manifest(); m != nil {
		rooted, _ := namesIn(m.Root)
		for _, name := range rooted {
			names = append(names, movedTo(m, numberOf(name), name))
		}
		for _, t := range m.Tail {
			names = append(names, movedTo(m, t.Number, t.Name))
		}
	}
	return names
}

// spares reports whether losing all copies for which lost returns true is something that was promised to be survived:
// each segment keeps a good copy that is not among them. If a copy of a segment was damaged, two kinds of its copies
// are not counted as kept. A copy that cannot be reached for some seconds counts as lost: the owner makes new copies
// of what is left. A copy that is being moved may just have moved to where it gets lost.
func (c *cluster) spares(lost func(n *node, id int) bool) bool {
	for _, name := range c.names() {
		left, damaged := 0, c.damaged[numberOf(name)]
		c.goodCopies(name, func(n *node, id int, _ *chunk) {
			if !lost(n, id) && !(damaged && (n.moves() || n.outage+time.Second > c.w.Now())) {
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

// cutOff lets no message pass between a server and other (a node or the holder) for d, in one direction or in both.
// It returns false, and does nothing, if other is a node that must stay reachable.
func (c *cluster) cutOff(server, other string, d time.Duration) bool {
	if i := slices.IndexFunc(c.nodes, func(n *node) bool { return n.name == other }); i >= 0 && !c.nodes[i].away(d) {
		return false
	}
	way := c.w.Rand.IntN(3)
	if way != 1 {
		c.cuts[pair{server, other}] = c.w.Now() + d
	}
	if way != 2 {
		c.cuts[pair{other, server}] = c.w.Now() + d
	}
	return true
}

// The kinds of faults.
const (
	nodeCrashes = iota // and loses its memory
	zoneCrashes
	nodeRestarts // with its memory
	allRestart
	nodeStops
	nodeIsSlow
	nodeCutOff
	oneAfterAnother
	holderCutOff
	holderLossy
	serverDies
	serverStops
	takenOver // from an owner that lives
	takenOverTwice
	handedOver
	bytesChange
	nodeFull
	nodeLeaves
	nodeEnds
	nodeJoins
	hostNeedsMemory
	kinds
)

// which draws a kind of fault.
func (c *cluster) which() int {
	sum := 0
	for _, w := range c.cfg.weights {
		sum += w
	}
	x := c.w.Rand.IntN(sum)
	for kind, w := range c.cfg.weights {
		if x -= w; x < 0 {
			return kind
		}
	}
	panic("BUG: the weights have another sum")
}

// mostNodes is how many nodes there are at a time.
const mostNodes = 9

// trouble makes faults, one after the other, until the cluster is quiet.
func (c *cluster) trouble() {
	if c.quiet {
		return
	}
	r := c.w.Rand
	pause := c.during(time.Millisecond, 400*time.Millisecond) // some come together
	if r.IntN(c.cfg.calm) == 0 {
		pause = c.during(time.Second, 8*time.Second)
	}
	c.w.After(pause, c.trouble)
	if what := c.fault(c.which()); what != "" {
		c.counts.faults++
		c.w.Note("fault: %s", what)
	}
}

// fault makes a fault of a kind, and says what it has done. It returns "" if that kind is not possible now.
func (c *cluster) fault(kind int) string {
	r := c.w.Rand
	n, h := c.nodes[r.IntN(len(c.nodes))], c.servers[r.IntN(len(c.servers))]
	switch kind {
	case nodeCrashes:
		if !n.up || !c.spares(func(o *node, _ int) bool { return o == n }) {
			return ""
		}
		if r.IntN(3) == 0 && c.canDoWithout(n) {
			c.remove(n)
			return n.name + " is lost for good"
		}
		away := c.during(50*time.Millisecond, 15*time.Second)
		n.crash(away, false)
		return fmt.Sprintf("%s loses its memory, and is away for %v", n.name, away)
	case zoneCrashes:
		in := func(o *node, _ int) bool { return o.zone == n.zone }
		// A copy that is being moved may get into the zone.
		if !c.spares(func(o *node, id int) bool { return in(o, id) || o.moves() }) {
			return ""
		}
		away := c.during(50*time.Millisecond, 15*time.Second)
		for _, o := range c.nodes {
			if in(o, 0) && o.up {
				o.crash(away, false)
			}
		}
		return fmt.Sprintf("%s loses its memory, and is away for %v", n.zone, away)
	case nodeRestarts:
		away := c.during(50*time.Millisecond, 4*time.Second)
		if !n.up || !n.away(away) {
			return ""
		}
		n.crash(away, true)
		return fmt.Sprintf("%s is restarted with its memory, within %v", n.name, away)
	case allRestart:
		within := c.during(10*time.Millisecond, 2*time.Second)
		for _, o := range c.nodes {
			c.w.After(c.during(0, within), func() {
				if d := c.during(10*time.Millisecond, time.Second); o.up && o.away(d) {
					o.crash(d, true)
				}
			})
		}
		return fmt.Sprintf("all nodes are restarted with their memory, within %v", within)
	case nodeStops:
		d := c.during(5*time.Millisecond, 8*time.Second)
		if !n.away(d) {
			return ""
		}
		n.proc.Pause(d)
		return fmt.Sprintf("%s stops for %v", n.name, d)
	case nodeIsSlow:
		most, d := c.during(time.Millisecond, 80*time.Millisecond), c.during(100*time.Millisecond, 20*time.Second)
		if n.slow != 0 || !n.away(d) {
			return ""
		}
		n.slow = most
		c.w.After(d, func() { n.slow = 0 })
		return fmt.Sprintf("%s takes up to %v for each request, for %v", n.name, n.slow, d)
	case nodeCutOff:
		d := c.during(20*time.Millisecond, 10*time.Second)
		if !c.cutOff(h.name, n.name, d) {
			return ""
		}
		return fmt.Sprintf("%s and %s are cut off from each other for %v", n.name, h.name, d)
	case oneAfterAnother: // a node is out of reach for a moment, and then another one is lost
		o, d := c.nodes[r.IntN(len(c.nodes))], c.during(30*time.Millisecond, 3*time.Second)
		if !c.cutOff(h.name, n.name, d) {
			return ""
		}
		c.w.After(c.during(d/2, 2*d), func() {
			if !c.quiet && o != n && o.up && c.spares(func(x *node, _ int) bool { return x == o }) {
				o.crash(c.during(50*time.Millisecond, 8*time.Second), false)
				c.w.Note("fault: %s loses its memory then", o.name)
			}
		})
		return fmt.Sprintf("%s and %s are cut off from each other for %v", n.name, h.name, d)
	case holderCutOff:
		d := c.during(20*time.Millisecond, 10*time.Second)
		c.cutOff(h.name, holderName, d)
		return fmt.Sprintf("%s is cut off from the holder for %v", h.name, d)
	case holderLossy:
		d := c.during(100*time.Millisecond, 5*time.Second)
		c.register.lossy = c.w.Now() + d
		return fmt.Sprintf("messages to and from the holder get lost for %v", d)
	case serverDies:
		if h.now == nil {
			return ""
		}
		h.kill(h.now, c.during(10*time.Millisecond, 3*time.Second))
		return h.name + " is killed"
	case serverStops:
		if h.now == nil {
			return ""
		}
		d := c.during(5*time.Millisecond, 8*time.Second)
		h.now.p.Pause(d)
		return fmt.Sprintf("%s stops for %v", h.name, d)
	case takenOver, takenOverTwice:
		o := c.owner()
		if o == nil || o.host == h.name || h.now == nil {
			return ""
		}
		h.patience = c.during(time.Millisecond, 300*time.Millisecond)
		h.kill(h.now, time.Millisecond)
		d := c.during(100*time.Millisecond, 8*time.Second)
		what := fmt.Sprintf("%s has a patience of %v", h.name, h.patience)
		if kind == takenOverTwice { // the new owner dies soon
			c.w.After(h.patience+c.during(0, d), func() {
				if !c.quiet {
					h.kill(h.now, c.during(10*time.Millisecond, 3*time.Second))
				}
			})
			what += ", and is killed soon"
		}
		which := r.IntN(6)
		if kind == takenOverTwice {
			which = r.IntN(4)
		}
		switch which {
		case 0, 1:
			c.cutOff(o.host, holderName, d)
			what += fmt.Sprintf("; %s is cut off from the holder for %v", o.host, d)
		case 2: // nor can it reach nodes, all of which are restarted meanwhile
			c.cutOff(o.host, holderName, d+2*time.Second)
			for _, n := range c.nodes {
				c.cutOff(o.host, n.name, d)
			}
			c.w.After(d/2, func() {
				if !c.quiet {
					c.w.Note("fault: %s", c.fault(allRestart))
				}
			})
			what += fmt.Sprintf("; %s is cut off from all for %v", o.host, d)
		case 3, 4:
			o.p.Pause(d / 2)
			what += fmt.Sprintf("; %s stops for %v", o.host, d/2)
		}
		return what
	case handedOver:
		if h.now == nil || !h.now.serving || h.now.leaving {
			return ""
		}
		s := h.now
		s.p.Go(s.handOver)
		return h.name + " gives the heap up"
	case bytesChange:
		return c.damage(n)
	case nodeFull:
		if n.capacity != c.cfg.chunks {
			return ""
		}
		n.capacity = n.used()
		d := c.during(100*time.Millisecond, 15*time.Second)
		c.w.After(d, func() { n.capacity = c.cfg.chunks })
		return fmt.Sprintf("%s is full for %v", n.name, d)
	case nodeLeaves:
		if n.leaving {
			return ""
		}
		n.leaving = true
		d := c.during(time.Second, 20*time.Second)
		c.w.After(d, func() { n.leaving = n.ends })
		return fmt.Sprintf("%s is to leave, for %v", n.name, d)
	case nodeEnds:
		if !c.canDoWithout(n) {
			return ""
		}
		n.leaving, n.ends = true, true
		c.end(n)
		return n.name + " is to leave for good"
	case nodeJoins:
		if len(c.nodes) >= mostNodes {
			return ""
		}
		o := c.newNode(fmt.Sprint("node", c.joined), fmt.Sprint("zone", r.IntN(c.cfg.zones)))
		o.idle = r.IntN(4) == 0
		c.joined++
		c.nodes = append(c.nodes, o)
		return fmt.Sprintf("%s joins, in %s", o.name, o.zone)
	case hostNeedsMemory:
		for i := r.IntN(len(c.nodes)); i > 0 && !n.idle; i-- {
			n = c.nodes[i]
		}
		if !n.idle || n.capacity != c.cfg.chunks {
			return ""
		}
		want := 1 + r.IntN([]int{3, 20}[r.IntN(2)])
		dropped := n.squeeze(want)
		d := c.during(100*time.Millisecond, 10*time.Second)
		if r.IntN(2) == 0 { // the copies that have vanished would be of use then
			c.w.After(c.during(0, time.Second), func() {
				if !c.quiet {
					c.w.Note("fault: %s", c.fault(nodeLeaves))
				}
			})
		}
		c.w.After(d, func() { n.capacity, n.pressed = c.cfg.chunks, false })
		return fmt.Sprintf("the host of %s needs %d chunks for %v, and gets %d at once", n.name, want, d, dropped)
	}
	panic("BUG: no such fault")
}

// canDoWithout reports whether n may leave for good: there remain more nodes than a segment has copies, and they are
// in at least two zones. Two are enough for three copies, too: far/copies keeps copies in different zones as far as there
// are enough zones, and some clusters have only two from the start. Nodes that are to end, or that lend idle memory
// only, do not count.
func (c *cluster) canDoWithout(n *node) bool {
	zones, others := map[string]bool{}, 0
	for _, o := range c.nodes {
		if o != n && !o.ends && !o.idle {
			zones[o.zone] = true
			others++
		}
	}
	return others > c.cfg.copies && len(zones) >= 2 && !n.ends
}

// remove ends n for good.
func (c *cluster) remove(n *node) {
	n.gone, n.ends = true, false
	n.crash(0, false)
	c.nodes = slices.DeleteFunc(slices.Clone(c.nodes), func(o *node) bool { return o == n })
}

// end removes n as soon as it has no chunks any more.
func (c *cluster) end(n *node) {
	switch {
	case !n.ends: // n is no longer to end
	case len(n.chunks) == 0:
		c.remove(n)
		c.w.Note("%s is empty, and ends", n.name)
	default:
		c.w.After(50*time.Millisecond, func() { c.end(n) })
	}
}

// damage changes bytes of a chunk for some time: a chunk of n, or, half of the time, a copy of the log's first
// segment. Another good copy of the chunk's segment exists, and can be reached all that time: a copy that cannot be
// reached for some seconds counts as lost, and two failures would be one too many.
func (c *cluster) damage(n *node) string {
	ids := slices.Sorted(maps.Keys(n.chunks))
	// Take a copy of the log's first segment.
	if m := c.manifest(); m != nil && len(m.Tail) > 0 && c.w.Rand.IntN(2) == 0 {
		ids = nil
		t := m.Tail[0]
		c.copiesOf(movedTo(m, t.Number, t.Name), func(o *node, id int, _ *chunk) {
			if ids == nil || c.w.Rand.IntN(2) == 0 {
				n, ids = o, []int{id}
			}
		})
	}
	if len(ids) == 0 {
		return ""
	}
	id := ids[c.w.Rand.IntN(len(ids))]
	ch := n.chunks[id]
	if ch.bad || len(ch.data) < 1000 || !c.spares(func(o *node, i int) bool { return o == n && i == id || o.outage+time.Second > c.w.Now() }) {
		return ""
	}
	// A spare copy does not count: if it were damaged and then took the place of a lost copy, that would be one more
	// failure than is survived.
	counts := false
	for _, name := range c.names() {
		c.copiesOf(name, func(_ *node, _ int, o *chunk) { counts = counts || o == ch })
	}
	if !counts {
		return ""
	}
	d := c.during(100*time.Millisecond, 8*time.Second)
	if c.w.Rand.IntN(3) == 0 { // the other copies are moved
		d += 2 * time.Second
		for _, name := range c.names() {
			var others []*node
			of := false
			c.copiesOf(name, func(o *node, _ int, other *chunk) { others, of = append(others, o), of || other == ch })
			for _, o := range others {
				if of && o != n && !o.leaving {
					o.leaving = true
					c.w.After(d, func() { o.leaving = o.ends })
				}
			}
		}
	} else if o := c.owner(); o != nil && c.w.Rand.IntN(2) == 0 { // the next owner finds the damage
		d += 8 * time.Second
		c.w.After(c.during(0, time.Second), func() {
			for _, h := range c.servers {
				if h.now == o && !c.quiet {
					h.kill(o, c.during(10*time.Millisecond, 3*time.Second))
				}
			}
		})
	}
	ch.bad = true
	for _, name := range c.names() {
		of := false
		c.copiesOf(name, func(_ *node, _ int, o *chunk) { of = of || o == ch })
		if of {
			c.damaged[numberOf(name)] = true
			brief := c.ofLog(numberOf(name))
			c.copiesOf(name, func(o *node, _ int, _ *chunk) {
				o.brief = brief && (o.brief || o.precious <= c.w.Now())
				o.precious = max(o.precious, c.w.Now()+d+time.Second)
			})
		}
	}
	was, is := slices.Clone(ch.data), slices.Clone(ch.data)
	for i := c.w.Rand.IntN(500); i < len(is); i += 500 {
		is[i] ^= byte(1 + c.w.Rand.IntN(255))
	}
	copy(ch.data, is)
	c.w.After(d, func() {
		ch.bad = false
		for i := range is[:min(len(is), len(ch.data))] {
			if was[i] != is[i] && ch.data[i] == is[i] { // nothing was written there meanwhile
				ch.data[i] = was[i]
			}
		}
	})
	return fmt.Sprintf("bytes of chunk %d of %s change for %v", id, n.name, d)
}

// damageForGood changes bytes of one copy of about every second segment with values, where that can be survived. A
// server that reads only what clients ask for may never read those bytes.
func (c *cluster) damageForGood() {
	o := c.owner()
	if o == nil {
		return
	}
	for _, a := range o.segs {
		if c.w.Rand.IntN(2) == 0 || slices.Contains(o.current[:], a) {
			continue
		}
		done := false
		c.goodCopies(a.seg.Name(), func(n *node, id int, ch *chunk) {
			if done || ch.bad || !c.spares(func(on *node, i int) bool { return on == n && i == id || on.outage+time.Second > c.w.Now() }) {
				return
			}
			done = true
			c.damaged[numberOf(a.seg.Name())] = true
			for i := c.w.Rand.IntN(500); i < len(ch.data); i += 500 {
				ch.data[i] ^= byte(1 + c.w.Rand.IntN(255))
			}
			c.w.Note("bytes of chunk %d of %s have changed for good", id, n.name)
		})
	}
}

// heal ends all faults.
func (c *cluster) heal() {
	c.quiet = true
	clear(c.cuts)
	c.register.lossy = 0
	for _, n := range c.nodes {
		n.slow, n.leaving, n.ends, n.pressed, n.capacity = 0, false, false, false, c.cfg.chunks
		n.up = true
	}
	for _, h := range c.servers {
		h.patience = named.DefaultPatience
	}
	c.w.Note("no more faults")
}
