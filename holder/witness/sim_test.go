//go:build !race

// The simulation is one goroutine, so the race detector has nothing to find in it and
// would make it take four times as long.

package witness

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"polder/holder"
	"polder/internal/linear"
)

// A world is witnesses, clients and an operator, who exchange messages that are lost, late,
// reordered and repeated. It has one goroutine and one source of chance: the same seed does
// the same again.
type world struct {
	rng       *rand.Rand
	bug       bug
	steps     int
	clock     int64
	witnesses []*simWitness
	clients   []*simClient
	operators []*simOperator
	packets   []func() // each delivers a message
	newest    *Set     // the newest that is known to vote
	history   []porcupine.Operation
	writes    int
	trace     []string
}

// bug is a mistake that is planted: the protocol must be seen to break.
type bug string

const (
	noBug               bug = ""
	answerBeforeSync    bug = "a witness answers before it has synced"
	forgetPromises      bug = "a witness does not keep its promises over a restart"
	acceptBelowPromise  bug = "a witness accepts below its promise"
	sameIdentity        bug = "a witness that has lost its state keeps its identity"
	halfIsEnough        bug = "two of four decide"
	keepLead            bug = "a proposer that was superseded goes on without the first phase"
	anyAccepted         bug = "a proposer goes on from the answer that came last, not the highest ballot"
	showUndecided       bug = "a read returns what it has found without deciding it"
	pollHighest         bug = "a poll returns the highest of different ballots"
	unknownIsFailed     bug = "a change that may have happened is said to have failed"
	forgetChange        bug = "a proposer does not recognise its own change"
	noSettling          bug = "a read after an unknown change does not settle it"
	noSealing           bug = "a witness goes on after it was sealed"
	copyFromOne         bug = "registers are copied from one witness instead of a majority"
	noCopying           bug = "a set begins without what was accepted before"
	promiseIsNotChecked bug = "a witness promises below its promise"
)

func (w *world) logf(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%4d ", w.steps)+fmt.Sprintf(format, args...))
}

func (w *world) chance(percent int) bool { return w.rng.IntN(100) < percent }

func (w *world) tick() int64 {
	w.clock++
	return w.clock
}

// simWitness is an acceptor with a log that loses what was not synced.
type simWitness struct {
	w       *world
	addr    string
	acc     *acceptor
	log     [][]byte
	synced  int
	pending []func() // answers that wait for the sync
}

func (s *simWitness) fresh() {
	var id Identity
	for i := range id {
		id[i] = byte(s.w.rng.Uint32())
	}
	if s.w.bug == sameIdentity && s.acc != nil {
		// What is left of it would say that it votes, and nothing else.
		id = s.acc.id
		set := s.acc.set
		s.start([][]byte{(&change{Kind: changeIdentity, ID: id}).append(nil)})
		if set != nil {
			s.log = append(s.log, (&change{Kind: changeSet, Set: set}).append(nil))
			s.start(s.log)
		}
		return
	}
	s.start([][]byte{(&change{Kind: changeIdentity, ID: id}).append(nil)})
}

// start reads a log.
func (s *simWitness) start(log [][]byte) {
	s.acc, s.log, s.synced, s.pending = newAcceptor(limits{100, 1 << 20}), log, len(log), nil
	for _, rec := range log {
		c, err := decodeChange(rec)
		if err != nil {
			panic(err)
		}
		if s.w.bug == forgetPromises {
			if c.Kind == changePromise {
				continue
			}
			c.Promised = c.Accepted.Ballot
		}
		s.acc.apply(c)
	}
}

// crash loses some of what was not synced.
func (s *simWitness) crash() {
	s.start(s.log[:s.synced+s.w.rng.IntN(len(s.log)-s.synced+1)])
}

