package logmodel

import "math/bits"

// The model of checkpoints: a journal of numbered records, in segments that the manifest lists, and a checkpoint, which
// has what all records up to one come to, in a segment that the manifest has as its root. One of two
// servers owns both. Each change of the manifest may be late, or its answer may be lost; a server may die between any two
// steps, or be superseded while it lives, and be slow to notice. Copies are another model's matter: one storage has the segments here, and a fence.

const (
	ckServers  = 2
	ckSegments = 6 // that there can be at a time
	ckRoots    = 3 // the first of them, which are for checkpoints
	ckRecords  = 2 // in a segment of the journal
)

// What a segment is for.
const (
	ckFree = iota
	ckJournal
	ckCheckpoint
)

type ckSegment struct {
	kind  uint8
	epoch uint8 // of who has borrowed it: with the place, this is its number, which is never used again
	from  uint8 // journal: number of the first record
	sent  uint8 // how many records were sent to it
	kept  uint8 // how many of them have arrived
	upTo  uint8 // checkpoint: number of the last record that it has
	whole bool  // checkpoint: all of it has arrived
}

type ckManifest struct {
	epoch uint8
	root  uint8 // 1 + segment
	next  uint8 // number of the first record that is replayed
	tail  uint8 // segments of the journal
}

// What a server is doing.
const (
	ckOut       = iota // dead, or it has never had the heap
	ckRaised           // the epoch is its own
	ckFenced           // the storage takes nothing of older epochs any more
	ckReplayed         // it has read everything; a checkpoint is to have it
	ckBeginning        // one has, and a journal of its own is to be listed
	ckServing
)

// Where a checkpoint is.
const (
	ckNone = iota
	ckWriting
	ckWritten
	ckAsked
)

type ckServer struct {
	st    uint8
	epoch uint8
	last  uint8 // number of the last record that it has in memory
	cur   uint8 // 1 + segment of the journal that it writes
	fresh uint8 // 1 + segment in which it is to go on, when the manifest lists it
	drop  uint8 // segments of the journal that a checkpoint has
	doubt uint8 // segments of checkpoints of which nobody knows whether they are the root
	free  uint8 // segments that are to be given back

	step    uint8 // of a checkpoint that is being made
	into    uint8 // 1 + its segment
	upTo    uint8 // what it has
	waiting bool  // for the answer to a change
}

// A ckChange is a change of the manifest on its way. It can happen only until another one has happened.
type ckChange struct {
	tail  bool  // it lists slot and no longer drop; otherwise slot is to be the root
	slot  uint8 // 1 + segment, 0 if there is no change
	epoch uint8 // of who asks
	drop  uint8
	next  uint8
	taken bool // it has happened
}

type ckState struct {
	m     ckManifest
	seg   [ckSegments]ckSegment
	fence uint8
	srv   [ckServers]ckServer
	req   [ckServers]ckChange

	acked                    uint8 // number of the last record that was acknowledged
	crashes, takeovers, lost uint8 // so far
}

type checkpoints struct {
	broken                            string
	records, crashes, takeovers, lost uint8 // at most
}

func (c checkpoints) model() model[ckState] {
	first := ckState{m: ckManifest{epoch: 1, root: 1, next: 1, tail: bit(ckRoots)}, fence: 1}
	first.seg[0] = ckSegment{kind: ckCheckpoint, epoch: 1, whole: true}
	first.seg[ckRoots] = ckSegment{kind: ckJournal, epoch: 1, from: 1}
	first.srv[0] = ckServer{st: ckServing, epoch: 1, cur: ckRoots + 1}
	return model[ckState]{first, c.steps, c.wrong, c.lacking}
}

// recover is what whoever opens the heap would have: the number of the last record, and whether the checkpoint can be read.
func (s *ckState) recover() (last uint8, ok bool) {
	if s.m.root == 0 || s.seg[s.m.root-1].kind != ckCheckpoint || !s.seg[s.m.root-1].whole {
		return 0, false
	}
	last = s.seg[s.m.root-1].upTo
	if s.m.next > last+1 {
		return last, true // records are missing behind the checkpoint: nothing that follows can be replayed
	}
	for more := true; more; {
		more = false
		for t := range s.seg {
			if g := &s.seg[t]; s.m.tail&bit(t) != 0 && g.kind == ckJournal && g.from <= last+1 && g.from+g.kept > last+1 {
				last, more = g.from+g.kept-1, true
			}
		}
	}
	return last, true
}

