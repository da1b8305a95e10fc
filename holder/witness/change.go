package witness

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"polder/holder"
)

// Change makes the witnesses at the addresses the set that votes, and returns it. All of them
// must answer. If none of them belongs to a set, they begin one, whose registers were never
// set; else they replace the set that one of them belongs to, of which a majority must answer:
// so a witness that has lost its state is let in again, or another in its place. It may be
// called again after an error, and by several callers at once: one of the sets that they ask
// for comes after the other.
func (c *Client) Change(ctx context.Context, addrs []string) (*Set, error) {
	ctx, cancel := c.within(ctx, context.Background())
	defer cancel()
	set, err := c.change(ctx, addrs)
	if err != nil {
		return nil, fmt.Errorf("cannot make a set of these witnesses: %w", err)
	}
	return set, nil
}

func (c *Client) change(ctx context.Context, addrs []string) (*Set, error) {
	for {
		greetings := c.Greet(ctx, addrs)
		members := make([]Member, len(addrs))
		var down error
		for i, g := range greetings {
			members[i] = Member{g.ID, g.Addr}
			if g.Err != nil {
				down = errors.Join(down, fmt.Errorf("%s does not answer: %w", g.Addr, g.Err))
			}
		}
		if down != nil {
			return nil, down
		}
		if err := (&Set{Version: 1, Members: members}).check(); err != nil {
			return nil, err
		}
		if _, err := newest(nil, greetings); err != nil {
			return nil, err
		}
		first := firstSet(members)
		if !slices.ContainsFunc(greetings, func(g Greeting) bool { return g.Next != nil || g.Set != nil && !g.Set.identical(first) }) {
			return first, c.activate(ctx, first, len(members))
		}
		if err := c.look(ctx, c.looks.Load()); err != nil {
			return nil, err
		}
		now, err := c.current(ctx)
		if err != nil {
			return nil, err
		}
		next := &Set{Cluster: now.Cluster, Version: now.Version + 1, Members: members}
		if next.Version--; next.identical(now) {
			return now, nil
		}
		next.Version++
		chosen, err := c.choose(ctx, now, next)
		if errors.Is(err, errReplaced) {
			continue // by another caller's
		}
		if err != nil {
			return nil, err
		}
		if err := c.transfer(ctx, now, chosen); err != nil {
			return nil, err
		}
		c.learn(chosen, greetings)
		if chosen.equal(next) {
			return chosen, nil
		}
	}
}

// choose has the members of a set decide what set comes next, and returns what they have
// decided.
func (c *Client) choose(ctx context.Context, now, next *Set) (*Set, error) {
	r := c.register(successor)
	defer r.Close()
	if _, err := r.swap(ctx, 0, appendSet(nil, next), now); err == nil {
		return next, nil
	} else if !errors.Is(err, holder.ErrChanged) {
		return nil, err
	}
	s := source{b: r.p.known.Value}
	set := s.set()
	err := s.end("set")
	if err == nil && (set == nil || set.Version != now.Version+1 || set.Cluster != now.Cluster) {
		err = errors.New("it does not follow the present one")
	}
	if err == nil {
		err = set.check()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot use the next set that was decided: %w", err)
	}
	return set, nil
}

// activate tells witnesses that a set is theirs, at least so many of them.
//
// Preconditions: a majority of the set has all that was accepted in the sets before.
func (c *Client) activate(ctx context.Context, set *Set, least int) error {
	_, err := c.gather(ctx, set, least, request{Kind: kindActivate, NewSet: set})
	if err != nil {
		return err
	}
	c.learn(set, nil)
	return nil
}

// gather asks all members of a set, and returns the answers when so many have agreed, by
// member.
func (c *Client) gather(ctx context.Context, set *Set, least int, q request) (map[int]*reply, error) {
	why, agreed := make(reasons), make(map[int]*reply)
	events := c.round(set, q)
	for range set.Members {
		select {
		case e := <-events:
			why.note(e)
			if e.err == nil && e.reply.Status == statusOK {
				agreed[e.member] = e.reply
			}
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), why.of(c, set))
		}
		if len(agreed) >= least {
			return agreed, nil
		}
	}
	return nil, fmt.Errorf("%d of %d witnesses of %v agree, want %d: %w", len(agreed), len(set.Members), set, least, why.of(c, set))
}

// transfer seals a set, copies what was accepted in it to the next, and tells the members of
// that one that it is theirs. It may be done by several callers at once, and again.
//
// Preconditions: the members of from have decided that to comes next.
func (c *Client) transfer(ctx context.Context, from, to *Set) error {
	sealed, err := c.gather(ctx, from, from.majority(), request{Kind: kindSeal, Cluster: from.Cluster, Set: from.Version, NewSet: to})
	if err != nil {
		return fmt.Errorf("cannot seal %v: %w", from, err)
	}
	// Of each register, the state that one of a majority has accepted in the highest ballot.
	type place struct {
		ballot ballot
		member int
	}
	registers := make(map[string]place)
	for i := range sealed {
		for after, more := "", true; more; {
			r, err := c.call(ctx, c.addrOf(from.Members[i]), request{
				Kind: kindList, To: from.Members[i].ID, Cluster: from.Cluster, Set: from.Version, Name: after,
			})
			if err = agreed(r, err); err != nil {
				return fmt.Errorf("cannot list the registers of %s: %w", from.Members[i].Addr, err)
			}
			for _, l := range r.Names {
				if p, ok := registers[l.Name]; !ok || p.ballot.less(l.Ballot) {
					registers[l.Name] = place{l.Ballot, i}
				}
				after = l.Name
			}
			more = len(r.Names) == maxListed
		}
	}
	var mu sync.Mutex
	full := make(map[int]error) // members of to, and what has gone wrong with each
	for i := range to.Members {
		full[i] = nil
	}
	for name, p := range registers {
		m := from.Members[p.member]
		r, err := c.call(ctx, c.addrOf(m), request{Kind: kindFetch, To: m.ID, Cluster: from.Cluster, Set: from.Version, Name: name})
		if err = agreed(r, err); err != nil {
			return fmt.Errorf("cannot copy the register %q from %s: %w", name, m.Addr, err)
		}
		var copying sync.WaitGroup
		for i, m := range to.Members {
			if full[i] != nil {
				continue
			}
			copying.Go(func() {
				a, err := c.call(ctx, c.addrOf(m), request{Kind: kindInstall, To: m.ID, Name: name, Accepted: r.Accepted, NewSet: to})
				if err = agreed(a, err); err != nil {
					mu.Lock()
					defer mu.Unlock()
					full[i] = fmt.Errorf("%s: %w", m.Addr, err)
				}
			})
		}
		copying.Wait()
	}
	var missing error
	good := 0
	for _, err := range full {
		if missing = errors.Join(missing, err); err == nil {
			good++
		}
	}
	if good < to.majority() {
		return fmt.Errorf("cannot copy the registers to a majority of %v: %w", to, missing)
	}
	return c.activate(ctx, to, to.majority())
}

// agreed is the error of a call whose reply is not statusOK.
func agreed(r *reply, err error) error {
	why := make(reasons)
	why.note(event{reply: r, err: err})
	if text, ok := why[0]; ok {
		return errors.New(text)
	}
	return nil
}