// receive answers a request some time later.
func (s *simWitness) receive(q *request, answer func(*reply)) {
	w := s.w
	if reg, ok := s.acc.registers[q.Name]; ok && (w.bug == acceptBelowPromise && q.Kind == kindAccept || w.bug == promiseIsNotChecked && q.Kind == kindPrepare) {
		reg.promised = ballot{}
		s.acc.registers[q.Name] = reg
	}
	next := s.acc.next
	if w.bug == noSealing && (q.Kind == kindRead || q.Kind == kindPrepare || q.Kind == kindAccept) {
		s.acc.next = nil
	}
	r, changes := s.acc.decide(q)
	s.acc.next = next
	for _, c := range changes {
		rec := c.append(nil)
		again, err := decodeChange(rec)
		if err != nil {
			panic(err)
		}
		s.acc.apply(again)
		s.log = append(s.log, rec)
	}
	body := r.append(nil)
	send := func() {
		r, err := decodeReply(body)
		if err != nil {
			panic(err)
		}
		w.packets = append(w.packets, func() { answer(r) })
	}
	if w.bug == answerBeforeSync {
		send()
		return
	}
	s.pending = append(s.pending, send)
}

func (s *simWitness) sync() {
	s.synced = len(s.log)
	for _, send := range s.pending {
		send()
	}
	s.pending = nil
}

// send sends a request to a member of a set.
func (w *world) send(m Member, q request, answer func(*reply)) {
	q.To = m.ID
	to := w.at(m.Addr)
	body := q.append(nil)
	w.packets = append(w.packets, func() {
		q, err := decodeRequest(body)
		if err != nil {
			panic(err)
		}
		to.receive(q, answer)
	})
}

func (w *world) at(addr string) *simWitness {
	i, err := strconv.Atoi(addr)
	if err != nil {
		panic(err)
	}
	return w.witnesses[i]
}

// simClient makes operations on one register, one after the other.
type simClient struct {
	w         *world
	number    int
	p         *proposer
	set       *Set // that it knows
	sent      uint64
	op        *operation
	poll      *poll // not nil while it reads without writing
	began     int64
	version   uint64 // that it saw last
	unsettled string // values of changes of which it does not know whether they have happened
	led       bool
	old       state
	only      *Set             // it ends when another set votes
	done      func(*operation) // called at the end of an operation; nil: it is part of the history
}

func (w *world) newClient(name string, set *Set) *simClient {
	w.writes++
	c := &simClient{w: w, number: w.writes, set: set, p: &proposer{name: name, id: w.rng.Uint64()}}
	c.use()
	return c
}

func (c *simClient) use() {
	c.p.use(c.set)
	if c.w.bug == halfIsEnough {
		c.p.quorum = len(c.set.Members) / 2
	}
}

// input and output of operations, for the checker.
type (
	input  = linear.RegisterInput
	output = linear.RegisterOutput
)

// begin begins an operation.
func (c *simClient) begin() {
	w := c.w
	c.began = w.tick()
	if w.chance(55) {
		version := c.version
		if w.chance(10) {
			version = uint64(w.rng.IntN(int(c.version) + 2))
		}
		w.writes++
		c.op = &operation{swap: true, version: version, value: []byte("v" + strconv.Itoa(w.writes))}
	} else {
		c.op = &operation{}
		if w.chance(70) && (c.unsettled == "" || w.bug == noSettling) {
			c.look()
			return
		}
	}
	c.p.begin(c.op)
	c.pump()
}

// look polls.
func (c *simClient) look() {
	w, set := c.w, c.set
	p := &poll{set: set}
	c.poll = p
	for i, m := range set.Members {
		w.send(m, request{Kind: kindRead, Cluster: set.Cluster, Set: set.Version, Name: c.p.name}, func(r *reply) {
			if c.poll != p {
				return
			}
			s, known, over := p.answer(i, r)
			if over = over || w.bug == pollHighest && len(p.replies) >= set.majority(); over && w.bug == pollHighest {
				known, s = true, state{}
				for _, o := range p.replies {
					if s.Ballot.less(o.Ballot) {
						s = o
					}
				}
			}
			if known {
				c.end(output{Version: s.Version, Value: string(s.Value)})
			} else if over {
				c.give()
			}
		})
	}
}

