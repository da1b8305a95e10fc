package remote

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"polder/far"
	"polder/far/copies"
	"polder/far/store"
	"polder/pool"
)

// keptStore is the memory of one node of a pool that is kept: whoever knows the session can reopen its segments.
type keptStore struct{ *placeStore }

var _ copies.Reopener = keptStore{}

// Alloc implements far.Store.
func (s keptStore) Alloc(ctx context.Context) (far.Segment, error) {
	seg, err := s.placeStore.Alloc(ctx)
	if err != nil {
		return nil, err
	}
	return s.kept(seg.(segment).Chunk)
}

// kept is c as a segment whose name says where it lies.
func (s keptStore) kept(c *pool.Chunk) (far.Segment, error) {
	at, ok := c.Place()
	if !ok {
		return nil, fmt.Errorf("BUG: %s was borrowed to be kept, and does not lie at one node", c.Name())
	}
	return segment{c, nameOfPlace(at)}, nil
}

// nameOfPlace is a name like "10.0.0.1:7070/session 17 chunk 3,4", where the number of the session is hexadecimal.
func nameOfPlace(at pool.Place) string {
	b := fmt.Appendf(nil, "%s/session %x chunk ", at.Node, at.Session)
	for i, u := range at.Units {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(u), 10)
	}
	return string(b)
}

// mostUnits is how many chunks a segment may be made of.
const mostUnits = 1 << 16

// parsePlace is the opposite of nameOfPlace, for a name without the node and the slash.
func parsePlace(node, name string) (at pool.Place, err error) {
	at.Node = node
	session, units, ok := strings.Cut(strings.TrimPrefix(name, "session "), " chunk ")
	if at.Session, err = strconv.ParseUint(session, 16, 64); err != nil || !ok {
		return at, fmt.Errorf("%q names nothing that a node keeps, which would be as in %q", name, "session 17 chunk 3,4")
	}
	for u := range strings.SplitSeq(units, ",") {
		n, err := strconv.ParseUint(u, 10, 32)
		if err != nil || len(at.Units) == mostUnits {
			return at, fmt.Errorf("%q names no chunks", name)
		}
		at.Units = append(at.Units, uint32(n))
	}
	return at, nil
}

// Reopen implements copies.Reopener.
func (s keptStore) Reopen(ctx context.Context, name string) (store.Segment, error) {
	at, err := parsePlace(s.node, name)
	if err != nil {
		return nil, err
	}
	c, err := s.pool.Reopen(ctx, at, int64(s.SegmentSize()))
	switch {
	case errors.Is(err, pool.ErrLost):
		return nil, &store.LostError{Segment: s.node + "/" + name}
	case err != nil:
		return nil, err
	}
	return s.kept(c)
}

// Prune implements copies.Reopener.
func (s keptStore) Prune(ctx context.Context) error { return s.pool.Prune(ctx, s.node) }
