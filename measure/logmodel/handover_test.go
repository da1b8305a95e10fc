package logmodel

// The model of partitions: which server has one of them is said by the map, which is intent. Whose it is says the partition's manifest.
// A move changes the map first, then the owner closes, then the next one opens. A server may die, and never come
// back; or the map may take the partition from one that lives, and the other one takes the heap over. A server that is
// stopped and goes on later is one that takes no step for a while.
//
// Two nodes have copies of the segment of the log that its owner writes. A write is acknowledged when both have it. Whoever opens the
// partition raises the epoch, fences the nodes, reads the segment at one of them at least, and decides by a change of the
// manifest what counts. It waits until no lease of an owner can be used any more that did not close. Reads are answered out of
// local memory, with a lease: evidence that was asked for at the manifest while the epoch was the reader's.

const (
	hoServers = 2
	hoNodes   = 2
	hoWrites  = 2 // in a segment
)

// A hoSegment is what a server has written in an epoch.
type hoSegment struct {
	epoch uint8
	n     uint8 // how many writes were sent
	id    [hoWrites]uint8
	acked uint8          // how many were acknowledged
	has   [hoNodes]uint8 // how many have arrived
}

type hoManifest struct {
	epoch uint8
	owner uint8 // 1 + server, 0 if it was given up
	tail  uint8 // server whose segment may have writes that count beside those that are decided
	has   uint8 // writes that were decided to count
}

// What a server is doing.
const (
	hoOut     = iota // it does not have the partition
	hoRaised         // the epoch is its own
	hoDecided        // what counts is decided
	hoServing
	hoSilent // it is closing, and answers nothing any more
	hoGiven  // broken: it has given the partition up, and still answers
	hoDead   // for good
)

type hoServer struct {
	st     uint8
	epoch  uint8
	fenced uint8          // nodes that have answered the fence
	saw    [hoNodes]uint8 // broken: what they had before it
	has    uint8          // writes that it would show
	waits  bool           // for the lease of the owner before
	asked  bool           // for evidence
	come   bool           // it is on its way
	lease  bool
	lost   bool // broken: it was superseded, and does not open the partition again
}

type hoState struct {
	owner, next uint8 // the map: who is to have the partition; 1 + who is to have it then
	m           hoManifest
	seg         [hoServers]hoSegment
	srv         [hoServers]hoServer
	fence       [hoNodes]uint8

	sent     uint8 // writes so far
	shown    uint8 // writes that were acknowledged, or shown to a reader
	answered uint8 // newest epoch in which a client was answered
	bad      string

	crashes, moves, taken, restarts uint8
}

type handover struct {
	broken                                  string
	writes, crashes, moves, taken, restarts uint8
}

func (c handover) model() model[hoState] {
	first := hoState{m: hoManifest{epoch: 1, owner: 1}, fence: [hoNodes]uint8{1, 1}}
	first.srv[0], first.seg[0] = hoServer{st: hoServing, epoch: 1}, hoSegment{epoch: 1}
	return model[hoState]{first, c.steps, func(s *hoState) string { return s.bad }, c.lacking}
}

func (c handover) lacking(s *hoState) string {
	v := &s.srv[s.owner]
	if v.st == hoServing && v.epoch == s.m.epoch && s.next == 0 {
		return ""
	}
	return "the partition is not served"
}

func (c handover) steps(s *hoState, o *offers[hoState]) {
	for i := range s.seg { // writes arrive in order, also when who has sent them has died
		for n := range hoNodes {
			if g := &s.seg[i]; g.has[n] < g.n && s.fence[n] <= g.epoch {
				to := *s
				to.seg[i].has[n]++
				o.will(to, "write %v arrives at node %v", int(g.id[g.has[n]]), n)
			}
		}
	}
	for n := range hoNodes {
		if to := *s; s.restarts < c.restarts {
			to.restarts++
			if to.fence[n] = s.m.epoch; c.broken == "node-forgets-fence" {
				to.fence[n] = 0
			}
			if to.fence[n] != s.fence[n] {
				o.may(to, "node %v restarts with its memory", n)
			}
		}
	}
	for i := range s.srv {
		v, other := &s.srv[i], &s.srv[1-i]
		if v.st == hoDead {
			continue
		}
		if s.crashes < c.crashes && other.st != hoDead {
			to := *s
			to.srv[i] = hoServer{st: hoDead}
			to.crashes++
			o.may(to, "server %v dies", i)
		}
		c.mapChanges(s, i, o)
		c.opens(s, i, o)
		c.serves(s, i, o)
		c.closes(s, i, o)
	}
}

