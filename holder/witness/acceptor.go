package witness

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"polder/holder"
)

// limits bound how much a witness keeps.
type limits struct {
	registers int
	bytes     int64 // of names and values
}

// register is what a witness keeps of one register.
type register struct {
	promised ballot // the witness takes part in no ballot below this one
	accepted state
}

func size(name string, r register) int64 { return int64(len(name) + len(r.accepted.Value)) }

// An acceptor is what a witness keeps, and decides what it answers to each request. It does nothing by itself: its
// owner asks it to decide, writes to the log the changes that the answer needs, applies them, and answers when they
// are on the medium.
type acceptor struct {
	limits
	cells     bool // it keeps cells for a Pair, in memory, and belongs to no set
	id        Identity
	set       *Set // nil: it belongs to no set, and has no vote
	next      *Set // if not nil, the witness is sealed: this set comes after set
	registers map[string]register
	used      int64 // bytes of names and values
}

func newAcceptor(l limits) *acceptor {
	return &acceptor{limits: l, registers: make(map[string]register)}
}

// A change must be on the medium before an answer that needs it leaves. Kind says which fields are used.
type change struct {
	Kind     changeKind
	ID       Identity // changeIdentity
	Set      *Set     // changeSet, changeSeal
	Name     string   // changePromise, changeAccept
	Promised ballot   // likewise
	Accepted state    // changeAccept
}

type changeKind uint8

const (
	changeIdentity changeKind = iota + 1 // the witness has the identity ID
	changeSet                            // the witness belongs to Set
	changeSeal                           // the witness is sealed: Set comes next
	changePromise                        // it has promised Promised for the register Name
	changeAccept                         // it has promised Promised, and accepted Accepted, for the register Name
	changeKinds
)

// apply applies a change that is in the log, or will be before an answer leaves. At a start it is called for all
// changes that the log has.
func (a *acceptor) apply(c *change) {
	switch c.Kind {
	case changeIdentity:
		a.id = c.ID
	case changeSeal:
		a.next = c.Set
	case changeSet:
		a.set = c.Set
		if a.next != nil && a.next.Version <= c.Set.Version {
			a.next = nil
		}
		if r, ok := a.registers[successor]; ok { // it was about the successor of the previous set
			a.used -= size(successor, r)
			delete(a.registers, successor)
		}
	case changePromise, changeAccept:
		r, ok := a.registers[c.Name]
		if ok {
			a.used -= size(c.Name, r)
		}
		r.promised = c.Promised
		if c.Kind == changeAccept {
			r.accepted = c.Accepted
		}
		a.registers[c.Name] = r
		a.used += size(c.Name, r)
	}
}

// all calls yield with the changes that make this state from an empty one.
func (a *acceptor) all(yield func(*change)) {
	yield(&change{Kind: changeIdentity, ID: a.id})
	if a.set != nil {
		yield(&change{Kind: changeSet, Set: a.set})
	}
	if a.next != nil {
		yield(&change{Kind: changeSeal, Set: a.next})
	}
	for name, r := range a.registers {
		yield(&change{Kind: changeAccept, Name: name, Promised: r.promised, Accepted: r.accepted})
	}
}