// give goes on with a round after a poll without a result.
func (c *simClient) give() {
	c.poll = nil
	c.p.begin(c.op)
	c.pump()
}

// pump sends the requests of a new round, and ends what is done.
func (c *simClient) pump() {
	p := c.p
	if p.phase == phaseIdle {
		op := c.op
		switch {
		case c.done != nil:
			c.op = nil
			c.done(op)
		case errors.Is(op.err, holder.ErrUnknown):
			c.unknown()
		case op.err != nil:
			c.end(output{Changed: true})
		case op.swap:
			c.end(output{Version: op.found.Version})
		default:
			c.end(output{Version: op.found.Version, Value: string(op.found.Value)})
		}
		return
	}
	if !p.waiting() || p.round == c.sent {
		return
	}
	c.sent = p.round
	round, set := p.round, p.set
	if c.led = p.lead; c.led {
		c.old = p.known
	}
	for i, m := range set.Members {
		c.w.send(m, p.request(), func(r *reply) { c.answer(round, i, r) })
	}
}

func (c *simClient) answer(round uint64, member int, r *reply) {
	if c.op == nil || c.poll != nil {
		return
	}
	c.learn(r)
	p := c.p
	if round != p.round || !p.waiting() {
		return
	}
	was := p.phase
	if c.w.bug == anyAccepted && r.Status == statusOK {
		p.best = state{}
	}
	p.answer(round, member, r)
	if c.w.bug == showUndecided && was == phasePrepare && p.phase == phaseAccept && !c.op.swap {
		found := p.known
		p.abandon()
		c.end(output{Version: found.Version, Value: string(found.Value)})
		return
	}
	c.pump()
}

// learn takes a newer set.
func (c *simClient) learn(r *reply) {
	if r.Set != nil && r.Set.Version > c.set.Version {
		c.set = r.Set
	}
	if r.Status == statusSealed && c.w.chance(20) {
		c.w.transfer(c.set, r.Next)
	}
}

// end ends an operation that has a result.
func (c *simClient) end(out output) {
	w := c.w
	in := input{Swap: c.op.swap, Version: c.op.version, Value: string(c.op.value)}
	if !c.op.swap {
		in.Settles, c.unsettled = c.unsettled, ""
	}
	w.history = append(w.history, porcupine.Operation{ClientId: c.number, Input: in, Call: c.began, Output: out, Return: w.tick()})
	w.logf("client %d: %+v at %d: %+v", c.number, w.history[len(w.history)-1].Input, c.began, out)
	if !out.Changed {
		c.version = out.Version
	}
	c.op, c.poll = nil, nil
}

// unknown ends an operation that may have happened, and may still.
func (c *simClient) unknown() {
	w := c.w
	if w.bug != unknownIsFailed {
		c.unsettled += string(c.op.value) + " "
		w.history = append(w.history, porcupine.Operation{ClientId: c.number, Input: input{Swap: true, Version: c.op.version, Value: string(c.op.value)}, Call: c.began, Output: output{Unknown: true}, Return: 1 << 60})
	}
	w.logf("client %d: %+v at %d: unknown", c.number, c.op, c.began)
	c.op = nil
}

// step does something that takes no message.
func (c *simClient) step() {
	w, p := c.w, c.p
	switch {
	case c.only != nil && c.only.Version < w.newest.Version:
		c.abandon()
	case c.op == nil && c.done == nil:
		if w.newest.Version > c.set.Version && w.chance(30) {
			c.set = w.newest // it has asked somebody
		}
		c.use()
		c.begin()
	case c.op == nil:
	case c.poll != nil && w.chance(10):
		c.give()
	case c.poll != nil:
	case w.chance(2), p.phase == phaseAccept && w.chance(3):
		c.abandon()
	case p.phase == phaseFailed:
		if w.newest.Version > c.set.Version && w.chance(30) {
			c.set = w.newest
		}
		if c.only == nil {
			c.use()
		}
		switch {
		case w.bug == keepLead && c.led && p.set.Version == c.op.change.Set:
			p.mine, p.known = p.nextBallot(), c.old
			p.propose()
		default:
			if w.bug == forgetChange {
				c.op.proposed, c.op.change = false, ballot{}
			}
			p.retry()
		}
		c.pump()
	case p.waiting() && w.chance(3): // it has waited long enough
		round := p.round
		for i := range p.set.Members {
			p.fail(round, i)
		}
	}
}