func (c checkpoints) wrong(s *ckState) string {
	for t := range s.seg {
		if s.m.tail&bit(t) != 0 && s.seg[t].kind != ckJournal {
			return "the manifest lists a segment of the journal that was given back"
		}
	}
	switch last, ok := s.recover(); {
	case !ok:
		return "the checkpoint that the manifest has as its root cannot be read"
	case last < s.acked:
		return "a record that was acknowledged is lost"
	}
	return ""
}

func (c checkpoints) lacking(s *ckState) string {
	for i := range s.srv {
		v := &s.srv[i]
		if v.st != ckServing || v.epoch != s.m.epoch || v.waiting || v.step != ckNone {
			continue
		}
		for t := range s.seg {
			if s.seg[t].kind != ckFree && t != int(s.m.root)-1 && s.m.tail&bit(t) == 0 {
				return "a segment is kept that nobody needs"
			}
		}
		return ""
	}
	return "the heap has no owner"
}

func (c checkpoints) steps(s *ckState, o *offers[ckState]) {
	for t := range s.seg {
		if g := &s.seg[t]; g.kind == ckJournal && g.kept < g.sent && s.fence <= g.epoch {
			to := *s
			to.seg[t].kept++
			o.will(to, "record %v arrives in segment %v", int(g.from+g.kept), t)
		}
	}
	alive := 0
	for i := range s.srv {
		if s.srv[i].st != ckOut {
			alive++
		}
	}
	for i := range s.srv {
		v := &s.srv[i]
		c.change(s, i, o)
		switch {
		case v.st == ckOut && i > 0 && s.srv[0].st == ckOut: // it is all the same which one of them does
			continue
		case v.st == ckOut:
			to := *s
			to.m.epoch++
			to.srv[i] = ckServer{st: ckRaised, epoch: to.m.epoch}
			c.refuse(&to)
			if alive == 0 {
				o.will(to, "server %v raises the epoch to %v", i, int(to.m.epoch))
			} else if to.takeovers++; to.takeovers <= c.takeovers {
				o.may(to, "server %v raises the epoch to %v, though another one lives", i, int(to.m.epoch))
			}
			continue
		case s.crashes < c.crashes:
			to := *s
			to.srv[i] = ckServer{}
			to.crashes++
			if to.req[i].taken {
				to.req[i] = ckChange{}
			}
			o.may(to, "server %v dies", i)
		}
		if v.free != 0 {
			to := *s
			to.srv[i].free = 0
			for t := range s.seg {
				if v.free&bit(t) != 0 && s.seg[t].epoch <= v.epoch { // else it is another segment by now
					to.seg[t] = ckSegment{}
					for k := range to.srv {
						to.srv[k].free &^= bit(t) // whoever gives it back again gives nothing back
					}
				}
			}
			o.will(to, "server %v gives back segment %v", i, these(v.free))
		}
		if v.epoch < s.m.epoch {
			to := *s
			to.srv[i], to.req[i] = ckServer{}, ckChange{}
			o.will(to, "server %v notices that it is superseded", i)
		}
		if v.epoch < s.fence {
			continue
		}
		c.open(s, i, o)
		c.write(s, i, o)
		c.checkpoint(s, i, o)
		c.list(s, i, o)
	}
}

// refuse forgets those changes that cannot happen any more, as they are of older epochs.
func (c checkpoints) refuse(s *ckState) {
	for i := range s.req {
		if r := &s.req[i]; r.epoch < s.m.epoch && !r.taken && c.broken != "change-without-compare" {
			*r = ckChange{}
		}
	}
}

