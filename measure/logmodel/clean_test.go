package logmodel

// The model of deleting and cleaning: a key is set and deleted, by records of a log, of which each is in a segment of its own. An index says
// where the key's last record is; a checkpoint has the index, and how far it goes. Who opens the heap has the
// checkpoint's index, and replays the records behind it. A delete is a record, too, a tombstone. The cleaner copies a record to the end of the
// log, says in the copy that it has only moved, and removes what nobody needs.
//
// Far memory is cleaned in one of two ways, and both are explored. By the protocol's, copies of the cleaner are replayed as well,
// if the index has the record that they are of: so what was copied can be removed at once, unless a checkpoint comes between the copy and that. By the way of packages far/heap and
// far/farlog, only the journal is replayed: so what the last checkpoint refers to stays until the next one.
//
// How a checkpoint gets to the manifest is another model's matter: here that is one step.

const clSlots = 7 // records there can be in all

type clRecord struct {
	op    uint8 // number of the change that it is of, from 1; 0 if there is no record
	moved bool  // by the cleaner
	kept  bool  // it counts
	gone  bool  // it was removed, or did not count when the owner died
}

// A clIndex is what the owner has in memory: the last change, and the record of the key, if it is set.
type clIndex struct {
	op uint8
	at uint8 // 1 + record, 0 if the key is not there
}

type clCheckpoint struct {
	clIndex
	next uint8 // the first record that is replayed
}

type clState struct {
	rec  [clSlots]clRecord
	end  uint8 // records so far
	sets uint8 // of the changes, by number: those that set the key
	root clCheckpoint

	alive    bool
	index    clIndex
	making   bool // a checkpoint is being made
	frozen   clCheckpoint
	from, to uint8 // 1 + record that is being copied, 1 + the copy once it is sent
	op       uint8 // what the cleaner has read

	acked          uint8
	crashes, moves uint8
}

type cleaning struct {
	broken              string
	held                bool // what the last checkpoint refers to stays, and copies are not replayed
	ops, crashes, moves uint8
}

func (c cleaning) model() model[clState] {
	return model[clState]{clState{alive: true}, c.steps, c.wrong, c.lacking}
}

// recover is the index that whoever opened the heap would have.
func (c cleaning) recover(s *clState) clIndex {
	x := s.root.clIndex
	for t := s.root.next; t < s.end; t++ {
		switch r := s.rec[t]; {
		case r.gone || !r.kept || r.moved && c.held:
		case r.moved && r.op != x.op && c.broken != "moved-is-set":
		default:
			if x = (clIndex{r.op, t + 1}); s.sets&bit(int(r.op)) == 0 {
				x.at = 0
			}
		}
	}
	return x
}

func (c cleaning) wrong(s *clState) string {
	x := c.recover(s)
	if s.alive && s.index.at != 0 && s.sets&bit(int(s.index.op)) == 0 {
		return "a key that was deleted is read"
	}
	for _, x := range []clIndex{x, s.index} {
		if x.at != 0 && (s.rec[x.at-1].gone || s.rec[x.at-1].op != x.op) {
			return "the index refers to a record that was removed"
		}
	}
	deleted := s.sets&bit(int(s.acked)) == 0
	switch {
	case x.op >= s.acked || deleted && x.at == 0:
		return ""
	case deleted:
		return "a key that was deleted is back"
	}
	return "a change that was acknowledged is lost"
}

func (c cleaning) lacking(s *clState) string {
	if !s.alive {
		return "the heap has no owner"
	}
	for t := range s.end {
		if !s.rec[t].gone && t+1 != s.index.at {
			return "a record is kept that nobody needs"
		}
	}
	return ""
}

func (c cleaning) steps(s *clState, o *offers[clState]) {
	if !s.alive {
		to := *s
		to.alive, to.index = true, c.recover(s)
		to.index.op = max(to.index.op, s.acked) // if its tombstone was removed
		o.will(to, "a server opens the heap, and has change %v", int(to.index.op))
		return
	}
	for t := range s.end {
		if r := s.rec[t]; !r.kept && !r.gone {
			to := *s
			to.rec[t].kept = true
			o.will(to, "record %v counts", int(t))
			break // they count in order
		}
	}
	if s.crashes < c.crashes {
		to := clState{rec: s.rec, end: s.end, sets: s.sets, root: s.root, acked: s.acked, crashes: s.crashes + 1, moves: s.moves}
		for t := range to.end {
			to.rec[t].gone = to.rec[t].gone || !to.rec[t].kept
		}
		o.may(to, "the owner dies")
	}
	c.client(s, o)
	c.checkpoint(s, o)
	c.clean(s, o)
	for t := range s.end {
		if c.removable(s, t) {
			to := *s
			to.rec[t] = clRecord{op: s.rec[t].op, gone: true}
			o.will(to, "record %v is removed", int(t))
		}
	}
}