// decide returns the answer to q, and the changes without which the answer must not leave. It changes nothing itself.
func (a *acceptor) decide(q *request) (r reply, changes []*change) {
	r.From = a.id
	switch {
	case q.Kind == kindHello:
		r.Set, r.Next = a.set, a.next
		return r, nil
	case a.cells || q.Kind == kindGet || q.Kind == kindPut:
		return a.cell(q, r)
	case q.To != a.id:
		r.Status = statusStranger
		return r, nil
	case q.Kind == kindInstall || q.Kind == kindActivate:
		return a.admit(q, r)
	case a.set == nil:
		r.Status = statusNoSet
		return r, nil
	case q.Cluster != a.set.Cluster || q.Set != a.set.Version:
		r.Status, r.Set = statusOtherSet, a.set
		return r, nil
	case q.Kind == kindSeal || q.Kind == kindList || q.Kind == kindFetch:
		return a.handOver(q, r)
	case a.next != nil:
		r.Status, r.Next = statusSealed, a.next
		return r, nil
	}
	reg, ok := a.registers[q.Name]
	r.Promised = reg.promised
	switch q.Kind {
	case kindRead:
		r.Accepted = reg.accepted
		return r, nil
	case kindPrepare:
		if q.Ballot.less(reg.promised) {
			r.Status = statusRefused
			return r, nil
		}
		r.Promised, r.Accepted = q.Ballot, reg.accepted
		if q.Ballot == reg.promised {
			return r, nil // it was asked twice
		}
		changes = append(changes, &change{Kind: changePromise, Name: q.Name, Promised: q.Ballot})
	case kindAccept:
		if q.Accepted.Ballot == reg.accepted.Ballot {
			return r, nil // it was asked twice
		}
		if q.Accepted.Ballot.less(reg.promised) {
			r.Status = statusRefused
			return r, nil
		}
		r.Promised = q.Accepted.Ballot
		if r.Promised.less(q.Ballot) {
			r.Promised = q.Ballot
		}
		changes = append(changes, &change{Kind: changeAccept, Name: q.Name, Promised: r.Promised, Accepted: q.Accepted})
	}
	if why := a.room(q.Name, reg, ok, len(q.Accepted.Value)); why != "" {
		return reply{From: a.id, Status: statusFull, Text: why}, nil
	}
	return r, changes
}

// cell answers a client that keeps a register in a pair of cells.
func (a *acceptor) cell(q *request, r reply) (reply, []*change) {
	reg, ok := a.registers[q.Name]
	switch {
	case a.cells && q.Kind == kindList:
		return a.handOver(q, r)
	case !a.cells || q.Kind != kindGet && q.Kind != kindPut:
		r.Status = statusNoSet
		return r, nil
	case q.Kind == kindGet:
		r.Accepted = reg.accepted
		return r, nil
	case q.To != a.id: // this cell is not the one meant: that one has lost its state
		r.Status = statusStranger
		return r, nil
	case q.Accepted.Ballot == reg.accepted.Ballot:
		return r, nil // it was asked twice
	case q.Ballot != reg.accepted.Ballot:
		r.Status, r.Accepted = statusRefused, reg.accepted
		return r, nil
	}
	if why := a.room(q.Name, reg, ok, len(q.Accepted.Value)); why != "" {
		return reply{From: a.id, Status: statusFull, Text: why}, nil
	}
	return r, []*change{{Kind: changeAccept, Name: q.Name, Accepted: q.Accepted}}
}

// room returns why there is no room for a register with a value of n bytes, or "".
func (a *acceptor) room(name string, reg register, known bool, n int) string {
	used := a.used + int64(n)
	if known {
		used -= int64(len(reg.accepted.Value))
	} else {
		used += int64(len(name))
		if len(a.registers) >= a.limits.registers {
			return fmt.Sprintf("it has %d registers, which is as many as it keeps", len(a.registers))
		}
	}
	if used > a.bytes {
		return fmt.Sprintf("names and values of its registers would take %d bytes, and it keeps at most %d", used, a.bytes)
	}
	return ""
}

// handOver answers a client that copies registers to the next set, or lists them.
func (a *acceptor) handOver(q *request, r reply) (reply, []*change) {
	if q.Kind == kindSeal {
		switch {
		case a.next == nil && q.NewSet.Version == a.set.Version+1 && q.NewSet.Cluster == a.set.Cluster:
			return r, []*change{{Kind: changeSeal, Set: q.NewSet}}
		case a.next == nil || !a.next.equal(q.NewSet):
			r.Status, r.Set, r.Next = statusOtherSet, a.set, a.next
		}
		return r, nil
	}
	if q.Kind == kindFetch {
		if a.next == nil { // what it has accepted may still change
			r.Status, r.Set = statusOtherSet, a.set
			return r, nil
		}
		r.Accepted = a.registers[q.Name].accepted
		return r, nil
	}
	r.Next = a.next
	for name, reg := range a.registers {
		if name > q.Name && name != successor && reg.accepted.Ballot != (ballot{}) {
			r.Names = append(r.Names, listed{name, reg.accepted.Ballot})
		}
	}
	slices.SortFunc(r.Names, func(x, y listed) int { return strings.Compare(x.Name, y.Name) })
	r.Names = r.Names[:min(len(r.Names), maxListed)]
	return r, nil
}

