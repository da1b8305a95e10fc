package remote

import (
	"context"
	"maps"
	"slices"
	"sync"

	"polder/far"
	"polder/far/record"
	"polder/far/remote/scan"
	"polder/far/store"
	"polder/pool"
)

// Finds implements store.Finder. Reading memory that is mapped here is faster than asking its node.
func (s *poolStore) Finds(seg far.Segment) bool {
	node, _, mapped, ok := seg.(segment).Home()
	return ok && !mapped && !s.node(node).refuses()
}

// Find implements store.Finder.
func (s *poolStore) Find(ctx context.Context, l *store.Lookups) {
	at := map[string]*findRequest{} // the request that is being filled, by node
	limit := make(chan struct{}, inFlight)
	var wg sync.WaitGroup
	send := func(r *findRequest) {
		limit <- struct{}{}
		wg.Go(func() {
			s.ask(ctx, l, r)
			<-limit
		})
	}
	for i := range l.Finds {
		f := &l.Finds[i]
		node, chunk, mapped, ok := f.Seg.(segment).Home()
		if !ok || mapped || f.N > scan.MaxLeaf {
			continue
		}
		r := at[node]
		if r != nil && len(r.finds) == scan.MaxFinds {
			send(r)
			r = nil
		}
		if r == nil {
			r = &findRequest{node: node}
			at[node] = r
		}
		r.of = append(r.of, i)
		r.finds = append(r.finds, scan.Find{Chunk: chunk, Seed: f.Seed, Off: uint32(f.Off / record.Unit), N: uint32(f.N), Hash: f.Hash})
	}
	if len(at) == 1 && len(limit) == 0 {
		for _, r := range at { // fast path: the caller sends it
			s.ask(ctx, l, r)
		}
	} else {
		for _, r := range at {
			send(r)
		}
	}
	wg.Wait()
}

// findRequest is what one node is asked in one request.
type findRequest struct {
	node  string
	of    []int // which of the Lookups these are
	finds []scan.Find
}

// ask has a node look up what r says. If that fails, the heap reads instead.
func (s *poolStore) ask(ctx context.Context, l *store.Lookups, r *findRequest) {
	n := s.node(r.node)
	req := scan.FindRequest{Owner: l.Owner, Units: uint32(l.Units), Finds: r.finds, Places: n.news()}
	k := pool.Computation{Op: scan.Lookup, In: req.Append(nil), Repeat: true}
	out, err := s.compute(ctx, r.node, l.Finds[r.of[0]].Seg.(segment).Chunk, k)
	if err != nil {
		n.refused(ctx, err)
		return // news has dropped the places; the node asks for them again
	}
	for _, i := range r.of {
		f := &l.Finds[i]
		what, addr, rec, rest, ok := scan.Found(out)
		if !ok {
			n.refused(ctx, errSenseless)
			return
		}
		out = rest
		switch what {
		case scan.Entry:
			f.Entry, f.At = rec, addr
			continue
		case scan.Leaf:
			f.Leaf = rec
		}
		if seg, seed := l.Segment(addr); addr != 0 && seg != nil {
			if node, chunk, _, ok := seg.(segment).Home(); ok && node == r.node && addr/l.Units <= scan.MaxSegment {
				n.hear(scan.Place{Number: uint32(addr / l.Units), Chunk: chunk, Seed: seed})
			}
		}
	}
}

// hear notes a place that the node did not know, and that the next request tells it.
func (n *scanner) hear(p scan.Place) {
	n.newsMu.Lock()
	defer n.newsMu.Unlock()
	if n.places == nil {
		n.places = map[uint32]scan.Place{}
	}
	if len(n.places) < scan.MaxPlaces {
		n.places[p.Number] = p
	}
}

// news takes the places that the node is to be told now.
func (n *scanner) news() []scan.Place {
	n.newsMu.Lock()
	defer n.newsMu.Unlock()
	places := slices.Collect(maps.Values(n.places))
	clear(n.places)
	return places
}
