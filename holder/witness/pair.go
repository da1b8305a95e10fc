package witness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"polder/holder"
)

// A Pair keeps registers at two nodes, for where there are no three witnesses that could form a majority. Each node
// has a cell for each register. The cells are in the memory of the node's process (NewCells), and end with it.
//
// A cell has a value with a tag that no other value has had. It takes another value from whoever names its present
// tag. A change goes to both cells, one after the other, and has happened when both have it. A client that finds
// different values in the two cells first makes them the same: an empty cell gets what the other one has; otherwise
// the value that wins (see wins), usually the one with the higher version, goes to both. A client that was about to
// change the cell that lost then fails, since it names a tag that the cell no longer has.
//
// While one node does not answer, nothing can be changed, unless GoOn is set. With GoOn, the register's owner (Own)
// goes on with the node that answers, and marks the value there as alone. When both nodes answer again, this value
// wins over the one of the other node. Nobody else can become the owner meanwhile, since that takes both nodes, or an
// operator's word (Force) that the owner is dead. If the owner is not dead, there are two histories, and the
// operator's wins.
type Pair struct {
	cfg   PairConfig
	links [2]wire
	end   func()
}

// PairConfig says where the two nodes are.
type PairConfig struct {
	Nodes [2]string // their addresses
	// Dial connects to a node, as its guest.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// GoOn lets the owner of a register go on when one of the nodes does not answer.
	GoOn bool
	// Logger is told when a register waits because a node does not answer, and when it waits no more; it may be nil.
	Logger *slog.Logger
	// Free reports whether a value has no owner. A client that finds such a value marked as alone, at the only node
	// that answers, may go on with it.
	Free func(value []byte) bool
}

// wire is a link, or stands for one in tests.
type wire interface {
	ask(q request, done func(*reply, error))
}

// pairLate is how long a Pair waits for the second node's answer after the first one's, before it goes on without it.
const pairLate = 200 * time.Millisecond

// NewPair makes a pair. It connects when there is something to ask.
func NewPair(cfg PairConfig) *Pair {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	slices.Sort(cfg.Nodes[:]) // so that all clients change the cells in the same order
	p := &Pair{cfg: cfg}
	var links []*link
	for i, addr := range cfg.Nodes {
		l := startLink(&link{addr: addr, connect: func(ctx context.Context) (net.Conn, error) { return cfg.Dial(ctx, addr) }})
		p.links[i], links = l, append(links, l)
	}
	p.end = sync.OnceFunc(func() {
		for _, l := range links {
			l.close()
		}
	})
	return p
}

// Close closes the connections. The registers must be closed before. It is idempotent.
func (p *Pair) Close() error {
	p.end()
	return nil
}

// The fields of a cell's state mean the following. Ballot.Set: in the upper half, how often an operator has forced
// the register; in the lower half, how often this version has been copied with a new tag. Ballot.Count: twice the
// number of times that owners have begun to be alone, and 1 more if the other cell does not have this state.
// Ballot.Proposer: the tag. Change: the change that has made this version, whoever has copied it since. A state wins
// over the states that it follows. So nobody undoes a change that one cell has been told of and the other one will be
// told of, and no cell ever gets a tag again that it has had.

func (s *state) alone() bool    { return s.Ballot.Count&1 != 0 }
func (s *state) tag() uint64    { return s.Ballot.Proposer }
func (s *state) forced() uint64 { return s.Ballot.Set >> 32 }
func (s *state) none() bool     { return s.Ballot == ballot{} }

// copyOf returns s with a new tag and the given Count.
func (s state) copyOf(count uint64) state {
	s.Ballot.Set++
	s.Ballot.Proposer, s.Ballot.Count = 1+rand.Uint64N(1<<64-1), count
	return s
}

