package keyspace

import (
	"slices"

	"polder/far"
	"polder/internal/invariants"
	"polder/resp/hashes"
)

// A command's changes count together or not at all. A command that makes a single change need do nothing for that:
// far memory stores an entry or does not. A command that makes several calls Begin before the first, and makes them
// in a transaction of far memory. Beside entries, a command may change what leads to the blocks of large hashes; undo
// remembers how that was before. When the handler has returned, the caller ends the command's changes, with the
// command's locks still held. If the handler has failed, the command has changed nothing, and may be run again.
//
// In a cache there are no transactions: whatever a store may refuse, it refuses before the first change, and EXEC
// undoes nothing, as in Redis.
type changes struct {
	txn      *far.Txn // made when it is first needed
	together bool     // the changes are made in txn
	made     bool     // the command has changed something
	undo     []undo
	touched  [][]byte        // keys that have changed, and that somebody may watch
	dropped  []*hashes.Large // hashes that a key no longer leads to; perhaps another key does now
	full     bool            // there was no room for a shortened list
	struck   [][]byte        // keys of hashes whose fields were struck out (see hashes.Strikes)
	notes    []byte          // the changes, for the journal
}

// undo says how things were before one change in local memory. If st is nil, *h had the value was; otherwise, key led
// to h (which may be nil) in the stripe st.
type undo struct {
	h   *hashes.Large
	was hashes.Large
	st  *stripe
	key string
}

// Begin makes all changes of the command that follow count together.
func (a *Access) Begin() {
	if a.Space.loading.Load() && !a.replays || a.Space.heap == nil || a.together {
		return
	}
	if a.txn == nil {
		a.txn = a.Space.heap.NewTxn()
	}
	a.together = true
}

// changing is called before each change.
func (a *Access) changing() {
	if invariants.Enabled && a.made && !a.together && a.Space.heap != nil {
		panic("BUG: a command makes its second change without a transaction")
	}
}

// changedKey is called after each change of a key.
func (a *Access) changedKey(key []byte) {
	a.made = true
	if a.Space.watches.any() {
		a.touched = append(a.touched, key)
	}
}

// save remembers h, which is about to change.
func (a *Access) save(h *hashes.Large) { a.undo = append(a.undo, undo{h: h, was: *h}) }

// End ends the changes of a command whose handler has returned err. With an error it undoes them, but not in a cache.
// The command's locks must be held. What undo remembers of a hash is true only as long as they are, so End forgets it
// even if nothing has changed.
func (a *Access) End(err error) {
	if !a.made && !a.together && len(a.undo) == 0 {
		return
	}
	if err != nil && a.Space.heap != nil {
		if invariants.Enabled && a.made && !a.together {
			panic("BUG: a command that has changed something fails: " + err.Error())
		}
		a.rollback()
	} else {
		a.commit()
	}
	a.together, a.made, a.full = false, false, false
	Reuse(&a.notes, a.notes)
	clear(a.undo)
	clear(a.touched)
	clear(a.dropped)
	clear(a.struck)
	a.undo, a.touched, a.dropped, a.struck = a.undo[:0], a.touched[:0], a.dropped[:0], a.struck[:0]
}

func (a *Access) commit() {
	if len(a.notes) > 0 {
		a.Space.journal.append(a.notes)
	}
	if a.together {
		a.txn.Commit()
	}
	for _, key := range a.touched {
		a.Space.watches.touch(key)
	}
	for _, h := range a.dropped {
		if h.Leads == 0 {
			h.Leads = -1 // give it to the sweeper once, however often it was dropped
			a.Space.sweeper.drop(h)
		}
	}
	for _, key := range a.struck {
		st := a.stripe(key)
		if h := st.large[string(key)]; h != nil && a.Space.settleStruck(a.ctx, st, string(key), h) != nil {
			a.Space.unsettled.Add(int64(h.Struck.Len())) // the sweeper will try again
		}
	}
}

func (a *Access) rollback() {
	if a.together {
		a.txn.Rollback()
	}
	for _, u := range slices.Backward(a.undo) {
		if u.st != nil {
			a.Space.lead(u.st, u.key, u.h)
		} else {
			*u.h = u.was
		}
	}
}
