package simlatency

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"polder/pool"
	"polder/pool/malloc"
	"polder/race"
	"polder/verbs"
	"polder/verbs/sim"
)

// kvBlock is the size of a block, with its header, key and value. The paper's blocks have the same size: with 10 % of
// the blocks left, 81.1, 65.6 and 43 % of the chunks of 2, 4 and 8 KiB are free, which is 0.9 to the power of 2, 4
// and 8.
const (
	kvBlock = 1024
	kvKey   = 16
	kvValue = kvBlock - kvKey - 16 // 16 bytes are the header's
)

// store is what package race works on in virtual time: race.Fabric and race.Memory.
// Blocks are of one size and lie in chunks that a manager lends, and each thread cuts
// blocks from a chunk of its own, as the paper's two-level allocation does.
//
// The manager's chains or messages open chunks, but entries lie in one region that is registered as a whole, because
// threads share all chunks of their compute node. That costs the model's NICs the same.
type store struct {
	r           *rig
	size        int      // of a chunk
	index, data verbs.MR // subtables; chunks
	at          map[*pool.Chunk]verbs.MR
	chunks      []*kvChunk // by their place in data
	spare       []int      // places of chunks that were given back
	empty       []*kvChunk // to be given back
	lent, freed int        // chunks
}

// A kvChunk is a chunk that has been lent.
type kvChunk struct {
	place  int
	give   giveBack
	blocks int  // in use
	cut    bool // all blocks have been handed out once
}

// giveBack has a thread give a chunk back to the memory node.
type giveBack func(t *kvThread) error

// A kvThread is a thread of a compute node.
type kvThread struct {
	store *store
	p     *sim.Proc
	qp    verbs.QP
	cq    verbs.CQ
	buf   verbs.MR // what is written and read
	// take borrows a chunk from the memory node.
	take func(p *sim.Proc) (giveBack, error)

	cutting *kvChunk
	next    int   // block of it
	failed  error // ends the simulation: t cannot wait for anything any more
}

const kvBuffer = 16 << 10

type threadKey struct{}

// context returns the context for operations of t, which names t.
func (t *kvThread) context() context.Context {
	return context.WithValue(t.store.r.ctx, threadKey{}, t)
}

// newStore makes a store for so many entries, in so many chunks of a size, and a table in it.
func newStore(r *rig, entries, chunks, size int) (*store, *race.Table) {
	// A third of the slots are used at most, so that nothing is split, as with a table that has grown before the
	// experiment.
	groups := max(2, entries/8)
	s := &store{r: r, size: size, at: make(map[*pool.Chunk]verbs.MR),
		index: r.node.memory(groups*192, windowAccess|verbs.AccessLocalWrite),
		data:  r.node.memory(chunks*size, windowAccess|verbs.AccessLocalWrite)}
	return s, must(race.Over(r.ctx, s, s, uint32(groups), r.seed))
}

// thread makes a thread on the compute node that is the rig's client.
func (s *store) thread() *kvThread {
	c := s.r.client
	t := &kvThread{store: s, cq: c.cq(64), buf: c.memory(kvBuffer, clientAccess)}
	t.qp = c.queuePair(t.cq)
	s.r.join(t.qp, s.r.node.queuePair(s.r.node.cq(16)))
	return t
}

var errSplit = errors.New("the table is to be split, which is no part of the experiment")

// Alloc implements race.Memory.
func (s *store) Alloc(ctx context.Context, size int) (malloc.Block, error) {
	t, _ := ctx.Value(threadKey{}).(*kvThread)
	switch {
	case t == nil: // the first subtable, before the experiment
		c := new(pool.Chunk)
		s.at[c] = s.index
		return malloc.Block{Chunk: c, Size: size}, nil
	case size != kvBlock:
		return malloc.Block{}, errSplit
	}
	if t.cutting == nil {
		give, err := t.take(t.p)
		if err != nil {
			return malloc.Block{}, err
		}
		t.cutting, t.next = s.lend(give), 0
	}
	c := t.cutting
	b := s.block(c.place*(s.size/kvBlock) + t.next)
	c.blocks++
	if t.next++; t.next == s.size/kvBlock {
		c.cut, t.cutting = true, nil
	}
	return b, nil
}

