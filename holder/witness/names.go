package witness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Names returns the names of registers, in order: all that were set before Names was called, and perhaps some that
// somebody has just begun to set.
func (c *Client) Names(ctx context.Context) ([]string, error) {
	ctx, cancel := c.within(ctx, context.Background())
	defer cancel()
	for failed := 0; ; failed++ {
		looks := c.looks.Load()
		names, err := c.names(ctx)
		switch {
		case err == nil:
			return names, nil
		case ctx.Err() != nil:
			return nil, fmt.Errorf("cannot list the registers: %w", errors.Join(context.Cause(ctx), err))
		case permanent(err):
			return nil, fmt.Errorf("cannot list the registers: %w", err)
		}
		_ = c.look(ctx, looks) // the next call of names says what is wrong
		pause(ctx, failed)
	}
}

// errSealed says that a set is being replaced: there may be registers that only the next set has.
var errSealed = errors.New("the set of witnesses is being replaced")

// names is one try of Names. It asks a majority: a register that was set has been accepted by a majority, and any two
// majorities have a witness in common.
func (c *Client) names(ctx context.Context) ([]string, error) {
	set, err := c.current(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lastRound)
	defer cancel()
	ask := request{Kind: kindList, Cluster: set.Cluster, Set: set.Version}
	first, err := c.gather(ctx, set, everybody(set), set.majority(), ask)
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for i, r := range first {
		for {
			if r.Next != nil {
				return nil, errSealed
			}
			for _, l := range r.Names {
				names[l.Name] = true
				ask.Name = l.Name
			}
			if len(r.Names) < maxListed {
				break
			}
			more, err := c.gather(ctx, set, []int{i}, 1, ask)
			if err != nil {
				return nil, err
			}
			r = more[i]
		}
	}
	return slices.Sorted(maps.Keys(names)), nil
}
