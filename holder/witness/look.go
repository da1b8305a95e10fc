package witness

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Greeting is a witness's answer to the question who it is.
type Greeting struct {
	Addr string
	ID   Identity
	Set  *Set  // the set that it votes in; nil if it has no vote
	Next *Set  // the set that is replacing Set, or has replaced it; nil if there is none
	Err  error // why it has not answered; then only Addr is set, too
}

// Greet asks the witnesses at the addresses who they are, and returns their answers in the order of addrs. It waits
// until all have answered, or cannot answer, or two seconds have passed.
func (c *Client) Greet(ctx context.Context, addrs []string) []Greeting {
	return c.greet(ctx, addrs, func([]Greeting) bool { return false })
}

// errSilent is the error of a witness that has not answered in time.
var errSilent = errors.New("no answer in time")

// greet is Greet, except that it returns as soon as enough says that the answers so far are enough.
func (c *Client) greet(ctx context.Context, addrs []string, enough func([]Greeting) bool) []Greeting {
	type answer struct {
		i   int
		r   *reply
		err error
	}
	answers := make(chan answer, len(addrs))
	greetings := make([]Greeting, len(addrs))
	for i, addr := range addrs {
		greetings[i] = Greeting{Addr: addr, Err: errSilent}
		c.ask(addr, request{Kind: kindHello}, func(r *reply, err error) { answers <- answer{i, r, err} })
	}
	late := time.NewTimer(helloTime)
	defer late.Stop()
	for range addrs {
		select {
		case a := <-answers:
			greetings[a.i].Err = a.err
			if a.err == nil {
				greetings[a.i] = Greeting{Addr: addrs[a.i], ID: a.r.From, Set: a.r.Set, Next: a.r.Next}
			}
			if enough(greetings) {
				return greetings
			}
		case <-late.C:
			return greetings
		case <-ctx.Done():
			return greetings
		}
	}
	return greetings
}

// newest returns the newest of known and the sets that witnesses say they vote in. It fails if these sets do not all
// come from the same first set.
func newest(known *Set, greetings []Greeting) (*Set, error) {
	best, from := known, "before"
	for _, g := range greetings {
		switch {
		case g.Set == nil:
		case best == nil:
			best, from = g.Set, g.Addr
		case best.Cluster != g.Set.Cluster:
			return nil, fmt.Errorf("the witness %s belongs to the cluster %v, and %s to %v: these are different witnesses' registers",
				g.Addr, g.Set.Cluster, from, best.Cluster)
		case best.Version < g.Set.Version:
			best, from = g.Set, g.Addr
		}
	}
	return best, nil
}

// voters counts the witnesses that say that they vote in the set, and that no set is replacing it.
func voters(set *Set, greetings []Greeting) (n int) {
	for i, g := range greetings {
		twice := slices.ContainsFunc(greetings[:i], func(o Greeting) bool { return o.ID == g.ID && o.Err == nil })
		if g.Err == nil && !twice && set.has(g.ID) && g.Set != nil && g.Set.equal(set) && g.Next == nil {
			n++
		}
	}
	return n
}

// look asks witnesses who they are, and learns from the answers which set votes and where its members are. It
// finishes a change of the set that somebody has left unfinished, and tells members that do not know yet that they
// are in the set. It does nothing if the number of looks is no longer looks: another goroutine has looked meanwhile.
func (c *Client) look(ctx context.Context, looks uint64) error {
	select {
	case c.looking <- struct{}{}:
		defer func() { <-c.looking }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if c.looks.Load() != looks {
		return nil
	}
	defer c.looks.Add(1)
	c.mu.Lock()
	known := c.set
	c.mu.Unlock()
	greetings := c.greet(ctx, c.addresses(known), func(got []Greeting) bool {
		set, err := newest(known, got)
		return err == nil && set != nil && voters(set, got) >= set.majority()
	})
	set, err := newest(known, greetings)
	if err != nil {
		return err
	}
	if set == nil {
		return noSet(greetings)
	}
	c.learn(set, greetings)
	for _, g := range greetings {
		if g.Set == nil || !g.Set.equal(set) || g.Next == nil {
			continue
		}
		if err := transfer(ctx, c, set, g.Next); err != nil {
			return fmt.Errorf("cannot finish the change to %v that somebody has begun: %w", g.Next, err)
		}
		c.learn(g.Next, nil)
		return nil
	}
	if voters(set, greetings) < set.majority() {
		return nil
	}
	for _, g := range greetings { // a majority of the set has all that was accepted before
		if g.Err == nil && set.has(g.ID) && (g.Set == nil || g.Set.Version < set.Version) {
			c.ask(g.Addr, request{Kind: kindActivate, To: g.ID, NewSet: set}, func(*reply, error) {})
		}
	}
	return nil
}

// noSet returns why no set is known.
func noSet(greetings []Greeting) error {
	var down []string
	for _, g := range greetings {
		if g.Err != nil {
			down = append(down, fmt.Sprintf("%s: %v", g.Addr, g.Err))
		}
	}
	switch len(down) {
	case 0:
		return ErrNoSet
	case len(greetings):
		return fmt.Errorf("no witness can be reached: %s", strings.Join(down, "; "))
	}
	return fmt.Errorf("%w, of those that answer: %s", ErrNoSet, strings.Join(down, "; "))
}

// addresses returns the configured addresses, and those of a set's members.
func (c *Client) addresses(set *Set) []string {
	addrs := slices.Clone(c.cfg.Witnesses)
	if set != nil {
		for _, m := range set.Members {
			if addr := c.addrOf(m); !slices.Contains(addrs, addr) {
				addrs = append(addrs, addr)
			}
			if !slices.Contains(addrs, m.Addr) {
				addrs = append(addrs, m.Addr)
			}
		}
	}
	return addrs
}

// learn remembers a set that votes, and where witnesses answer. It closes the links to addresses that are no longer
// needed.
func (c *Client) learn(set *Set, greetings []Greeting) {
	c.mu.Lock()
	for _, g := range greetings {
		if g.Err == nil {
			c.where[g.ID] = g.Addr
		}
	}
	if c.set == nil || c.set.Version < set.Version {
		c.set = set
	}
	for id := range c.where {
		if !c.set.has(id) {
			delete(c.where, id)
		}
	}
	c.mu.Unlock()
	keep := c.addresses(set)
	var gone []*link
	c.mu.Lock()
	for addr, l := range c.links {
		if !slices.Contains(keep, addr) {
			gone = append(gone, l)
			delete(c.links, addr)
		}
	}
	c.mu.Unlock()
	for _, l := range gone {
		l.close()
	}
}