// abandon gives an operation up: time is up, or the client dies.
func (c *simClient) abandon() {
	if c.op == nil {
		return
	}
	if c.p.phase != phaseIdle && c.p.abandon() && c.done == nil {
		c.unknown()
	}
	c.op, c.poll = nil, nil
}

// simOperator changes the set, or finishes a change.
type simOperator struct {
	w        *world
	client   *simClient // that has the set decide; nil while it copies
	next     func() (*question, bool)
	stop     func()
	asked    *question
	over     bool
	from, to *Set
}

// question is one of transfer's.
type question struct {
	set    *Set
	who    []int
	least  int
	q      request
	agreed map[int]*reply
	open   int
}

// transfer begins to copy.
func (w *world) transfer(from, to *Set) {
	if len(w.operators) > 3 || to == nil || to.Version != from.Version+1 {
		return
	}
	o := &simOperator{w: w}
	o.copy(from, to)
	w.operators = append(w.operators, o)
}

// coroutine asks for transfer, which runs in turn with everything else.
type coroutine struct {
	bug   bug
	yield func(*question) bool
}

func (c coroutine) gather(_ context.Context, set *Set, who []int, least int, q request) (map[int]*reply, error) {
	switch {
	case c.bug == noCopying && q.Kind == kindInstall:
		agreed := make(map[int]*reply)
		for _, i := range who {
			agreed[i] = nil
		}
		return agreed, nil
	case c.bug == copyFromOne && q.Kind == kindSeal:
		got, err := c.ask(set, who, least, q)
		if err != nil {
			return nil, err
		}
		first := slices.Min(slices.Collect(maps.Keys(got)))
		maps.DeleteFunc(got, func(i int, _ *reply) bool { return i != first })
		return got, nil
	}
	return c.ask(set, who, least, q)
}

var errStopped = errors.New("stopped")

func (c coroutine) ask(set *Set, who []int, least int, q request) (map[int]*reply, error) {
	a := &question{set: set, who: who, least: least, q: q, agreed: make(map[int]*reply), open: len(who)}
	if !c.yield(a) {
		return nil, errStopped
	}
	if len(a.agreed) < least {
		return nil, errors.New("too few agree")
	}
	return a.agreed, nil
}

func (o *simOperator) copy(from, to *Set) {
	o.client, o.from, o.to = nil, from, to
	o.w.logf("copying %v to %v", from, to)
	o.next, o.stop = iter.Pull(func(yield func(*question) bool) {
		if err := transfer(context.Background(), coroutine{o.w.bug, yield}, from, to); err != nil {
			o.w.logf("copying to %v: %v", to, err)
			return
		}
		o.w.logf("%v votes", to)
		if o.w.newest.Version < to.Version {
			o.w.newest = to
		}
	})
	o.resume()
}

func (o *simOperator) resume() {
	q, ok := o.next()
	if !ok {
		o.over = true
		return
	}
	o.asked = q
	for _, i := range q.who {
		o.w.send(q.set.Members[i], q.q, func(r *reply) {
			if o.asked != q || o.over {
				return
			}
			if q.open--; r.Status == statusOK {
				q.agreed[i] = r
			}
			if q.open == 0 {
				o.resume()
			}
		})
	}
}

// step does something that takes no message.
func (o *simOperator) step() {
	switch w := o.w; {
	case o.over:
	case o.client != nil:
		o.client.step()
		if o.client.op == nil && o.client != nil {
			o.over = true
		}
	case w.chance(1): // it dies
		o.over = true
		o.stop()
	case len(o.asked.agreed) >= o.asked.least && w.chance(20), w.chance(2):
		o.resume()
	}
}

