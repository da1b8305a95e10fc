package onesided

import (
	"context"
	"fmt"

	"polder/memnode/chain"
	"polder/memnode/wire"
	"polder/pool/manager"
	"polder/verbs"
)

// Free implements manager.Session.
func (s *session) Free(ctx context.Context, chunks []uint32) error {
	if err := s.freeOrphans(ctx); err != nil {
		return err
	}
	_, err := s.give(ctx, chunks)
	return err
}

// disown takes chunks out of what is known to be ours, all or none.
func (s *session) disown(chunks []uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, c := range chunks {
		if _, ok := s.owned[c]; !ok {
			for _, c := range chunks[:i] {
				s.owned[c] = struct{}{}
			}
			return fmt.Errorf("%w: %v", manager.ErrRefused, wire.StatusNotOwner)
		}
		delete(s.owned, c)
	}
	return nil
}

// give frees chunks, and returns how many of them are on their way.
func (s *session) give(ctx context.Context, chunks []uint32) (sent int, err error) {
	if err := s.disown(chunks); err != nil {
		return 0, err
	}
	for sent < len(chunks) {
		rest := chunks[sent:]
		n, post := min(len(rest), batch), s.postFrees
		if !s.native {
			n, post = 1, s.postFree
		}
		_, left, err := s.run(ctx, &s.frees, n, func() error { return post(rest[:n]) })
		if err != nil {
			return sent + left, err
		}
		s.frees.end()
		sent += n
	}
	return sent, nil
}

func (s *session) entry(c uint32) uint64 { return s.table + uint64(c)*verbs.EntrySize }

// postFree posts a request to free one chunk by a chain.
func (s *session) postFree(chunks []uint32) error {
	if err := s.free.PostRecv(verbs.RecvWR{ID: idFree}); err != nil {
		return err
	}
	h := chain.Handle(s.entry(chunks[0]))
	copy(s.mem.Bytes()[handleOff:], h[:])
	return s.free.PostSend(s.freeWRs[:1]...)
}

// postFrees posts FREEs.
func (s *session) postFrees(chunks []uint32) error {
	wrs := s.freeWRs[:len(chunks)]
	for i, c := range chunks {
		wrs[i].Flags, wrs[i].RemoteAddr = 0, s.entry(c)
	}
	wrs[len(wrs)-1].Flags = verbs.SendSignaled
	return s.alloc.PostSend(wrs...)
}

// freeOrphans gives back what was allocated for calls that had given up.
func (s *session) freeOrphans(ctx context.Context) error {
	s.mu.Lock()
	orphans := s.orphans
	s.orphans = nil
	s.mu.Unlock()
	if len(orphans) == 0 {
		return nil
	}
	sent, err := s.give(ctx, orphans)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range orphans[sent:] {
		s.owned[c] = struct{}{}
		s.orphans = append(s.orphans, c)
	}
	return err
}

// Owned implements manager.Session.
func (s *session) Owned(ctx context.Context) ([]manager.Grant, error) {
	var grants []manager.Grant
	group := len(s.group)
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
			g, err = s.listed(&r, i)
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
			for _, g := range grants {
				s.owned[g.Chunk] = struct{}{}
			}
			s.mu.Unlock()
			return grants, nil
		}
	}
}

// listed is the chunk whose entries in r's list begin with i.
func (s *session) listed(r *wire.Reply, i int) (g manager.Grant, err error) {
	first := r.Grant(i)
	g.Chunk, g.Chunks, g.Addr = first.Chunk, 1, first.Addr
	if int(g.Chunk) >= s.info.Chunks {
		return g, s.ch.Violated("chunk %d of %d listed", g.Chunk, s.info.Chunks)
	}
	for j := range s.group {
		g.Keys[j] = r.Grant(i + j).Key
	}
	return g, nil
}
