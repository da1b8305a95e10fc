package witness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"polder/holder"
)

// Change makes the witnesses at the addresses the set that votes, and returns it. All of them must answer. If none of
// them belongs to a set, they begin one, whose registers were never set. Otherwise they replace the set that one of
// them belongs to, of which a majority must answer. In this way a witness that has lost its state is let in again, or
// another one in its place. Change may be called again after an error, and by several callers at once: the sets that
// they ask for then come one after the other.
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
			return first, c.beginSet(ctx, first)
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
			continue // another caller has replaced the set
		}
		if err != nil {
			return nil, err
		}
		if err := transfer(ctx, c, now, chosen); err != nil {
			return nil, err
		}
		c.learn(chosen, greetings)
		if chosen.equal(next) {
			return chosen, nil
		}
	}
}

// choose makes the members of the set now decide what set comes next, and returns what they have decided.
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

// beginSet tells fresh witnesses that they are a set.
func (c *Client) beginSet(ctx context.Context, set *Set) error {
	if _, err := c.gather(ctx, set, everybody(set), len(set.Members), request{Kind: kindActivate, NewSet: set}); err != nil {
		return err
	}
	c.learn(set, nil)
	return nil
}

// everybody is the members of a set, by number.
func everybody(set *Set) []int {
	who := make([]int, len(set.Members))
	for i := range who {
		who[i] = i
	}
	return who
}

// lingerTime is how long gather waits for the other members when enough have agreed.
const lingerTime = 2 * time.Second

// gather implements asker.
func (c *Client) gather(ctx context.Context, set *Set, who []int, least int, q request) (map[int]*reply, error) {
	why, agreed := make(reasons), make(map[int]*reply)
	events := make(chan event, len(who)) // has room for all: no sender waits
	for _, i := range who {
		q.To = set.Members[i].ID
		c.ask(c.addrOf(set.Members[i]), q, func(r *reply, err error) { events <- event{i, r, err} })
	}
	var late <-chan time.Time
	for range who {
		select {
		case e := <-events:
			why.note(e)
			if e.err == nil && e.reply.Status == statusOK {
				agreed[e.member] = e.reply
			}
		case <-late:
			return agreed, nil
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), why.of(c, set))
		}
		if len(agreed) == least && late == nil {
			t := time.NewTimer(lingerTime)
			defer t.Stop()
			late = t.C
		}
	}
	if len(agreed) < least {
		return nil, fmt.Errorf("%d of %d witnesses agree, want %d: %w", len(agreed), len(who), least, why.of(c, set))
	}
	return agreed, nil
}

// An asker asks witnesses for transfer.
type asker interface {
	// gather asks the members who of a set, and returns the replies of those that have done what they were asked, by
	// member. It waits for all of them, but not for long once least of them have agreed. It fails if fewer do.
	gather(ctx context.Context, set *Set, who []int, least int, q request) (map[int]*reply, error)
}

// transfer seals the set from, copies what was accepted in it to the set to, and tells the members of to that they
// are the set. Several callers may do it at once, and it may be done again.
//
// Preconditions: the members of from have decided that to comes next.
func transfer(ctx context.Context, a asker, from, to *Set) error {
	ask := request{Cluster: from.Cluster, Set: from.Version, NewSet: to}
	ask.Kind = kindSeal
	sealed, err := a.gather(ctx, from, everybody(from), from.majority(), ask)
	if err != nil {
		return fmt.Errorf("cannot seal %v: %w", from, err)
	}
	// For each register, the highest ballot in which a sealed member has accepted a state, and that member.
	type place struct {
		ballot ballot
		member int
	}
	registers := make(map[string]place)
	ask = request{Kind: kindList, Cluster: from.Cluster, Set: from.Version}
	for _, i := range slices.Sorted(maps.Keys(sealed)) {
		ask.Name = ""
		for more := true; more; {
			got, err := a.gather(ctx, from, []int{i}, 1, ask)
			if err != nil {
				return fmt.Errorf("cannot list the registers of %s: %w", from.Members[i].Addr, err)
			}
			names := got[i].Names
			for _, l := range names {
				if p, ok := registers[l.Name]; !ok || p.ballot.less(l.Ballot) {
					registers[l.Name] = place{l.Ballot, i}
				}
				ask.Name = l.Name
			}
			more = len(names) == maxListed
		}
	}
	good := everybody(to) // the members that have been given everything so far
	for _, name := range slices.Sorted(maps.Keys(registers)) {
		i := registers[name].member
		ask = request{Kind: kindFetch, Cluster: from.Cluster, Set: from.Version, Name: name}
		got, err := a.gather(ctx, from, []int{i}, 1, ask)
		if err != nil {
			return fmt.Errorf("cannot copy the register %q from %s: %w", name, from.Members[i].Addr, err)
		}
		ask = request{Kind: kindInstall, Name: name, Accepted: got[i].Accepted, NewSet: to}
		given, err := a.gather(ctx, to, good, to.majority(), ask)
		if err != nil {
			return fmt.Errorf("cannot copy the register %q to a majority of %v: %w", name, to, err)
		}
		good = slices.Sorted(maps.Keys(given))
	}
	// Tell all members, even those that lack something: a majority has everything.
	if _, err := a.gather(ctx, to, everybody(to), to.majority(), request{Kind: kindActivate, NewSet: to}); err != nil {
		return fmt.Errorf("cannot tell a majority of %v that it votes: %w", to, err)
	}
	return nil
}
