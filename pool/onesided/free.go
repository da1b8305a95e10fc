package onesided

import (
	"context"
	"fmt"

	"polder/memnode/chain"
	"polder/memnode/wire"
	"polder/pool/manager"
	"polder/verbs"
)

// Free implements manager.Session. What it has not sent when it fails becomes orphans, which a later call frees.
func (s *session) Free(ctx context.Context, chunks []uint32) error {
	if err := s.freeOrphans(ctx); err != nil {
		return err
	}
	return s.give(ctx, chunks)
}

// A lot is a set of chunks that are freed with the same pair.
type lot struct {
	pair   *pair
	chunks []uint32
}

// disown takes chunks out of those that are known to be ours, all or none, and returns them grouped by the pairs that
// they are freed with.
func (s *session) disown(chunks []uint32) ([]lot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lots := make([]lot, len(s.pairs))
	for _, c := range chunks {
		p, ok := s.owned[c]
		if !ok {
			s.own(lots)
			return nil, fmt.Errorf("%w: %v", manager.ErrRefused, wire.StatusNotOwner)
		}
		delete(s.owned, c)
		l := &lots[p.index]
		l.pair, l.chunks = p, append(l.chunks, c)
	}
	return lots, nil
}

// own undoes disown.
//
// Preconditions: s.mu is held.
func (s *session) own(lots []lot) {
	for _, l := range lots {
		for _, c := range l.chunks {
			s.owned[c] = l.pair
		}
	}
}

// give frees chunks, or none of them if not all are ours. If it fails later, what has not been sent becomes orphans.
func (s *session) give(ctx context.Context, chunks []uint32) error {
	lots, err := s.disown(chunks)
	if err != nil {
		return err
	}
	for i := range lots {
		if err := lots[i].give(ctx); err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.own(lots[i:])
			for _, l := range lots[i:] {
				s.orphans = append(s.orphans, l.chunks...)
			}
			return err
		}
	}
	return nil
}

// give frees the chunks of l, and takes those that have been sent out of l.
func (l *lot) give(ctx context.Context) error {
	p := l.pair
	for len(l.chunks) > 0 {
		n, post := min(len(l.chunks), batch), p.postFrees
		if !p.s.native {
			n, post = 1, p.postFree
		}
		_, left, err := p.s.run(ctx, &p.frees, n, func() error { return post(l.chunks[:n]) })
		if err != nil {
			l.chunks = l.chunks[left:]
			return err
		}
		p.frees.end()
		l.chunks = l.chunks[n:]
	}
	return nil
}

func (s *session) entry(c uint32) uint64 { return s.table + uint64(c)*verbs.EntrySize }

// postFree posts a request that has a chain free one chunk.
func (p *pair) postFree(chunks []uint32) error {
	if err := p.free.PostRecv(verbs.RecvWR{ID: p.id(idFree)}); err != nil {
		return err
	}
	h := chain.Handle(p.s.entry(chunks[0]))
	copy(p.bytes()[handleOff:], h[:])
	return p.free.PostSend(p.freeWRs[:1]...)
}

// postFrees posts FREEs of the verb.
func (p *pair) postFrees(chunks []uint32) error {
	wrs := p.freeWRs[:len(chunks)]
	for i, c := range chunks {
		wrs[i].Flags, wrs[i].RemoteAddr = 0, p.s.entry(c)
	}
	wrs[len(wrs)-1].Flags = verbs.SendSignaled
	return p.alloc.PostSend(wrs...)
}

// freeOrphans frees chunks that were allocated for calls that had given up, or that Free could not send.
func (s *session) freeOrphans(ctx context.Context) error {
	s.mu.Lock()
	orphans := s.orphans
	s.orphans = nil
	s.mu.Unlock()
	if len(orphans) == 0 {
		return nil
	}
	return s.give(ctx, orphans)
}

// Owned implements manager.Session.
func (s *session) Owned(ctx context.Context) ([]manager.Grant, error) {
	var grants []manager.Grant
	group := len(s.groups[0])
	page := wire.MaxBatch / group * group
	for {
		var r wire.Reply
		release, err := s.ch.Exchange(ctx, &r, func(b []byte, id uint32) []byte {
			return wire.AppendRequest(b, wire.OpOwned, id, page, uint32(len(grants)*group))
		})
		if err != nil {
			return nil, err
		}
		status, n := r.Status, r.N
		for i := 0; i+group <= n && err == nil; i += group {
			var g manager.Grant
			g, err = s.listed(&r, i, len(grants))
			grants = append(grants, g)
		}
		release()
		switch {
		case err != nil:
			return nil, err
		case status != wire.StatusOK:
			return nil, fmt.Errorf("%w: %v", manager.ErrRefused, status)
		case len(grants) > s.info.Chunks || n%group != 0:
			return nil, s.ch.Violated("a list of chunks that cannot be")
		case n == 0:
			s.mu.Lock()
			for i, g := range grants {
				s.owned[g.Chunk] = s.pairs[i%len(s.pairs)]
			}
			s.mu.Unlock()
			return grants, nil
		}
	}
}

// listed returns the grant of the chunk whose entries in r begin at i. n is the chunk's place among all chunks that
// the node has listed.
func (s *session) listed(r *wire.Reply, i, n int) (g manager.Grant, err error) {
	first := r.Grant(i)
	g.Group = n % len(s.groups)
	g.Chunk, g.Chunks, g.Addr = first.Chunk, 1, first.Addr
	if int(g.Chunk) >= s.info.Chunks {
		return g, s.ch.Violated("chunk %d of %d listed", g.Chunk, s.info.Chunks)
	}
	for j := range s.groups[0] {
		g.Keys[j] = r.Grant(i + j).Key
	}
	return g, nil
}