// add adds a record to the log.
func (s *clState) add(r clRecord) (at uint8) {
	s.rec[s.end] = r
	s.end++
	return s.end
}

// client sets and deletes the key.
func (c cleaning) client(s *clState, o *offers[clState]) {
	if s.index.op < c.ops && s.end < clSlots {
		to := *s
		op := s.index.op + 1
		to.index = clIndex{op, to.add(clRecord{op: op})}
		to.sets |= bit(int(op))
		deletes := to
		deletes.sets &^= bit(int(op))
		deletes.index.at = 0
		if s.index.at != 0 {
			o.may(deletes, "change %v deletes the key, by record %v", int(op), int(s.end))
		}
		o.may(to, "change %v sets the key, by record %v", int(op), int(s.end))
	}
	if s.acked < s.index.op && c.counts(s, s.index.op) {
		to := *s
		to.acked = s.index.op
		o.will(to, "change %v is acknowledged", int(s.index.op))
	}
}

// counts reports whether what change op has written counts.
func (c cleaning) counts(s *clState, op uint8) bool {
	for t := range s.end {
		if r := s.rec[t]; r.op == op && !r.moved && !r.gone && !r.kept {
			return false
		}
	}
	return true
}

// checkpoint takes one: of what counts, as the index is at one moment.
func (c cleaning) checkpoint(s *clState, o *offers[clState]) {
	to := *s
	now := clCheckpoint{s.index, s.end}
	// A copy that the index does not refer to yet would be before the checkpoint, and what the index refers to would not stay.
	whole := s.to == 0 || c.held || c.broken == "checkpoint-before-settling"
	for t := range s.end {
		whole = whole && (s.rec[t].kept || s.rec[t].gone)
	}
	switch {
	case s.making:
		to.making, to.frozen, to.root = false, clCheckpoint{}, s.frozen
		if c.broken == "position-of-now" {
			to.root.next = s.end
		}
		o.will(to, "the manifest has the checkpoint, which replays from record %v on", int(to.root.next))
	case whole && s.root != now:
		to.making, to.frozen = true, now
		o.will(to, "a checkpoint is made of what there is up to change %v", int(s.index.op))
	}
}

// clean copies the key's record to the end of the log.
func (c cleaning) clean(s *clState, o *offers[clState]) {
	to := *s
	switch {
	case s.from == 0 && s.index.at != 0 && s.index.at-1 < s.root.next && s.moves < c.moves && s.rec[s.index.at-1].kept:
		to.from, to.op = s.index.at, s.index.op
		to.moves++
		o.may(to, "the cleaner reads record %v", int(s.index.at)-1)
	case s.from != 0 && s.to == 0 && s.end < clSlots:
		to.to = to.add(clRecord{op: s.op, moved: true})
		o.will(to, "the cleaner sends a copy of record %v as record %v", int(s.from)-1, int(s.end))
	case s.from != 0 && s.to == 0:
		to.from, to.op = 0, 0
		o.will(to, "the cleaner gives up")
	case s.from != 0 && (s.rec[s.to-1].kept || c.broken == "settle-before-it-counts"):
		if s.index.at == s.from || c.broken == "settle-blindly" {
			to.index.at = s.to
		}
		to.from, to.to, to.op = 0, 0, 0
		o.will(to, "the cleaner has the index refer to record %v instead of %v, unless it has changed", int(s.to)-1, int(s.from)-1)
	}
}

// removable reports whether nobody needs record t any more.
func (c cleaning) removable(s *clState, t uint8) bool {
	r := s.rec[t]
	switch {
	case r.gone || !r.kept || s.from == t+1 || s.to == t+1:
		return false
	case s.index.at == t+1: // it is what the key is
		return false
	case t >= s.root.next: // it is to be replayed
		return c.broken == "tombstones-first" && s.sets&bit(int(r.op)) == 0 || c.broken == "clean-what-is-replayed"
	case !c.counts(s, s.index.op) && c.broken != "dead-before-it-counts":
		return false // what it died of may come to nothing
	case !c.held:
		return true
	}
	return (s.root.at != t+1 || c.broken == "free-before-checkpoint") && (s.frozen.at != t+1 || c.broken == "free-while-making")
}
