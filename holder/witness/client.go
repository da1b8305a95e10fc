package witness

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"polder/holder"
)

const (
	helloTime  = 2 * time.Second // how long witnesses may take to say who they are
	firstRound = 2 * time.Second // how long witnesses may take in the first round of an operation
	lastRound  = 32 * time.Second
	firstPause = 5 * time.Millisecond // the longest pause after a round that has failed; it doubles
	lastPause  = 500 * time.Millisecond
)

// ClientConfig says where witnesses are. Witnesses is required.
type ClientConfig struct {
	// Witnesses are the addresses of witnesses, HOST:PORT or unix:PATH. If one of them answers, the client learns of
	// the others.
	Witnesses []string
	// TLS is called for each connection that is not to a Unix socket. If it is nil, or returns nil, connections are
	// plain; plain connections to other machines are refused unless Insecure is set.
	TLS      func() *tls.Config
	Insecure bool
}

// A Client reads and changes registers.
type Client struct {
	cfg ClientConfig
	ctx context.Context // ends with the client
	end context.CancelFunc

	looking chan struct{} // held by the goroutine that runs look
	looks   atomic.Uint64 // how often look has asked witnesses

	mu    sync.Mutex
	set   *Set                // the newest voting set known; nil before any witness has answered; guarded by mu
	where map[Identity]string // the address at which a witness has answered; guarded by mu
	links map[string]*link    // by address; nil once the client is closed; guarded by mu
}

// ErrNoSet says that none of the witnesses has a vote: nobody has made them a set yet.
var ErrNoSet = errors.New("none of the witnesses has a vote: an operator begins with polder witness set")

// NewClient makes a client. It connects when there is something to ask.
func NewClient(cfg ClientConfig) (*Client, error) {
	if len(cfg.Witnesses) == 0 {
		return nil, errors.New("cannot use witnesses: no address of one is given")
	}
	c := &Client{cfg: cfg, looking: make(chan struct{}, 1), where: make(map[Identity]string), links: make(map[string]*link)}
	c.ctx, c.end = context.WithCancel(context.Background())
	return c, nil
}

// Close ends all operations, and closes the connections. It is idempotent.
func (c *Client) Close() error {
	c.end()
	c.mu.Lock()
	links := c.links
	c.links = nil
	c.mu.Unlock()
	for _, l := range links {
		l.close()
	}
	return nil
}

// within returns a context like ctx that also ends when the client is closed, or when also is done.
func (c *Client) within(ctx, also context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	closed := func() { cancel(holder.ErrClosed) }
	stop, stopAlso := context.AfterFunc(c.ctx, closed), context.AfterFunc(also, closed)
	return ctx, func() {
		stop()
		stopAlso()
		cancel(nil)
	}
}

// linkTo returns the link to the witness at an address.
func (c *Client) linkTo(addr string) (*link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.links == nil {
		return nil, holder.ErrClosed
	}
	l := c.links[addr]
	if l == nil {
		l = newLink(addr, c.cfg.TLS, c.cfg.Insecure)
		c.links[addr] = l
	}
	return l, nil
}

// addrOf returns the address of a member of a set.
func (c *Client) addrOf(m Member) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if addr, ok := c.where[m.ID]; ok {
		return addr
	}
	return m.Addr
}

// ask sends q to the witness at an address, without waiting. done is called with the reply, or with an error.
func (c *Client) ask(addr string, q request, done func(*reply, error)) {
	l, err := c.linkTo(addr)
	if err != nil {
		done(nil, err)
		return
	}
	l.ask(q, done)
}

// event is the result of a request to a member of a set.
type event struct {
	member int
	reply  *reply
	err    error
}

// round asks all members of a set. Each sends one event.
func (c *Client) round(set *Set, q request) <-chan event {
	events := make(chan event, len(set.Members)) // has room for all: no sender waits
	for i, m := range set.Members {
		q.To = m.ID
		c.ask(c.addrOf(m), q, func(r *reply, err error) { events <- event{i, r, err} })
	}
	return events
}

// reasons says, by member, why members of a set did not do what they were asked.
type reasons map[int]string

