package onesided

import (
	"context"
	"encoding/binary"
	"fmt"

	"polder/memnode/chain"
	"polder/memnode/wire"
	"polder/pool/manager"
	"polder/verbs"
)

// Alloc implements manager.Session.
func (s *session) Alloc(ctx context.Context, grants []manager.Grant) (int, error) {
	if err := s.freeOrphans(ctx); err != nil {
		return 0, err
	}
	want, dry := s.reserve(min(len(grants), batch))
	if want == 0 {
		return 0, manager.ErrBudget
	}
	n, left, err := s.allocate(ctx, grants[:want], dry)
	s.unreserve(want - n - left)
	return n, err
}

// reserve takes up to want chunks of the budget.
func (s *session) reserve(want int) (n int, dry bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = min(want, int(s.space.Budget))
	s.space.Budget -= uint32(n)
	s.space.Free -= min(s.space.Free, uint32(n))
	return n, s.dry
}

func (s *session) unreserve(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.space.Budget += uint32(n)
	s.space.Free += uint32(n)
}

// allocate allocates what it can get of len(grants) chunks; left is how many
// requests are still under way, of which finish takes care.
func (s *session) allocate(ctx context.Context, grants []manager.Grant, dry bool) (n, left int, err error) {
	for {
		if dry {
			status, err := s.ask(ctx)
			switch {
			case err != nil:
				return 0, 0, err
			case status == wire.StatusBudget:
				return 0, 0, manager.ErrBudget
			case status == wire.StatusNoMemory:
				return 0, 0, fmt.Errorf("%w (%v)", manager.ErrNoMemory, status)
			}
		}
		n, left, err := s.take(ctx, grants)
		if n > 0 || err != nil {
			return n, left, err
		}
		dry = true // it was empty: there may be something that is being zeroed
	}
}

// take is allocate without asking the node's CPU.
func (s *session) take(ctx context.Context, grants []manager.Grant) (got, left int, err error) {
	for got < len(grants) {
		want := len(grants) - got
		post := func() error { return s.postAllocs(want) }
		if !s.native {
			want, post = 1, s.postAlloc
		}
		ok, left, err := s.run(ctx, &s.allocs, want, post)
		if err != nil {
			if got > 0 && ctx.Err() != nil {
				return got, left, nil
			}
			return 0, left, err
		}
		n := 0
		if ok {
			if n, err = s.answers(grants[got : got+want]); err != nil {
				s.ch.Fail(err)
				return 0, 0, err
			}
		}
		s.allocs.end()
		got += n
		if n < want {
			break
		}
	}
	return got, 0, nil
}

// answers takes what a batch of allocations has brought.
func (s *session) answers(grants []manager.Grant) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, manager.ErrClosed
	}
	for i := range grants {
		g, found, err := s.answer(i)
		if err != nil {
			return 0, err
		}
		if found {
			s.owned[g.Chunk] = struct{}{}
			grants[n] = g
			n++
		}
	}
	return n, nil
}

// prepare makes the work requests that are posted again and again.
func (s *session) prepare() {
	for i := range batch {
		s.allocWRs[i] = verbs.SendWR{ID: idAlloc, Op: verbs.OpAlloc, SGL: s.sge(answerOff+i*answerRoom, 24+4*len(s.group))}
		s.freeWRs[i] = verbs.SendWR{ID: idFree, Op: verbs.OpFree}
	}
	if s.native {
		return
	}
	b := s.mem.Bytes()[requestOff:requestOff]
	for _, qpn := range s.group {
		b = binary.LittleEndian.AppendUint32(b, qpn)
	}
	b = binary.LittleEndian.AppendUint64(b, s.mr.Addr()+answerOff)
	b = binary.LittleEndian.AppendUint32(b, uint32(s.mr.RKey()))
	s.allocWRs[0] = verbs.SendWR{Op: verbs.OpSend, SGL: s.sge(requestOff, len(b))}
	s.freeWRs[0] = verbs.SendWR{Op: verbs.OpSend, SGL: s.sge(handleOff, chain.HandleSize)}
}

// postAlloc posts a request to allocate by a chain.
func (s *session) postAlloc() error {
	s.mu.Lock()
	armed := s.armed
	s.armed = true
	s.mu.Unlock()
	if !armed {
		if err := s.alloc.PostRecv(verbs.RecvWR{ID: idAlloc}); err != nil {
			return err
		}
	}
	return s.alloc.PostSend(s.allocWRs[:1]...)
}

// postAllocs posts n ALLOCs.
func (s *session) postAllocs(n int) error {
	wrs := s.allocWRs[:n]
	for i := range wrs {
		wrs[i].Flags = 0
	}
	wrs[n-1].Flags = verbs.SendSignaled
	return s.alloc.PostSend(wrs...)
}

// answer is what the allocation i of a batch that has ended brought: nothing if
// the queue was empty.
//
// Preconditions: s.mu is held, and s was not closed before, or a completion
// handler is at work.
func (s *session) answer(i int) (g manager.Grant, found bool, err error) {
	le := binary.LittleEndian
	b := s.mem.Bytes()[answerOff+i*answerRoom:][:answerRoom]
	if s.native {
		switch verbs.AllocStatus(le.Uint32(b)) {
		case verbs.AllocOK:
		case verbs.AllocEmpty, verbs.AllocBudget:
			return g, false, nil
		default:
			return g, false, fmt.Errorf("%w: the node's device could not allocate", manager.ErrRefused)
		}
		b = b[8:]
	}
	addr, entry := le.Uint64(b), le.Uint64(b[8:])
	chunk := (addr - s.base) / uint64(s.info.ChunkSize)
	if addr < s.base || chunk >= uint64(s.info.Chunks) || (addr-s.base)%uint64(s.info.ChunkSize) != 0 ||
		entry != s.table+chunk*verbs.EntrySize {
		return g, false, fmt.Errorf("%w: a chunk at %#x was granted, its entry at %#x", wire.ErrMalformed, addr, entry)
	}
	g.Chunk, g.Chunks, g.Addr = uint32(chunk), 1, addr
	for j := range s.group {
		g.Keys[j] = verbs.RKey(le.Uint32(b[16+4*j:]))
	}
	return g, true, nil
}