// change is what becomes of a change of the manifest that server i has asked for.
func (c checkpoints) change(s *ckState, i int, o *offers[ckState]) {
	r, v := s.req[i], &s.srv[i]
	if r.slot == 0 {
		return
	}
	if !r.taken {
		to := *s
		for k := range to.req {
			if k != i {
				to.req[k] = ckChange{}
			}
		}
		if to.req[i].taken = true; !v.waiting {
			to.req[i] = ckChange{} // nobody waits for the answer
		}
		if r.tail {
			to.m.tail = s.m.tail&^r.drop | bit(int(r.slot)-1)
			o.will(to, "the manifest lists segment %v of the journal now, and drops those that are not needed", int(r.slot)-1)
		} else {
			to.m.root, to.m.next = r.slot, r.next
			o.will(to, "the manifest has the checkpoint in segment %v as its root now, and replays from record %v on", int(r.slot)-1, int(r.next))
		}
	}
	if !v.waiting {
		return
	}
	if r.taken {
		to := *s
		to.req[i] = ckChange{}
		to.srv[i].waiting = false
		c.changed(&to, i, r)
		o.will(to, "server %v knows that its change has happened", i)
	}
	if s.lost < c.lost {
		to := *s
		to.lost++
		w := &to.srv[i]
		if w.waiting = false; r.taken {
			to.req[i] = ckChange{}
		}
		if !r.tail {
			w.step, w.into = ckNone, 0
			w.doubt |= bit(int(r.slot) - 1)
			switch c.broken {
			case "doubt-is-yes":
				w.doubt = 0
				w.free |= c.checkpointsBut(&to, int(r.slot)-1)
			case "doubt-is-no":
				w.doubt &^= bit(int(r.slot) - 1)
				w.free |= bit(int(r.slot) - 1)
			}
		} else if c.broken == "doubtful-drop" {
			w.free |= r.drop
			w.drop &^= r.drop
		}
		o.may(to, "server %v does not hear whether its change has happened, and gives up", i)
	}
}

// checkpointsBut are the segments of checkpoints but one.
func (c checkpoints) checkpointsBut(s *ckState, but int) (mask uint8) {
	for t := range s.seg {
		if t != but && s.seg[t].kind == ckCheckpoint {
			mask |= bit(t)
		}
	}
	return mask
}

// changed is what server i does when it knows that its change has happened.
func (c checkpoints) changed(s *ckState, i int, r ckChange) {
	v := &s.srv[i]
	if r.tail {
		v.fresh, v.drop = 0, v.drop&^r.drop
		if c.broken != "free-journal-first" {
			v.free |= r.drop
		}
		g := &s.seg[r.slot-1]
		if g.from = v.last + 1; v.st == ckServing { // what has not arrived is sent again
			old := &s.seg[v.cur-1]
			g.from, g.sent = old.from+old.kept, old.sent-old.kept
		}
		v.st, v.cur = ckServing, r.slot
		return
	}
	v.step, v.into, v.doubt = ckNone, 0, 0
	if c.broken != "free-old-first" && c.broken != "old-root-stays" {
		v.free |= c.checkpointsBut(s, int(r.slot)-1)
	}
	upTo := v.upTo
	if c.broken == "drop-all-there-is" {
		upTo = v.last
	}
	for t := range s.seg {
		if g := &s.seg[t]; s.m.tail&bit(t) != 0 && t+1 != int(v.cur) && t+1 != int(v.fresh) && g.from+g.sent <= upTo+1 {
			v.drop |= bit(t)
		}
	}
	if v.st == ckReplayed {
		v.st, v.drop = ckBeginning, s.m.tail
	}
}

// open is how server i comes from the epoch to what was there.
func (c checkpoints) open(s *ckState, i int, o *offers[ckState]) {
	v, to := &s.srv[i], *s
	w := &to.srv[i]
	switch v.st {
	case ckRaised:
		to.fence, w.st = v.epoch, ckFenced
		if c.broken == "prune-before-fence" {
			w.free = c.unlisted(s, i)
		}
		o.will(to, "the storage is fenced for server %v", i)
	case ckFenced:
		if s.m.epoch == v.epoch {
			w.last, _ = s.recover()
			w.st, w.free = ckReplayed, c.unlisted(s, i)
			if c.broken == "never-prune" {
				w.free = 0
			}
			if c.broken == "begin-before-checkpoint" {
				w.st, w.drop = ckBeginning, s.m.tail
			}
			o.will(to, "server %v has replayed up to record %v", i, int(w.last))
		}
	}
}

// unlisted are the segments of older epochs that the manifest does not list.
func (c checkpoints) unlisted(s *ckState, i int) (mask uint8) {
	for t := range s.seg {
		g := &s.seg[t]
		if g.kind != ckFree && g.epoch < s.srv[i].epoch && t+1 != int(s.m.root) && (s.m.tail&bit(t) == 0 || c.broken == "prune-journal") {
			mask |= bit(t)
		}
	}
	return mask
}