// wins reports whether, of the states s and o of two cells, s is the one that both cells should get.
func (s *state) wins(o *state) bool {
	switch {
	case s.none() != o.none():
		return o.none()
	case s.forced() != o.forced():
		return s.forced() > o.forced()
	case s.Ballot.Count/2 != o.Ballot.Count/2:
		return s.Ballot.Count > o.Ballot.Count
	case s.Version != o.Version:
		return s.Version > o.Version
	case s.Ballot.Set != o.Ballot.Set:
		return s.Ballot.Set > o.Ballot.Set
	}
	return s.tag() > o.tag()
}

// cell is a node's answer about its cell.
type cell struct {
	id   Identity
	has  state
	err  error
	here bool // the node has answered
}

// PairRegister is a holder.Register at two nodes.
type PairRegister struct {
	pair *Pair
	name string
	ctx  context.Context // ends with the register
	end  context.CancelFunc
	turn chan struct{} // held by whoever changes cells

	// These belong to the goroutine that holds turn.
	open  map[uint64]bool // tags named by changes that were not answered, and that may still happen
	waits bool            // nothing can be done now, and the log says so
	at    int             // the cell that this register is alone with, or -1
	alone uint64          // the last Count with which this register has begun to be alone

	mu    sync.Mutex
	owned bool            // guarded by mu, as mine is
	mine  map[ballot]bool // changes made here, or maybe made: the one last agreed on, and later ones
}

var _ holder.Lonely = (*PairRegister)(nil)

// Register returns the register of that name. It need not have been set before.
func (p *Pair) Register(name string) (*PairRegister, error) {
	if err := CheckName(name); err != nil {
		return nil, fmt.Errorf("cannot use a register: %w", err)
	}
	r := &PairRegister{pair: p, name: name, turn: make(chan struct{}, 1), mine: map[ballot]bool{}, open: map[uint64]bool{}, at: -1}
	r.ctx, r.end = context.WithCancel(context.Background())
	return r, nil
}

// Close implements holder.Register. The pair stays.
func (r *PairRegister) Close() error {
	r.end()
	return nil
}

