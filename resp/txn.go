package resp

import (
	"slices"

	"polder/far"
	"polder/internal/invariants"
	"polder/resp/hashes"
)

// A command's changes count together or not at all. One that makes a single
// change need not do anything for that: far memory stores an entry or does not.
// One that makes several calls begin before the first, and makes them in a
// transaction of far memory. What a command changes beside entries, which is
// what leads to the blocks of large hashes, is remembered in undo. The session
// ends the command's changes when the handler has returned, under its locks:
// with an error it has changed nothing, and may be run again.
//
// In a cache no store fails that was not refused before the first change, and
// EXEC is as in Redis.
type changes struct {
	txn      *far.Txn // made when it is first needed
	together bool     // the changes are made in txn
	made     bool     // there are some
	undo     []undo
	touched  [][]byte        // keys that have changed and that somebody may watch
	dropped  []*hashes.Large // that a key led to: perhaps another one does now
	full     bool            // there is no room for a list that has become shorter
	struck   [][]byte        // keys of hashes of which something is struck out (see hashes.Strikes)
	notes    []byte          // what the journal is to know
}

// undo says what one change in local memory has changed: the value of a
// hashes.Large, or, if there is a stripe, the one that key leads to there.
type undo struct {
	h   *hashes.Large
	was hashes.Large
	st  *stripe
	key string
}

// begin makes the changes that follow ones that count together.
func (s *session) begin() {
	if s.srv.loading.Load() && !s.replays || s.srv.heap == nil || s.together {
		return
	}
	if s.txn == nil {
		s.txn = s.srv.heap.NewTxn()
	}
	s.together = true
}

// changing is called before each change.
func (s *session) changing() {
	if invariants.Enabled && s.made && !s.together && s.srv.heap != nil {
		panic("BUG: a command makes its second change without a transaction")
	}
}

// changedKey is called after each change of a key.
func (s *session) changedKey(key []byte) {
	s.made = true
	if s.srv.watches.any() {
		s.touched = append(s.touched, key)
	}
}

// save remembers h, which is about to change.
func (s *session) save(h *hashes.Large) { s.undo = append(s.undo, undo{h: h, was: *h}) }

// end ends the changes of a command, which has come to err. The command's locks
// must be held: what is remembered of a hash is true no longer than they are, so that it is
// forgotten even if nothing has changed.
func (s *session) end(err error) {
	if !s.made && !s.together && len(s.undo) == 0 {
		return
	}
	if err != nil && s.srv.heap != nil {
		if invariants.Enabled && s.made && !s.together {
			panic("BUG: a command that has changed something fails: " + err.Error())
		}
		s.rollback()
	} else {
		s.commit()
	}
	s.together, s.made, s.full = false, false, false
	reuse(&s.notes, s.notes)
	clear(s.undo)
	clear(s.touched)
	clear(s.dropped)
	clear(s.struck)
	s.undo, s.touched, s.dropped, s.struck = s.undo[:0], s.touched[:0], s.dropped[:0], s.struck[:0]
}

func (s *session) commit() {
	if len(s.notes) > 0 {
		s.srv.journal.append(s.notes)
	}
	if s.together {
		s.txn.Commit()
	}
	for _, key := range s.touched {
		s.srv.watches.touch(key)
	}
	for _, h := range s.dropped {
		if h.Leads == 0 {
			h.Leads = -1 // once, however often it was dropped
			s.srv.sweeper.drop(h)
		}
	}
	for _, key := range s.struck {
		st := s.stripe(key)
		if h := st.large[string(key)]; h != nil && s.srv.settleStruck(s.ctx, st, string(key), h) != nil {
			s.srv.unsettled.Add(int64(h.Struck.Len())) // the sweeper goes on with it
		}
	}
}

func (s *session) rollback() {
	if s.together {
		s.txn.Rollback()
	}
	for _, u := range slices.Backward(s.undo) {
		if u.st != nil {
			s.srv.lead(u.st, u.key, u.h)
		} else {
			*u.h = u.was
		}
	}
}