// change begins to change the set.
func (w *world) change() {
	n := min(3+2*w.rng.IntN(2), len(w.witnesses))
	if w.bug == halfIsEnough {
		n = 4
	}
	from := w.newest
	to := &Set{Cluster: from.Cluster, Version: from.Version + 1}
	for _, i := range w.rng.Perm(len(w.witnesses))[:n] {
		s := w.witnesses[i]
		to.Members = append(to.Members, Member{s.acc.id, s.addr})
	}
	o := &simOperator{w: w, client: w.newClient(successor, from)}
	o.client.only = from
	o.client.op = &operation{swap: true, value: appendSet(nil, to)}
	o.client.done = func(op *operation) {
		switch {
		case op.err == nil:
			o.copy(from, to)
		case errors.Is(op.err, holder.ErrChanged):
			s := source{b: op.found.Value}
			if set := s.set(); set != nil && set.Version == from.Version+1 {
				o.copy(from, set)
			} else {
				o.over = true
			}
		default:
			o.over = true
		}
	}
	o.client.p.begin(o.client.op)
	o.client.pump()
	w.operators = append(w.operators, o)
}

// run lets the world go on for some time, and returns the history.
func run(seed uint64, b bug, steps int) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 1)), bug: b}
	n := 3 + w.rng.IntN(3)
	if b == halfIsEnough {
		n = 4
	}
	var members []Member
	for i := range n {
		s := &simWitness{w: w, addr: strconv.Itoa(i)}
		s.fresh()
		w.witnesses = append(w.witnesses, s)
		members = append(members, Member{s.acc.id, s.addr})
	}
	if b != halfIsEnough {
		members = members[:3+(n-3)/2*2]
	}
	w.newest = firstSet(members)
	for _, m := range members {
		s := w.at(m.Addr)
		s.receive(&request{Kind: kindActivate, To: m.ID, NewSet: w.newest}, func(*reply) {})
		s.sync()
	}
	w.packets = nil
	for range []int{1, 2, 3, 3}[w.rng.IntN(4)] {
		w.clients = append(w.clients, w.newClient("r", w.newest))
	}
	// How rough it is differs from world to world.
	lost, repeated, crashes := w.rng.IntN(15), w.rng.IntN(15), w.rng.IntN(4)
	changes, deaths, inOrder := []int{0, 1, 2, 8}[w.rng.IntN(4)], w.rng.IntN(2), w.chance(70)
	for w.steps = 0; w.steps < steps; w.steps++ {
		switch k := w.rng.IntN(100); {
		case k < crashes:
			s := w.witnesses[w.rng.IntN(n)]
			w.logf("witness %s crashes", s.addr)
			s.crash()
		case k < crashes+changes && w.chance(50):
			if len(w.operators) < 2 {
				w.change()
			}
		case k < crashes+changes+1 && w.chance(40):
			w.lose()
		case k < crashes+changes+2:
			w.tell()
		case k < crashes+changes+2+deaths:
			i := w.rng.IntN(len(w.clients))
			w.clients[i].abandon() // nobody settles what it left
			w.clients[i] = w.newClient("r", w.newest)
		case k < 60 && len(w.packets) > 0:
			i := w.rng.IntN(len(w.packets))
			if inOrder { // more often than not
				i = min(i, w.rng.IntN(len(w.packets)), w.rng.IntN(len(w.packets)))
			}
			deliver := w.packets[i]
			if !w.chance(repeated) {
				w.packets = slices.Delete(w.packets, i, i+1)
			}
			if !w.chance(lost) {
				deliver()
			}
		case k < 80:
			w.witnesses[w.rng.IntN(n)].sync()
		case k < 92:
			w.clients[w.rng.IntN(len(w.clients))].step()
		case len(w.operators) > 0:
			w.operators[w.rng.IntN(len(w.operators))].step()
			w.operators = slices.DeleteFunc(w.operators, func(o *simOperator) bool { return o.over })
		}
	}
	for _, c := range w.clients {
		c.abandon()
	}
	for _, o := range w.operators {
		if o.stop != nil {
			o.stop()
		}
	}
	return w
}