// mapChanges are those that server i makes.
func (c handover) mapChanges(s *hoState, i int, o *offers[hoState]) {
	j := 1 - i
	switch to := *s; {
	case int(s.owner) == j && s.srv[j].st == hoDead:
		to.owner, to.next = uint8(i), 0
		o.will(to, "the map takes server %v out, which is dead", j)
	case int(s.owner) == j && s.taken < c.taken:
		to.owner, to.next = uint8(i), 0
		to.taken++
		o.may(to, "the map takes server %v out, which lives", j)
	case int(s.owner) == i && s.next == 0 && s.moves < c.moves && s.srv[j].st != hoDead:
		to.next = uint8(j) + 1
		to.moves++
		o.may(to, "a move to server %v is planned", j)
	case int(s.owner) == i && s.next != 0 && s.srv[j].st == hoDead:
		to.next = 0
		o.will(to, "no move to server %v is planned any more", j)
	case int(s.owner) == i && s.next != 0 && s.srv[i].st == hoServing:
		to.owner, to.next = s.next-1, 0
		o.will(to, "server %v has the map give the partition to server %v", i, j)
	}
}

// opens is how server i gets the partition that the map gives it.
func (c handover) opens(s *hoState, i int, o *offers[hoState]) {
	v, j := &s.srv[i], 1-i
	to := *s
	w := &to.srv[i]
	if v.st != hoOut && v.epoch < s.m.epoch && v.st != hoGiven && c.broken != "map-is-enough" {
		was := hoServer{lost: c.broken == "lost-for-good"}
		to.srv[i] = was
		o.will(to, "server %v notices that it is superseded", i)
	}
	to = *s
	switch v.st {
	case hoOut:
		dead := s.srv[j].st == hoDead
		switch {
		case int(s.owner) != i || v.lost:
			return
		case c.broken == "dead-have-to-close" && s.m.owner != 0:
			return
		case c.broken == "map-is-enough":
			if s.srv[j].st != hoOut {
				c.decide(&to, i, s.seg[s.m.tail].has[0])
				to.m.epoch++
				w.epoch, to.seg[i].epoch = to.m.epoch, to.m.epoch
				o.will(to, "server %v serves the partition, since the map says so", i)
				return
			}
		}
		to.m.epoch++
		to.m.owner = uint8(i) + 1
		*w = hoServer{st: hoRaised, epoch: to.m.epoch, waits: s.m.owner != 0 && c.broken != "no-lease-wait"}
		if s.m.owner == 0 || int(s.m.owner) == i+1 || dead {
			o.will(to, "server %v raises the epoch to %v", i, int(to.m.epoch))
		} else {
			o.may(to, "server %v raises the epoch to %v, though server %v has not closed", i, int(to.m.epoch), j)
		}
	case hoRaised, hoDecided:
		c.waitLease(s, i, o)
		g := &s.seg[s.m.tail]
		if v.st == hoDecided {
			if w.st = hoServing; !v.waits {
				o.will(to, "server %v serves", i)
			}
			return
		}
		for n := range hoNodes {
			if v.fenced&bit(n) != 0 {
				continue
			}
			to := *s
			to.srv[i].fenced |= bit(n)
			to.srv[i].saw[n] = g.has[n]
			if c.broken == "read-before-fence" && s.fence[n] < v.epoch && v.saw[n] == 0 {
				to.srv[i].fenced = v.fenced
				to.srv[i].saw[n] = g.has[n] + 1
				o.will(to, "server %v reads at node %v, before the fence", i, n)
				continue
			}
			if c.broken == "read-before-fence" {
				to.srv[i].saw[n] = max(v.saw[n], 1) - 1
			}
			to.fence[n] = max(s.fence[n], v.epoch)
			o.will(to, "node %v is fenced, and server %v reads there", n, i)
		}
		if v.fenced == 0 || v.epoch != s.m.epoch && c.broken != "decide-without-compare" {
			return
		}
		length := uint8(0)
		for n := range hoNodes {
			if v.fenced&bit(n) != 0 {
				if at := g.has[n]; c.broken != "read-before-fence" {
					length = max(length, at)
				} else {
					length = max(length, v.saw[n])
				}
			}
		}
		if c.broken == "serve-before-decision" && v.has == 0 && !v.waits {
			to := *s
			to.srv[i].has = s.m.has | g.first(length)
			to.shown |= to.srv[i].has
			o.may(to, "server %v answers a read, with what it has found so far", i)
		}
		c.decide(&to, i, length)
		o.will(to, "server %v decides that %v writes of the last segment count", i, int(length))
	}
}