// lend finds a place in data for a chunk.
func (s *store) lend(give giveBack) *kvChunk {
	c := &kvChunk{give: give}
	s.lent++
	if n := len(s.spare); n > 0 {
		c.place, s.spare = s.spare[n-1], s.spare[:n-1]
		s.chunks[c.place] = c
		return c
	}
	c.place = len(s.chunks)
	s.chunks = append(s.chunks, c)
	return c
}

// dataChunk is the chunk that all blocks name: they differ by offset.
var dataChunk = new(pool.Chunk)

func (s *store) block(i int) malloc.Block {
	return malloc.Block{Chunk: dataChunk, Off: int64(i) * kvBlock, Size: kvBlock}
}

// Free implements race.Memory.
func (s *store) Free(_ context.Context, b malloc.Block) error {
	c := s.chunks[int(b.Off)/s.size]
	if c.blocks--; c.blocks == 0 && c.cut {
		s.empty = append(s.empty, c)
	}
	return nil
}

// Ref implements race.Memory.
func (s *store) Ref(b malloc.Block) (malloc.Ref, error) { return malloc.Ref(b.Off/kvBlock) + 1, nil }

// At implements race.Memory.
func (s *store) At(r malloc.Ref, _ int) malloc.Block { return s.block(int(r) - 1) }

// giveBack gives back the chunks that have become empty.
func (t *kvThread) giveBack() error {
	for s := t.store; len(s.empty) > 0; {
		last := len(s.empty) - 1
		c := s.empty[last]
		s.empty = s.empty[:last]
		if err := c.give(t); err != nil {
			return err
		}
		s.freed++
		s.spare = append(s.spare, c.place)
	}
	return nil
}

// region is where a chunk's bytes are.
func (s *store) region(c *pool.Chunk) verbs.MR {
	if c == dataChunk {
		return s.data
	}
	return s.at[c]
}

// Do implements race.Fabric: all operations with one doorbell, and one wait.
func (s *store) Do(ctx context.Context, ops []pool.Op) error {
	t, _ := ctx.Value(threadKey{}).(*kvThread)
	if t == nil { // before the experiment: the first subtable is written
		for _, op := range ops {
			copy(s.region(op.Chunk).Bytes()[op.Off:], op.Buf)
		}
		return nil
	}
	if t.failed != nil {
		return t.failed
	}
	wrs, used := make([]verbs.SendWR, len(ops)), 0
	for i, op := range ops {
		m, n := s.region(op.Chunk), len(op.Buf)
		wr := verbs.SendWR{RemoteAddr: m.Addr() + uint64(op.Off), RKey: m.RKey()}
		switch op.Kind {
		case pool.OpRead:
			wr.Op = verbs.OpRead
		case pool.OpWrite:
			wr.Op = verbs.OpWrite
			copy(t.buf.Bytes()[used:], op.Buf)
		case pool.OpCompareAndSwap:
			wr.Op, wr.Compare, wr.Swap, n = verbs.OpCmpSwap, op.Old, op.New, 8
		default:
			return fmt.Errorf("cannot simulate %v", op.Kind)
		}
		if used+n > kvBuffer {
			return fmt.Errorf("operations move more than %d bytes", kvBuffer)
		}
		wr.SGL = []verbs.SGE{local(t.buf, used, n)}
		wrs[i], used = wr, used+(n+7)/8*8
	}
	wrs[len(wrs)-1].Flags = verbs.SendSignaled
	if err := t.qp.PostSend(wrs...); err != nil {
		return err
	}
	if _, t.failed = s.r.await(t.cq); t.failed != nil {
		return t.failed
	}
	used = 0
	for i := range ops {
		op := &ops[i]
		n := len(op.Buf)
		switch op.Kind {
		case pool.OpRead:
			copy(op.Buf, t.buf.Bytes()[used:])
		case pool.OpCompareAndSwap:
			op.Prev, n = binary.LittleEndian.Uint64(t.buf.Bytes()[used:]), 8
		}
		used += (n + 7) / 8 * 8
	}
	return nil
}