// admit answers a client that lets this witness into a set. The client first gives it registers that were accepted in
// the sets before, and then tells it that a majority of the set has been given all of them.
func (a *acceptor) admit(q *request, r reply) (reply, []*change) {
	to := q.NewSet
	switch {
	case !to.has(a.id):
		r.Status = statusStranger
		return r, nil
	case a.set != nil && (a.set.Cluster != to.Cluster || a.set.Version > to.Version || a.set.Version == to.Version && !a.set.equal(to)),
		a.next != nil && (a.next.Cluster != to.Cluster || a.next.Version == to.Version && !a.next.equal(to)),
		to.Version == 1 && a.set == nil && a.next != nil:
		r.Status, r.Set, r.Next = statusOtherSet, a.set, a.next
		return r, nil
	case a.set != nil && a.set.Version == to.Version:
		return r, nil // it is in the set already
	case q.Kind == kindActivate:
		return r, []*change{{Kind: changeSet, Set: to}}
	}
	var changes []*change
	switch {
	case a.next == nil || a.next.Version < to.Version:
		changes = append(changes, &change{Kind: changeSeal, Set: to})
	case a.next.Version > to.Version: // the set has been replaced
		r.Status, r.Next = statusOtherSet, a.next
		return r, nil
	}
	reg, ok := a.registers[q.Name]
	if !reg.accepted.Ballot.less(q.Accepted.Ballot) {
		return r, changes
	}
	if why := a.room(q.Name, reg, ok, len(q.Accepted.Value)); why != "" {
		return reply{From: a.id, Status: statusFull, Text: why}, nil
	}
	promised := reg.promised
	if promised.less(q.Accepted.Ballot) {
		promised = q.Accepted.Ballot
	}
	return r, append(changes, &change{Kind: changeAccept, Name: q.Name, Promised: promised, Accepted: q.Accepted})
}

// successor is the register in which a set decides which set comes next. No caller can name it.
const successor = "\x00next set"

// maxName is how many bytes the name of a register may have.
const maxName = 128

// CheckName returns an error if name cannot be the name of a register: it must have from 1 to 128 bytes, and no
// control characters.
func CheckName(name string) error {
	if len(name) == 0 || len(name) > maxName {
		return fmt.Errorf("a register's name has %d bytes, want from 1 to %d", len(name), maxName)
	}
	if strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return fmt.Errorf("the register's name %q has control characters", name)
	}
	return nil
}

// valid returns what is wrong with a decoded request, or nil.
func (q *request) valid() error {
	switch q.Kind {
	case kindPrepare, kindAccept, kindRead, kindInstall, kindGet, kindPut:
		if q.Name != successor {
			if err := CheckName(q.Name); err != nil {
				return err
			}
		}
	}
	switch q.Kind {
	case kindPrepare:
		if q.Ballot.Set != q.Set || q.Ballot.Count == 0 {
			return fmt.Errorf("the ballot %v is not one of set %d", q.Ballot, q.Set)
		}
	case kindAccept:
		if b := q.Accepted.Ballot; b.Set != q.Set || b.Count == 0 || q.Ballot.Set != q.Set || q.Ballot.less(b) {
			return fmt.Errorf("the ballots %v and %v are not ones of set %d", b, q.Ballot, q.Set)
		}
	case kindPut:
		if q.Accepted.Ballot.Proposer == 0 {
			return errors.New("a cell is to take what has no tag")
		}
	case kindSeal, kindActivate:
		if q.NewSet == nil {
			return fmt.Errorf("a request of kind %d lacks a set", q.Kind)
		}
		return q.NewSet.check()
	case kindInstall:
		if q.NewSet == nil || q.Accepted.Ballot.Set >= q.NewSet.Version || q.Accepted.Ballot.Count == 0 {
			return fmt.Errorf("what is to be installed was not accepted in an earlier set")
		}
		return q.NewSet.check()
	}
	if len(q.Accepted.Value) > holder.MaxValue {
		return fmt.Errorf("a value has %d bytes: %w", len(q.Accepted.Value), holder.ErrTooLarge)
	}
	return nil
}
