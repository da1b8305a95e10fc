package witness

import (
	"math/bits"

	"polder/holder"
)

// A phase is what a proposer is waiting for.
type phase uint8

const (
	phaseIdle    phase = iota // nothing: it has no operation, or the operation is done
	phasePrepare              // promises of a majority
	phaseAccept               // a majority that accepts
	phaseFailed               // to be told to try again, perhaps with another set
)

// An operation is what a caller wants, and how it ended.
type operation struct {
	swap    bool
	version uint64 // the version to be replaced
	value   []byte

	change   ballot // the ballot by which its change is recognised; zero until the change is proposed
	proposed bool   // somebody may have accepted the change
	found    state  // what the register has, once the operation is done
	err      error  // nil, holder.ErrChanged or holder.ErrUnknown, once the operation is done
}

// A proposer carries out one operation after the other on one register, in rounds of requests to all witnesses of a
// set. It has no goroutines and no clock. Its owner sends what request returns to all members, and reports each reply
// (answer), or that there will be none (fail), in any order, with the number of the round that the request had.
type proposer struct {
	name string
	id   uint64

	set    *Set
	quorum int    // how many members decide
	count  uint64 // the highest Count of all ballots seen
	round  uint64 // number of the requests that are under way

	// lead says that a majority has promised mine and that, as far as their answers say, nothing has been accepted
	// since known was decided.
	lead  bool
	mine  ballot
	known state

	phase     phase
	op        *operation
	proposing state  // while phaseAccept
	best      state  // while phasePrepare: the state accepted in the highest ballot, of those seen
	answered  uint64 // a bit for each member that has answered or failed
	agreed    int    // members that did as they were asked
}

// use makes the proposer ask the members of s from now on.
//
// Preconditions: no round is under way.
func (p *proposer) use(s *Set) {
	if p.set != nil && p.set.equal(s) {
		return
	}
	p.set, p.quorum, p.lead = s, s.majority(), false
	p.count = 0 // counts begin anew with each set
}

// begin begins an operation.
func (p *proposer) begin(op *operation) {
	p.op = op
	switch {
	case op.swap && p.lead && op.version < p.known.Version: // versions only grow
		p.finish(p.known, holder.ErrChanged)
	case op.swap && p.lead && op.version == p.known.Version:
		p.propose()
	default:
		p.prepare()
	}
}

// retry begins another round after a failed one.
func (p *proposer) retry() { p.prepare() }

// abandon ends the operation, and reports whether its change may have happened, or may still
// happen.
func (p *proposer) abandon() (unknown bool) {
	unknown = p.op.proposed
	p.phase, p.op, p.lead = phaseIdle, nil, false
	p.round++ // later answers do not count
	return unknown
}

func (p *proposer) nextBallot() ballot {
	p.count++
	return ballot{p.set.Version, p.count, p.id}
}

func (p *proposer) start(ph phase) {
	p.phase, p.answered, p.agreed = ph, 0, 0
	p.round++
}

func (p *proposer) prepare() {
	p.lead, p.mine, p.best = false, p.nextBallot(), state{}
	p.start(phasePrepare)
}

// propose proposes the operation's change of known, or known as it is if there is no change to make.
func (p *proposer) propose() {
	next, op := p.known, p.op
	if op.swap && next.Version == op.version {
		if op.change == (ballot{}) {
			op.change = p.mine
		}
		op.proposed = true
		next = state{Version: op.version + 1, Change: op.change, Value: op.value}
	}
	next.Ballot = p.mine
	p.proposing, p.mine = next, p.nextBallot()
	p.start(phaseAccept)
}

// request returns the request for every member in the present round.
//
// Preconditions: a round is under way.
func (p *proposer) request() request {
	q := request{Call: p.round, Cluster: p.set.Cluster, Set: p.set.Version, Name: p.name, Ballot: p.mine, Kind: kindPrepare}
	if p.phase == phaseAccept {
		q.Kind, q.Accepted = kindAccept, p.proposing
	}
	return q
}

// waiting reports whether a round is under way.
func (p *proposer) waiting() bool { return p.phase == phasePrepare || p.phase == phaseAccept }

// counts reports whether an answer of a member counts: it must be the member's first one in the round that is under
// way. It marks the member as having answered.
func (p *proposer) counts(round uint64, member int) bool {
	if !p.waiting() || round != p.round || p.answered&(1<<member) != 0 {
		return false
	}
	p.answered |= 1 << member
	return true
}

// fail says that a member will not answer in this round.
func (p *proposer) fail(round uint64, member int) {
	if p.counts(round, member) {
		p.look()
	}
}

// answer takes a member's reply.
func (p *proposer) answer(round uint64, member int, r *reply) {
	if !p.counts(round, member) {
		return
	}
	if r.From != p.set.Members[member].ID {
		p.look()
		return
	}
	if r.Promised.Set == p.set.Version {
		p.count = max(p.count, r.Promised.Count)
	}
	if r.Status == statusOK {
		p.agreed++
		if p.phase == phasePrepare && p.best.Ballot.less(r.Accepted.Ballot) {
			p.best = r.Accepted
		}
	}
	p.look()
}

// look goes to the next phase when a majority has agreed, and ends the round as failed when no majority can agree any
// more.
func (p *proposer) look() {
	switch open := len(p.set.Members) - bits.OnesCount64(p.answered); {
	case p.agreed >= p.quorum && p.phase == phasePrepare:
		p.known = p.best
		p.propose()
	case p.agreed >= p.quorum:
		p.decided()
	case p.agreed+open < p.quorum:
		p.lead, p.phase = false, phaseFailed
	}
}

// decided ends the operation: a majority has accepted its proposal, and with it has promised mine.
func (p *proposer) decided() {
	p.known, p.lead = p.proposing, true
	op := p.op
	switch {
	case !op.swap:
		p.finish(p.known, nil)
	case op.proposed && p.known.Change == op.change:
		p.finish(p.known, nil)
	case op.proposed && p.known.Version > op.version+1:
		// The version after op.version was replaced before it was seen: it may have been this operation's change, or
		// another one.
		p.finish(p.known, holder.ErrUnknown)
	default:
		p.finish(p.known, holder.ErrChanged)
	}
}

func (p *proposer) finish(found state, err error) {
	p.op.found, p.op.err = found, err
	p.phase, p.op = phaseIdle, nil
}

// A poll is a read that writes nothing: it asks all members what they have accepted, and knows the value if a
// majority has accepted in the same ballot.
type poll struct {
	set      *Set
	replies  []state
	answered uint64
	failed   int
}

// answer takes a member's reply, or nil if there will be none. It reports whether the poll is over, and if so whether
// the value is known.
func (p *poll) answer(member int, r *reply) (value state, known, over bool) {
	if p.answered&(1<<member) != 0 {
		return state{}, false, false
	}
	p.answered |= 1 << member
	if r == nil || r.Status != statusOK || r.From != p.set.Members[member].ID {
		p.failed++
		return state{}, false, p.failed > len(p.set.Members)-p.set.majority()
	}
	p.replies = append(p.replies, r.Accepted)
	same := 0
	for _, s := range p.replies {
		if s.Ballot == r.Accepted.Ballot {
			same++
		}
	}
	// A state that was accepted in an earlier set and copied may be one of several proposals that were under way when
	// that set ended. It is decided only once it is accepted in a ballot of this set.
	if b := r.Accepted.Ballot; same >= p.set.majority() && (b.Set == p.set.Version || b == (ballot{})) {
		return r.Accepted, true, true
	}
	return state{}, false, bits.OnesCount64(p.answered) == len(p.set.Members)
}
