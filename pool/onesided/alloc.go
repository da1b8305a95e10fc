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
	turn := int(s.next.Add(1))
	p, want, dry := s.reserve(turn, min(len(grants), batch))
	if want == 0 {
		return 0, manager.ErrBudget
	}
	group := turn % len(s.groups)
	if s.native {
		group = p.index
	}
	n, left, err := p.allocate(ctx, group, grants[:want], dry)
	p.unreserve(want - n - left)
	return n, err
}

// reserve takes up to want chunks of the budget of a pair: of the pair whose turn it is or, if that has no budget
// left, of the next pair that has some.
func (s *session) reserve(turn, want int) (p *pair, n int, dry bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.pairs {
		if p = s.pairs[(turn+i)%len(s.pairs)]; p.budget > 0 {
			break
		}
	}
	n = min(want, int(p.budget))
	p.budget -= uint32(n)
	s.free -= min(s.free, uint32(n))
	return p, n, s.dry
}

func (p *pair) unreserve(n int) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.budget += uint32(n)
	p.s.free += uint32(n)
}

// allocate allocates as many of len(grants) chunks as it can get. left is how many requests are still under way;
// finish deals with their results.
func (p *pair) allocate(ctx context.Context, group int, grants []manager.Grant, dry bool) (n, left int, err error) {
	for {
		if dry {
			status, err := p.s.ask(ctx)
			switch {
			case err != nil:
				return 0, 0, err
			case status == wire.StatusBudget:
				return 0, 0, manager.ErrBudget
			case status == wire.StatusNoMemory:
				return 0, 0, fmt.Errorf("%w (%v)", manager.ErrNoMemory, status)
			}
		}
		n, left, err := p.take(ctx, group, grants)
		if n > 0 || err != nil {
			return n, left, err
		}
		dry = true // the queue was empty: ask, since chunks may be about to become free
	}
}

// take is allocate without asking the node's CPU first.
func (p *pair) take(ctx context.Context, group int, grants []manager.Grant) (got, left int, err error) {
	s := p.s
	for got < len(grants) {
		want := len(grants) - got
		post := func() error { return p.postAllocs(want) }
		if !s.native {
			want, post = 1, func() error { return p.postAlloc(group) }
		}
		ok, left, err := s.run(ctx, &p.allocs, want, post)
		if err != nil {
			if got > 0 && ctx.Err() != nil {
				return got, left, nil
			}
			return 0, left, err
		}
		n, over := 0, false
		if ok {
			if n, over, err = p.answers(group, grants[got:got+want]); err != nil {
				s.ch.Fail(err)
				return 0, 0, err
			}
		}
		p.allocs.end()
		got += n
		if over && got == 0 {
			return 0, 0, manager.ErrBudget
		}
		if n < want {
			break
		}
	}
	return got, 0, nil
}

// answers takes the results of a batch of allocations. over reports whether the pair's part of the budget was used
// up.
func (p *pair) answers(group int, grants []manager.Grant) (n int, over bool, err error) {
	s := p.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, false, manager.ErrClosed
	}
	for i := range grants {
		g, status, err := p.answer(i)
		if err != nil {
			return 0, false, err
		}
		over = over || status == verbs.AllocBudget
		if status == verbs.AllocOK {
			g.Group = group
			s.owned[g.Chunk] = p
			grants[n] = g
			n++
		}
	}
	return n, over, nil
}

// prepare makes the work requests that are posted again and again.
func (p *pair) prepare() {
	keys := 4 * len(p.s.groups[0])
	for i := range batch {
		p.allocWRs[i] = verbs.SendWR{ID: p.id(idAlloc), Op: verbs.OpAlloc, SGL: p.sge(answerOff+i*answerRoom, 24+keys)}
		p.freeWRs[i] = verbs.SendWR{ID: p.id(idFree), Op: verbs.OpFree}
	}
	if p.s.native {
		return
	}
	b := p.bytes()[requestOff+keys : requestOff+keys] // behind the group's numbers
	b = binary.LittleEndian.AppendUint64(b, p.s.mr.Addr()+uint64(p.off)+answerOff)
	b = binary.LittleEndian.AppendUint32(b, uint32(p.s.mr.RKey()))
	p.allocWRs[0] = verbs.SendWR{Op: verbs.OpSend, SGL: p.sge(requestOff, keys+len(b))}
	p.freeWRs[0] = verbs.SendWR{Op: verbs.OpSend, SGL: p.sge(handleOff, chain.HandleSize)}
}

func (p *pair) id(kind uint64) uint64 { return uint64(p.index)*idKinds + kind }

// bytes is the pair's memory.
func (p *pair) bytes() []byte { return p.s.mem.Bytes()[p.off : p.off+memorySize] }

func (p *pair) sge(off, n int) []verbs.SGE {
	mr := p.s.mr
	return []verbs.SGE{{Addr: mr.Addr() + uint64(p.off+off), Length: uint32(n), LKey: mr.LKey()}}
}

// postAlloc posts a request that has a chain allocate one chunk for a group.
func (p *pair) postAlloc(group int) error {
	p.s.mu.Lock()
	armed := p.armed
	p.armed = true
	p.s.mu.Unlock()
	if !armed {
		if err := p.alloc.PostRecv(verbs.RecvWR{ID: p.id(idAlloc)}); err != nil {
			return err
		}
	}
	b := p.bytes()[requestOff:requestOff]
	for _, qpn := range p.s.groups[group] {
		b = binary.LittleEndian.AppendUint32(b, qpn)
	}
	return p.alloc.PostSend(p.allocWRs[:1]...)
}

// postAllocs posts n ALLOCs of the verb.
func (p *pair) postAllocs(n int) error {
	wrs := p.allocWRs[:n]
	for i := range wrs {
		wrs[i].Flags = 0
	}
	wrs[n-1].Flags = verbs.SendSignaled
	return p.alloc.PostSend(wrs...)
}

// answer is the result of allocation i of a batch that has ended. The status says if the queue was empty.
//
// Preconditions: s.mu is held, and s was not closed before, or a completion handler is running.
func (p *pair) answer(i int) (g manager.Grant, status verbs.AllocStatus, err error) {
	s, le := p.s, binary.LittleEndian
	b := p.bytes()[answerOff+i*answerRoom:][:answerRoom]
	if s.native {
		switch status = verbs.AllocStatus(le.Uint32(b)); status {
		case verbs.AllocOK:
		case verbs.AllocEmpty, verbs.AllocBudget:
			return g, status, nil
		default:
			return g, status, fmt.Errorf("%w: the node's device could not allocate", manager.ErrRefused)
		}
		b = b[8:]
	}
	addr, entry := le.Uint64(b), le.Uint64(b[8:])
	chunk := (addr - s.base) / uint64(s.info.ChunkSize)
	if addr < s.base || chunk >= uint64(s.info.Chunks) || (addr-s.base)%uint64(s.info.ChunkSize) != 0 ||
		entry != s.table+chunk*verbs.EntrySize {
		return g, 0, fmt.Errorf("%w: a chunk at %#x was granted, its entry at %#x", wire.ErrMalformed, addr, entry)
	}
	g.Chunk, g.Chunks, g.Addr = uint32(chunk), 1, addr
	for j := range s.groups[0] {
		g.Keys[j] = verbs.RKey(le.Uint32(b[16+4*j:]))
	}
	return g, verbs.AllocOK, nil
}