// lose has a witness lose its state, if all the others of the newest set have theirs.
func (w *world) lose() {
	for _, m := range w.newest.Members {
		if w.at(m.Addr).acc.id != m.ID {
			return
		}
	}
	s := w.witnesses[w.rng.IntN(len(w.witnesses))]
	w.logf("witness %s loses its state", s.addr)
	s.fresh()
}

// tell tells a witness of the newest set, as clients do.
func (w *world) tell() {
	m := w.newest.Members[w.rng.IntN(len(w.newest.Members))]
	w.send(m, request{Kind: kindActivate, NewSet: w.newest}, func(*reply) {})
}

func (w *world) linearizable() bool {
	return porcupine.CheckOperationsTimeout(linear.Register, w.history, time.Minute) != porcupine.Illegal
}

const simSteps = 2000

// TestSimulatedRegistersAreLinearizable: whatever happens to messages, witnesses, clients and
// operators.
func TestSimulatedRegistersAreLinearizable(t *testing.T) {
	seeds, ops, swaps, sets := 600, 0, 0, uint64(0)
	if os.Getenv("TEST_SOAK") != "" {
		seeds = 100_000
	}
	for seed := range uint64(seeds) {
		w := run(seed, noBug, simSteps)
		if !w.linearizable() {
			t.Fatalf("seed %d is not linearizable:\n%s", seed, strings.Join(w.trace, "\n"))
		}
		for _, op := range w.history {
			if out := op.Output.(output); op.Input.(input).Swap && !out.Changed && !out.Unknown {
				swaps++
			}
		}
		ops += len(w.history)
		sets += w.newest.Version - 1
	}
	t.Logf("%d seeds: %d operations, of them %d changes that were acknowledged; the set was changed %d times", seeds, ops, swaps, sets)
	if ops < 10*seeds || swaps < 2*seeds || sets < uint64(seeds)/10 {
		t.Error("the simulation gets nothing done: it proves nothing")
	}
}

// TestPlantedBugsAreFound: the simulation would notice.
func TestPlantedBugsAreFound(t *testing.T) {
	for _, b := range []bug{
		answerBeforeSync, forgetPromises, acceptBelowPromise, promiseIsNotChecked, sameIdentity, halfIsEnough, keepLead, anyAccepted, showUndecided,
		pollHighest, unknownIsFailed, forgetChange, noSettling, noSealing, copyFromOne, noCopying,
	} {
		t.Run(string(b), func(t *testing.T) {
			const most = 3000
			for seed := range uint64(most) {
				if !run(seed, b, simSteps).linearizable() {
					t.Logf("found by seed %d", seed)
					return
				}
			}
			t.Errorf("none of %d seeds finds it", most)
		})
	}
}

// TestAPollDoesNotTrustWhatWasCopied: what a majority has from an earlier set may be one of two
// changes that were under way at its end, and others may have been given the other.
func TestAPollDoesNotTrustWhatWasCopied(t *testing.T) {
	set := &Set{Version: 2, Members: []Member{{ID: Identity{1}}, {ID: Identity{2}}, {ID: Identity{3}}}}
	for _, tt := range []struct {
		of    uint64 // the set in which it was accepted
		known bool
	}{{1, false}, {2, true}} {
		p, answered := poll{set: set}, state{Ballot: ballot{tt.of, 5, 7}, Version: 3}
		for i, m := range set.Members {
			_, known, over := p.answer(i, &reply{From: m.ID, Accepted: answered})
			if known != (tt.known && i >= 1) || over != (known || i == 2) {
				t.Errorf("accepted in set %d, after answer %d: known %t, over %t", tt.of, i+1, known, over)
			}
			if over {
				break
			}
		}
	}
}

func TestTheSameSeedDoesTheSame(t *testing.T) {
	a, b := run(7, noBug, simSteps), run(7, noBug, simSteps)
	if !slices.Equal(a.trace, b.trace) {
		t.Error("two runs of a seed differ")
	}
}