// note records why an event is not a success, and reports whether the set may have changed, or a member moved.
func (why reasons) note(e event) (astray bool) {
	switch {
	case e.err != nil:
		why[e.member] = e.err.Error()
		return true
	case e.reply.Status == statusStranger:
		why[e.member] = "another witness is there now, without a vote: it may have lost its state"
		return true
	case e.reply.Status == statusNoSet:
		why[e.member] = "it has no vote"
		return true
	case e.reply.Status == statusOtherSet:
		why[e.member] = "it belongs to another set"
		return true
	case e.reply.Status == statusSealed:
		why[e.member] = "its set is being replaced"
		return true
	case e.reply.Status == statusFull || e.reply.Status == statusBroken:
		why[e.member] = e.reply.Text
	case e.reply.Status == statusRefused:
		why[e.member] = "another client is changing the register"
	default:
		delete(why, e.member)
	}
	return false
}

// of returns the reasons as an error.
func (why reasons) of(c *Client, set *Set) error {
	if set == nil || len(why) == 0 {
		return nil
	}
	var parts []string
	for _, i := range slices.Sorted(maps.Keys(why)) {
		parts = append(parts, c.addrOf(set.Members[i])+": "+why[i])
	}
	return errors.New(strings.Join(parts, "; "))
}

// pause waits a random time after a round that has failed. The more rounds have failed, the longer it may be.
func pause(ctx context.Context, failed int) {
	most := min(firstPause<<min(failed, 10), lastPause)
	t := time.NewTimer(rand.N(most))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// A Register is a holder.Register at a majority of witnesses.
type Register struct {
	client *Client
	name   string
	ctx    context.Context // ends with the register
	end    context.CancelFunc

	turn chan struct{} // held by whoever uses p
	p    *proposer
	// unsettled: a Swap has returned ErrUnknown, and no Read has settled it yet.
	unsettled atomic.Bool
}

var _ holder.Register = (*Register)(nil)

// Register returns the register of that name. It need not have been set before.
func (c *Client) Register(name string) (*Register, error) {
	if err := CheckName(name); err != nil {
		return nil, fmt.Errorf("cannot use a register: %w", err)
	}
	return c.register(name), nil
}

func (c *Client) register(name string) *Register {
	r := &Register{client: c, name: name, turn: make(chan struct{}, 1), p: &proposer{name: name, id: rand.Uint64()}}
	r.ctx, r.end = context.WithCancel(context.Background())
	return r
}

// Close implements holder.Register. The client stays.
func (r *Register) Close() error {
	r.end()
	return nil
}

// Read implements holder.Register.
func (r *Register) Read(ctx context.Context) ([]byte, uint64, error) {
	ctx, cancel := r.client.within(ctx, r.ctx)
	defer cancel()
	if !r.unsettled.Load() {
		if s, ok := r.poll(ctx); ok {
			return s.Value, s.Version, nil
		}
	}
	op := &operation{}
	if err := r.operate(ctx, op, nil); err != nil {
		return nil, 0, fmt.Errorf("cannot read the register %q: %w", r.name, err)
	}
	return slices.Clone(op.found.Value), op.found.Version, nil
}

// Swap implements holder.Register.
func (r *Register) Swap(ctx context.Context, version uint64, value []byte) (uint64, error) {
	ctx, cancel := r.client.within(ctx, r.ctx)
	defer cancel()
	return r.swap(ctx, version, value, nil)
}

// swap is Swap. If only is not nil, it uses only the members of this set.
func (r *Register) swap(ctx context.Context, version uint64, value []byte, only *Set) (uint64, error) {
	if len(value) > holder.MaxValue {
		return 0, fmt.Errorf("cannot change the register %q to %d bytes: %w", r.name, len(value), holder.ErrTooLarge)
	}
	op := &operation{swap: true, version: version, value: slices.Clone(value)}
	if err := r.operate(ctx, op, only); err != nil {
		return 0, fmt.Errorf("cannot change the register %q: %w", r.name, err)
	}
	return op.found.Version, nil
}

// poll reads the register without writing. It succeeds only if a majority has accepted in the same ballot.
func (r *Register) poll(ctx context.Context) (state, bool) {
	set, err := r.client.current(ctx)
	if err != nil {
		return state{}, false // Read's operation then says why
	}
	events := r.client.round(set, request{Kind: kindRead, Cluster: set.Cluster, Set: set.Version, Name: r.name})
	late := time.NewTimer(firstRound)
	defer late.Stop()
	p := poll{set: set}
	for {
		select {
		case e := <-events:
			if s, known, over := p.answer(e.member, e.reply); over {
				return s, known
			}
		case <-late.C:
			return state{}, false
		case <-ctx.Done():
			return state{}, false
		}
	}
}

// errReplaced says that the set that was to be used no longer votes.
var errReplaced = errors.New("the set of witnesses has been replaced")

// operate makes rounds until the operation is done, or ctx is.
func (r *Register) operate(ctx context.Context, op *operation, only *Set) error {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	err := r.rounds(ctx, op, only)
	switch {
	case err == nil:
		err = op.err
		r.unsettled.Store(errors.Is(err, holder.ErrUnknown))
	case r.p.phase != phaseIdle && r.p.abandon():
		r.unsettled.Store(true)
		err = fmt.Errorf("%w: %w", holder.ErrUnknown, err)
	}
	return err
}

// rounds is operate for the goroutine that holds turn. If it returns an error, the operation may not have begun, or
// must be abandoned.
func (r *Register) rounds(ctx context.Context, op *operation, only *Set) error {
	why := make(reasons)
	var set *Set
	for failed := 0; ; failed++ {
		next, err := r.client.current(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return errors.Join(context.Cause(ctx), why.of(r.client, set), err)
		case err != nil:
			if permanent(err) {
				return err
			}
			pause(ctx, failed)
			if ctx.Err() != nil {
				return errors.Join(context.Cause(ctx), err)
			}
			continue
		case only != nil && !only.equal(next):
			return errReplaced
		}
		if set == nil || !set.equal(next) {
			clear(why)
		}
		set = next
		r.p.use(set)
		if r.p.op == nil {
			r.p.begin(op)
		} else {
			r.p.retry()
		}
		looks := r.client.looks.Load()
		astray := r.attempt(ctx, set, why, min(firstRound<<min(failed, 8), lastRound))
		switch {
		case r.p.phase == phaseIdle:
			return nil
		case ctx.Err() != nil:
			return errors.Join(context.Cause(ctx), why.of(r.client, set))
		}
		if astray {
			_ = r.client.look(ctx, looks) // the next call of current says what is wrong
		}
		pause(ctx, failed)
	}
}

// attempt makes a round for each phase, until the operation is done or a round has failed. It reports whether the set
// may have changed, or a member moved.
func (r *Register) attempt(ctx context.Context, set *Set, why reasons, within time.Duration) (astray bool) {
	late := time.NewTimer(within)
	defer late.Stop()
	for r.p.waiting() {
		round := r.p.round
		events := r.client.round(set, r.p.request())
		for r.p.waiting() && r.p.round == round {
			select {
			case e := <-events:
				astray = why.note(e) || astray
				if e.err != nil {
					r.p.fail(round, e.member)
				} else {
					r.p.answer(round, e.member, e.reply)
				}
			case <-late.C:
				for i := range set.Members { // members that have answered keep their reasons
					if r.p.answered&(1<<i) == 0 {
						why[i] = fmt.Sprintf("no answer within %v", within)
					}
				}
				for i := range set.Members {
					r.p.fail(round, i)
				}
				astray = true
			case <-ctx.Done():
				return astray
			}
		}
	}
	return astray
}

// permanent reports whether an error of current will remain whatever the witnesses do.
func permanent(err error) bool { return errors.Is(err, holder.ErrClosed) }

// current returns the set that votes, as far as is known. If none is known, it looks for one.
func (c *Client) current(ctx context.Context) (*Set, error) {
	c.mu.Lock()
	set, looks := c.set, c.looks.Load()
	c.mu.Unlock()
	if set != nil {
		return set, nil
	}
	if err := c.look(ctx, looks); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.set == nil {
		return nil, ErrNoSet
	}
	return c.set, nil
}