// first are the first n writes of g.
func (g *hoSegment) first(n uint8) (ids uint8) {
	for _, id := range g.id[:n] {
		ids |= bit(int(id))
	}
	return ids
}

// decide has server i go on behind so many writes of the last segment.
func (c handover) decide(s *hoState, i int, length uint8) {
	v := &s.srv[i]
	s.m.has |= s.seg[s.m.tail].first(length)
	s.m.tail = uint8(i)
	s.seg[i] = hoSegment{epoch: v.epoch}
	*v = hoServer{st: hoDecided, epoch: v.epoch, has: s.m.has, waits: v.waits}
	if c.broken == "map-is-enough" {
		v.st = hoServing
	}
	if s.shown&^s.m.has != 0 {
		s.bad = "a write that was acknowledged or shown is lost"
	}
	for n := range hoNodes { // that it writes to
		if s.fence[n] < v.epoch && c.broken != "map-is-enough" {
			s.fence[n] = v.epoch
		}
	}
}

// waitLease: by the clocks, no evidence can be used any more that was asked for before the epoch of server i.
func (c handover) waitLease(s *hoState, i int, o *offers[hoState]) {
	if !s.srv[i].waits {
		return
	}
	to := *s
	to.srv[i].waits = false
	for k := range to.srv {
		if w := &to.srv[k]; w.epoch < s.srv[i].epoch {
			w.lease, w.asked, w.come = false, false, false
		}
	}
	o.will(to, "server %v has waited for the lease of the owner before", i)
}

// serves is what server i does for clients.
func (c handover) serves(s *hoState, i int, o *offers[hoState]) {
	v, g := &s.srv[i], &s.seg[i]
	if v.st != hoServing && v.st != hoGiven {
		return
	}
	if s.sent < c.writes && g.n < hoWrites && v.st == hoServing {
		to := *s
		to.seg[i].id[g.n], to.seg[i].n = s.sent, g.n+1
		to.sent++
		o.may(to, "server %v sends write %v", i, int(s.sent))
	}
	if at := g.acked; min(g.has[0], g.has[1]) > at || c.broken == "one-copy-is-enough" && max(g.has[0], g.has[1]) > at {
		to := *s
		id := bit(int(g.id[at]))
		to.seg[i].acked++
		to.srv[i].has |= id
		to.shown |= id
		to.answered = max(s.answered, v.epoch)
		if s.m.has&id == 0 && int(s.m.tail) != i {
			to.bad = "a write is acknowledged that does not count"
		}
		o.will(to, "server %v acknowledges write %v", i, int(g.id[at]))
	}
	to := *s
	w := &to.srv[i]
	switch {
	case v.lease:
		to.shown |= v.has
		to.answered = max(s.answered, v.epoch)
		if s.answered > v.epoch {
			to.bad = "an owner answers a read after the next one has answered"
		} else if s.shown&^v.has != 0 {
			to.bad = "a read lacks a write that was acknowledged or shown"
		}
		o.may(to, "server %v answers a read", i)
	case v.come:
		w.come, w.lease = false, true
		o.may(to, "server %v has a lease", i)
	case !v.asked:
		w.asked = true
		o.may(to, "server %v asks whether it is the owner", i)
	case s.m.epoch == v.epoch:
		w.asked, w.come = false, true
		o.may(to, "the manifest says that server %v is the owner", i)
	}
}

// closes is how server i gives the partition up when the map gives it to the other one.
func (c handover) closes(s *hoState, i int, o *offers[hoState]) {
	v, to := &s.srv[i], *s
	w := &to.srv[i]
	leaves := int(s.owner) != i
	switch {
	case v.st == hoServing && leaves:
		if c.broken == "close-after-next-opens" {
			return // it will be told when the other one has raised the epoch
		}
		*w = hoServer{st: hoSilent, epoch: v.epoch}
		if c.broken == "give-up-first" && s.m.epoch == v.epoch {
			*w = *v
			w.st, to.m.owner = hoGiven, 0
			o.will(to, "server %v gives the partition up, and is about to fall silent", i)
			return
		}
		o.will(to, "server %v falls silent", i)
	case v.st == hoGiven:
		*w = hoServer{}
		o.will(to, "server %v falls silent", i)
	case (v.st == hoSilent || leaves && (v.st == hoRaised || v.st == hoDecided)) && s.m.epoch == v.epoch:
		if v.waits && c.broken != "give-up-before-lease-ends" {
			return // whoever comes next waits for no lease, so that of the owner before has to be over
		}
		*w, to.m.owner = hoServer{}, 0
		o.will(to, "server %v gives the partition up", i)
	}
}