// within returns a context like ctx that also ends when the register is closed.
func (r *PairRegister) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(r.ctx, func() { cancel(holder.ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// gather asks both nodes for their cells. If one answers more than pairLate later than the other, gather goes on
// without it.
func (r *PairRegister) gather(ctx context.Context) (cells [2]cell) {
	type answer struct {
		i   int
		r   *reply
		err error
	}
	answers := make(chan answer, 2)
	for i := range cells {
		cells[i].err = errSilent
		r.pair.links[i].ask(request{Kind: kindGet, Name: r.name}, func(rep *reply, err error) { answers <- answer{i, rep, err} })
	}
	late := time.NewTimer(helloTime)
	defer late.Stop()
	for left := 2; left > 0; left-- {
		select {
		case a := <-answers:
			c := &cells[a.i]
			if c.err = a.err; a.err == nil && a.r.Status != statusOK {
				c.err = errors.New("it keeps no registers: " + a.r.Text)
			}
			if c.err == nil {
				c.id, c.has, c.here = a.r.From, a.r.Accepted, true
				late.Reset(pairLate)
			}
		case <-late.C:
			left = 1
		case <-ctx.Done():
			return cells
		}
	}
	return cells
}

// errRefused says that a cell has another value than the one that was to be replaced.
var errRefused = errors.New("the cell has changed")

// put makes cell i take next if the cell still has what old says. After an error that is not errRefused, the cell may
// have taken next, or may take it later.
func (r *PairRegister) put(ctx context.Context, i int, old *cell, next state) error {
	answers := make(chan error, 1)
	r.pair.links[i].ask(request{Kind: kindPut, To: old.id, Name: r.name, Ballot: old.has.Ballot, Accepted: next}, func(rep *reply, err error) {
		switch {
		case err != nil:
		case rep.Status == statusRefused || rep.Status == statusStranger:
			err = errRefused
		case rep.Status != statusOK:
			err = fmt.Errorf("%w: %s", errRefused, rep.Text)
		}
		answers <- err
	})
	late := time.NewTimer(helloTime)
	defer late.Stop()
	var err error
	select {
	case err = <-answers:
	case <-late.C:
		err = errSilent
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil && !errors.Is(err, errRefused) {
		r.open[old.has.tag()] = true
	}
	return err
}

// agreed notes that both cells have s, or the cell that the register is alone with has, and returns s. Of mine it
// keeps only the change that has made s.
func (r *PairRegister) agreed(s state) state {
	r.mu.Lock()
	defer r.mu.Unlock()
	mine := r.mine[s.Change]
	clear(r.mine)
	if mine {
		r.mine[s.Change] = true
	}
	return s
}

// unlike returns the error for a register that cannot be used because nodes do not answer: nobody knows what they
// have.
func (r *PairRegister) unlike(cells *[2]cell) error {
	var parts []string
	for i, c := range cells {
		if c.err != nil {
			parts = append(parts, fmt.Sprintf("%s: %v", r.pair.cfg.Nodes[i], c.err))
		}
	}
	return fmt.Errorf("of two nodes both are needed: %s", strings.Join(parts, "; "))
}

// A view is what a register has, according to the cells in use.
type view struct {
	cells [2]cell
	has   state
	alone int // the only cell in use, or -1 if both are
}

// count is the Count for a state that is to be written to the cells in use.
func (v *view) count() uint64 {
	if v.alone >= 0 {
		return v.has.Ballot.Count | 1
	}
	return v.has.Ballot.Count &^ 1
}

// try makes both cells the same, or goes on with one of them. It returns errRefused if it must be called again, since
// it or another client has changed a cell.
func (r *PairRegister) try(ctx context.Context) (v view, err error) {
	v.cells = r.gather(ctx)
	a, b := &v.cells[0], &v.cells[1]
	switch {
	case a.here && b.here && a.has.none() && b.has.none() && !r.stillNone(ctx, &v.cells):
		return v, errRefused
	case a.here && b.here && a.has.Ballot == b.has.Ballot:
		v.has, v.alone, r.at = r.agreed(a.has), -1, -1
		return v, nil
	case a.here && b.here:
		win, lose := 0, 1
		if b.has.wins(&a.has) {
			win, lose = 1, 0
		}
		next := v.cells[win].has
		if v.cells[lose].has.none() || next.alone() {
			// Write the winning state again, with a new tag: a client that was about to change the winning cell does
			// not know that the other cell has lost its value. And a state that both cells have is not alone any
			// more.
			next = next.copyOf(next.Ballot.Count &^ 1)
			if err := r.put(ctx, win, &v.cells[win], next); err != nil {
				return v, err
			}
		}
		if err := r.put(ctx, lose, &v.cells[lose], next); err != nil {
			return v, err
		}
		return v, errRefused // look again
	case !a.here && !b.here:
		return v, r.unlike(&v.cells)
	}
	i := 0
	if b.here {
		i = 1
	}
	c := &v.cells[i]
	r.mu.Lock()
	owned := r.owned && r.mine[c.has.Change] || c.has.alone() && r.pair.cfg.Free != nil && r.pair.cfg.Free(c.has.Value)
	r.mu.Unlock()
	if !r.pair.cfg.GoOn || !owned {
		return v, r.unlike(&v.cells)
	}
	next := c.has
	if r.at != i || !next.alone() {
		// The new Count wins over everything that has been put into the other cell, whether or not it has arrived
		// there.
		r.at, r.alone = -1, max(r.alone, next.Ballot.Count)/2*2+3
		next = next.copyOf(r.alone)
		if err := r.put(ctx, i, c, next); err != nil {
			return v, err
		}
		c.has = next
	}
	v.has, v.alone, r.at = r.agreed(next), i, i
	return v, nil
}

// stillNone asks both nodes again, and reports whether they had nothing at the same time. Without that, one node may
// have lost its state before it was asked, and have been given it again before the other node was asked, which had
// lost its own state meanwhile.
func (r *PairRegister) stillNone(ctx context.Context, before *[2]cell) bool {
	now := r.gather(ctx)
	for i := range now {
		if !now[i].here || now[i].id != before[i].id || !now[i].has.none() {
			return false
		}
	}
	return true
}

// settle calls try until it succeeds, or ctx ends.
func (r *PairRegister) settle(ctx context.Context) (view, error) {
	for failed := 0; ; failed++ {
		v, err := r.try(ctx)
		if r.waits != (err != nil && !errors.Is(err, errRefused)) && ctx.Err() == nil {
			if r.waits = !r.waits; r.waits {
				r.pair.cfg.Logger.Warn("a register that two nodes have waits for them", "register", r.name, "why", err)
			} else {
				r.pair.cfg.Logger.Info("a register that two nodes have waits no more", "register", r.name)
			}
		}
		if err == nil {
			return v, nil
		}
		if ctx.Err() == nil && !errors.Is(err, errRefused) || failed > 0 {
			pause(ctx, failed)
		}
		if ctx.Err() != nil {
			return v, errors.Join(context.Cause(ctx), err)
		}
	}
}

// write puts next into the cells that v says are in use, one after the other, and returns the first error (see put).
// After an error of the second cell, the first one has next.
func (r *PairRegister) write(ctx context.Context, v *view, next state) error {
	if v.alone >= 0 {
		return r.put(ctx, v.alone, &v.cells[v.alone], next)
	}
	for i := range v.cells {
		if err := r.put(ctx, i, &v.cells[i], next); err != nil {
			return err
		}
	}
	return nil
}

// Read implements holder.Register.
func (r *PairRegister) Read(ctx context.Context) ([]byte, uint64, error) {
	ctx, cancel := r.within(ctx)
	defer cancel()
	fail := func(err error) ([]byte, uint64, error) {
		return nil, 0, fmt.Errorf("cannot read the register %q: %w", r.name, err)
	}
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return fail(context.Cause(ctx))
	}
	for {
		v, err := r.settle(ctx)
		if err != nil {
			return fail(err)
		}
		if !r.open[v.has.tag()] {
			clear(r.open)
			return slices.Clone(v.has.Value), v.has.Version, nil
		}
		// A change that was not answered names the tag that both cells have, and may still happen. Give the value
		// another tag: then it cannot.
		next := v.has.copyOf(v.count())
		if err := r.write(ctx, &v, next); err == nil {
			r.agreed(next)
		}
	}
}

// Swap implements holder.Register.
func (r *PairRegister) Swap(ctx context.Context, version uint64, value []byte) (uint64, error) {
	ctx, cancel := r.within(ctx)
	defer cancel()
	fail := func(err error) (uint64, error) {
		return 0, fmt.Errorf("cannot change the register %q: %w", r.name, err)
	}
	if len(value) > holder.MaxValue {
		return fail(fmt.Errorf("to %d bytes: %w", len(value), holder.ErrTooLarge))
	}
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return fail(context.Cause(ctx))
	}
	change := ballot{1, 1, 1 + rand.Uint64N(1<<64-1)}
	value = slices.Clone(value)
	proposed := false
	var refused error // why a cell refused a write last
	for failed := 0; ; failed++ {
		if failed > 1 {
			pause(ctx, failed)
		}
		v, err := r.settle(ctx)
		switch {
		case err != nil && proposed:
			return fail(fmt.Errorf("%w: %w", holder.ErrUnknown, errors.Join(err, refused)))
		case err != nil:
			return fail(err)
		case proposed && v.has.Change == change:
			return v.has.Version, nil
		case proposed && v.has.Version > version+1:
			return fail(holder.ErrUnknown) // the change may have been made, and replaced since
		case v.has.Version != version:
			return fail(holder.ErrChanged)
		}
		next := state{Ballot: ballot{Set: v.has.forced() << 32}, Version: version + 1, Change: change, Value: value}.copyOf(v.count())
		proposed = true
		r.mu.Lock()
		r.mine[change] = true
		r.mu.Unlock()
		err = r.write(ctx, &v, next)
		if err == nil {
			return r.agreed(next).Version, nil
		}
		if errors.Is(err, errRefused) {
			refused = err
		}
	}
}

// Own implements holder.Lonely.
func (r *PairRegister) Own() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.owned = true
}

// Confirm implements holder.Lonely. One node is enough: a process that takes the register over changes both cells
// before anybody learns of it.
func (r *PairRegister) Confirm(ctx context.Context) error {
	ctx, cancel := r.within(ctx)
	defer cancel()
	answers := make(chan error, len(r.pair.links))
	for i, l := range r.pair.links {
		l.ask(request{Kind: kindGet, Name: r.name}, func(rep *reply, err error) {
			if err == nil && rep.Status == statusOK {
				r.mu.Lock()
				if !r.mine[rep.Accepted.Change] {
					err = errors.New("it has what another process has written")
				}
				r.mu.Unlock()
			} else if err == nil {
				err = errors.New("it keeps no registers")
			}
			if err != nil {
				err = fmt.Errorf("%s: %w", r.pair.cfg.Nodes[i], err)
			}
			answers <- err
		})
	}
	var errs []error
	for range r.pair.links {
		select {
		case err := <-answers:
			if err == nil {
				return nil
			}
			errs = append(errs, err)
		case <-ctx.Done():
			return errors.Join(append(errs, context.Cause(ctx))...)
		}
	}
	return errors.Join(errs...)
}

// Force says, as an operator's word, that the register's owner is dead, so that others may go on with what one node
// has although the other node does not answer. change turns this value into one that others may go on with. Force
// returns the node.
func (r *PairRegister) Force(ctx context.Context, change func(value []byte) ([]byte, error)) (node string, err error) {
	ctx, cancel := r.within(ctx)
	defer cancel()
	for {
		cells := r.gather(ctx)
		i := -1
		for k := range cells {
			if cells[k].here && !cells[k].has.none() && (i < 0 || cells[k].has.wins(&cells[i].has)) {
				i = k
			}
		}
		switch {
		case i < 0 && (cells[0].here || cells[1].here):
			return "", fmt.Errorf("the nodes that answer know of no register %q", r.name)
		case i < 0:
			return "", r.unlike(&cells)
		}
		next := cells[i].has
		if next.Value, err = change(slices.Clone(next.Value)); err != nil {
			return "", err
		}
		next.Version += forcedBy
		next.Ballot.Set = (next.forced() + 1) << 32
		next = next.copyOf(next.Ballot.Count | 1)
		next.Change = ballot{1, 1, next.tag()}
		switch err := r.put(ctx, i, &cells[i], next); {
		case err == nil:
			return r.pair.cfg.Nodes[i], nil
		case !errors.Is(err, errRefused) || ctx.Err() != nil:
			return "", fmt.Errorf("cannot change what %s has: %w", r.pair.cfg.Nodes[i], err)
		}
	}
}

// forcedBy is by how much Force raises the version: by more than the number of changes that the other history may
// have.
const forcedBy = 1 << 32

// Names returns the names of the registers at the nodes that answer, in order.
func (p *Pair) Names(ctx context.Context) ([]string, error) {
	names := map[string]bool{}
	var errs []error
	for i, l := range p.links {
		ask := request{Kind: kindList}
		for {
			answers := make(chan error, 1)
			var got *reply
			l.ask(ask, func(rep *reply, err error) { got = rep; answers <- err })
			ctx, cancel := context.WithTimeoutCause(ctx, helloTime, errSilent)
			var err error
			select {
			case err = <-answers:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
			cancel()
			if err == nil && got.Status != statusOK {
				err = errors.New("it keeps no registers")
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", p.cfg.Nodes[i], err))
				break
			}
			for _, n := range got.Names {
				names[n.Name] = true
				ask.Name = n.Name
			}
			if len(got.Names) < maxListed {
				break
			}
		}
	}
	if len(errs) == len(p.links) {
		return nil, fmt.Errorf("cannot list the registers: %w", errors.Join(errs...))
	}
	return slices.Sorted(maps.Keys(names)), nil
}