// write is what server i does with records.
func (c checkpoints) write(s *ckState, i int, o *offers[ckState]) {
	v := &s.srv[i]
	if v.st != ckServing {
		return
	}
	g := &s.seg[v.cur-1]
	if v.last < c.records && g.sent < ckRecords {
		to := *s
		to.srv[i].last++
		to.seg[v.cur-1].sent++
		o.may(to, "server %v sends record %v to segment %v", i, int(v.last)+1, int(v.cur)-1)
	}
	if end := g.from + g.kept; end > s.acked+1 {
		to := *s
		to.acked = end - 1
		o.will(to, "server %v acknowledges record %v", i, int(to.acked))
	}
}

// alloc borrows a segment, and returns 1 + its number, or 0.
func (s *ckState) alloc(g ckSegment) uint8 {
	first, end := 0, ckRoots // fewer states: journals and checkpoints have places of their own
	if g.kind == ckJournal {
		first, end = ckRoots, ckSegments
	}
	for t := first; t < end; t++ {
		if s.seg[t].kind == ckFree {
			s.seg[t] = g
			return uint8(t) + 1
		}
	}
	return 0
}

// checkpoint takes one: it is written, it becomes the root, and what only the one before needs is given back.
func (c checkpoints) checkpoint(s *ckState, i int, o *offers[ckState]) {
	v, to := &s.srv[i], *s
	w := &to.srv[i]
	switch {
	case v.step == ckNone && (v.st == ckServing && (v.doubt != 0 || s.seg[s.m.root-1].upTo < v.last) || v.st == ckReplayed):
		w.step, w.upTo = ckWriting, v.last
		if w.into = to.alloc(ckSegment{kind: ckCheckpoint, epoch: v.epoch, upTo: v.last}); w.into == 0 {
			return
		}
		if v.doubt != 0 || v.st == ckReplayed {
			o.will(to, "server %v begins a checkpoint of what there is up to record %v, in segment %v", i, int(v.last), int(w.into)-1)
		} else {
			o.may(to, "server %v begins a checkpoint of what there is up to record %v, in segment %v", i, int(v.last), int(w.into)-1)
		}
	case v.step == ckWriting || v.step == ckAsked && !s.seg[v.into-1].whole:
		to.seg[v.into-1].whole = true
		if v.step == ckWriting {
			w.step = ckWritten
		}
		o.will(to, "the checkpoint in segment %v is whole", int(v.into)-1)
	}
	if ready := v.step == ckWritten || c.broken == "root-before-whole" && v.step == ckWriting; ready && !v.waiting {
		to := *s
		w := &to.srv[i]
		w.step, w.waiting = ckAsked, true
		to.req[i] = ckChange{epoch: v.epoch, slot: v.into, next: v.upTo + 1}
		if c.broken == "position-of-now" {
			to.req[i].next = v.last + 1
		}
		if c.broken == "free-old-first" {
			w.free |= c.checkpointsBut(s, int(v.into)-1)
		}
		c.refuse(&to)
		o.will(to, "server %v asks for the checkpoint in segment %v to be the root", i, int(v.into)-1)
	}
}

// list has the manifest list another segment of the journal, and no longer those that a checkpoint has.
func (c checkpoints) list(s *ckState, i int, o *offers[ckState]) {
	v := &s.srv[i]
	must := v.st == ckBeginning || v.drop != 0 || v.fresh != 0
	if v.waiting || v.st < ckBeginning || !must && (s.seg[v.cur-1].sent == 0 || bits.OnesCount8(s.m.tail) > 1) {
		return
	}
	to := *s
	w := &to.srv[i]
	if w.fresh == 0 {
		w.fresh = to.alloc(ckSegment{kind: ckJournal, epoch: v.epoch})
	}
	if w.fresh == 0 {
		return
	}
	w.waiting = true
	to.req[i] = ckChange{epoch: v.epoch, tail: true, slot: w.fresh, drop: v.drop}
	if c.broken == "free-journal-first" {
		w.free |= v.drop
	}
	c.refuse(&to)
	if must {
		o.will(to, "server %v asks for segment %v to be listed", i, int(w.fresh)-1)
	} else {
		o.may(to, "server %v asks for segment %v to be listed", i, int(w.fresh)-1)
	}
}
