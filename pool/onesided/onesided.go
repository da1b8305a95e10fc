// Package onesided manages remote memory without the memory node's CPU (OneSidedMW): a client takes and returns
// chunks by requests that the node's NIC serves, with windows of type 2B that are bound to the client's own queue
// pairs. The NIC serves them by chains of work requests, or by an allocation verb if it has one; the results are the
// same.
//
// # Protocol
//
// Package memnode/wire connects a management queue pair, the groups of access queue pairs, whose numbers at the node
// the answers tell, and the queue pairs to free and to allocate with. Then requests go
//
//   - by chains (package memnode/chain): a request to allocate is a SEND with the access queue pairs' numbers and the
//     address for the answer; the node's NIC WRITEs the answer there, and sends an empty SEND when it has. A request
//     to free is a SEND with a handle, answered by an empty SEND;
//   - or by the verb (verbs.Allocator): they are an ALLOC and a FREE.
//
// There may be several groups of access queue pairs, and several pairs of queue pairs to allocate and to free with. A
// request to allocate names the group to which the chunk is opened. A chunk is freed with the pair that it was
// allocated with, since the node's NIC has bound the chunk's first window to that pair. In each pair one request of
// each kind is under way at a time; each pair has its own part of the client's budget. With the verb, every group has
// one queue pair of its own to allocate and to free with, and that queue pair says which group is meant.
//
// The management queue pair is used when a session begins or is resumed, and when the node has no memory left: over
// it the node tells whose allocation has failed, and when there is memory again.
//
// # Concurrency
//
// There is no goroutine: completion handlers wake the callers. Lock order: session.pollMu, session.mu; control's
// locks come before session.mu.
package onesided

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"polder/internal/arena"
	"polder/memnode/wire"
	"polder/pool/control"
	"polder/pool/manager"
	"polder/verbs"
)

// The names by which memory nodes know the managers.
const (
	Name       = wire.OneSided
	NativeName = wire.Native
)

// Manager is this way of managing memory. It has no state.
type Manager struct {
	// Native makes the node's NIC allocate by its own verb instead of by chains.
	Native bool
}

var _ manager.Manager = Manager{}

// Name implements manager.Manager.
func (m Manager) Name() string {
	if m.Native {
		return NativeName
	}
	return Name
}

// Attach implements manager.Manager.
func (m Manager) Attach(ctx context.Context, l manager.Link) (manager.Session, error) {
	switch attr := l.Device.Attr(); {
	case m.Native && !attr.Alloc:
		return nil, fmt.Errorf("%s has no allocation verb: borrow by rpcmw, from a node that lends so", attr.Name)
	case !m.Native && !attr.WaitEnable:
		return nil, fmt.Errorf("%s has no WAIT and ENABLE, and so will its peer's not: borrow by rpcmw, from a node that lends so", attr.Name)
	}
	s := &session{
		link: l, name: m.Name(), native: m.Native,
		owned: make(map[uint32]*pair), returned: make(chan struct{}),
	}
	if err := s.open(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// batch is the most ALLOCs or FREEs under way at a time.
const batch = 64

// Offsets in a pair's memory.
const (
	requestOff = 0
	handleOff  = 128
	answerOff  = 256 // batch answers of answerRoom bytes
	answerRoom = 64
	memorySize = answerOff + batch*answerRoom
)

// IDs of work requests: the kind in the low part, and above it the number of the pair.
const (
	idAlloc = 1
	idFree  = 2
	idKinds = 4
)

// session implements manager.Session and manager.Waiter.
type session struct {
	link   manager.Link
	name   string
	native bool
	info   manager.Info
	base   uint64     // address of chunk 0
	table  uint64     // address of chunk 0's entry at the node
	groups [][]uint32 // by group, the numbers of its access queue pairs at the node
	pairs  []*pair
	ch     *control.Channel
	cq     verbs.CQ
	mem    *arena.Mapping
	mr     verbs.MR
	next   atomic.Uint32 // counts allocations, to deal them out to pairs and groups

	pollMu sync.Mutex // serialises completion handlers
	wcs    [2 * batch]verbs.WC

	mu       sync.Mutex // guards what follows, and the lanes' states
	closed   bool
	users    sync.WaitGroup   // calls that may touch mem; no new ones once closed
	free     uint32           // free chunks at the node, as far as is known
	owned    map[uint32]*pair // the pair that each chunk is freed with
	orphans  []uint32         // chunks of ours that nobody has, and that are to be freed
	dry      bool             // the node has said that it has no memory left
	notices  uint64           // how many notices the node has sent
	returned chan struct{}
}

// A pair is a queue pair to allocate with and one to free with or, if the node's NIC has an allocation verb, one for
// both.
type pair struct {
	s     *session
	index int
	alloc verbs.QP
	free  verbs.QP // nil if native
	off   int      // offset of the pair's memory in the session's

	allocs, frees lane
	// Work requests, made in advance. Whoever has the turn of the lane may use them.
	allocWRs, freeWRs [batch]verbs.SendWR

	// Guarded by session.mu.
	budget   uint32 // chunks that may still be allocated with it
	failures uint8  // allocations that failed, as the node counts them
	armed    bool   // a receive is posted to alloc for an answer
}

func (s *session) open(ctx context.Context) error {
	ch, w, err := control.Open(ctx, s.link, s.name, control.Handlers{Notice: s.noticed, Space: s.setSpace})
	if err != nil {
		return err
	}
	s.ch = ch
	s.info = manager.Info{
		Version: w.Version,
		Session: w.Session, Resumed: w.Resumed,
		ChunkSize: int(w.ChunkSize), Chunks: int(w.Chunks), Grace: w.Grace, Zone: w.Zone, Yielder: ch.Yielder(w),
	}
	s.base = w.Base
	s.setSpace(w.Space) // which locks s.mu: the node may have sent a notice already
	groups, pairs := max(int(w.Groups), 1), max(int(w.Pairs), 1)
	switch {
	case w.Group == 0 || int(w.Group) > manager.MaxPaths:
		return ch.Violated("groups of %d access queue pairs", w.Group)
	case groups > max(s.link.Groups, 1) || s.native && pairs != groups || !s.native && pairs > max(s.link.Pairs, 1):
		return ch.Violated("%d groups and %d pairs where %d and %d were asked for", groups, pairs, s.link.Groups, s.link.Pairs)
	}
	if s.mem, err = arena.Anonymous(pairs*memorySize, false); err != nil {
		return err
	}
	access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	if s.native {
		access = verbs.AccessLocalWrite
	}
	if s.mr, err = s.link.PD.RegMR(s.mem.Bytes(), access); err != nil {
		return fmt.Errorf("cannot register buffers: %w", err)
	}
	if s.cq, err = s.link.Device.CreateCQ(verbs.CQInit{Depth: pairs * 4 * batch, Handler: s.complete}); err != nil {
		return fmt.Errorf("cannot create a completion queue: %w", err)
	}
	for i := range groups {
		if i > 0 {
			if err := s.link.NextGroup(); err != nil {
				return err
			}
		}
		if err := s.connectGroup(ctx, int(w.Group)); err != nil {
			return err
		}
	}
	for i := range pairs {
		p := &pair{s: s, index: i, off: i * memorySize}
		s.mu.Lock() // a hostile node may be sending notices already
		s.pairs = append(s.pairs, p)
		s.mu.Unlock()
		if err := p.connect(ctx); err != nil {
			return err
		}
		p.prepare()
	}
	// The answer comes when the node has made everything that serves this client.
	_, err = s.ask(ctx)
	return err
}

// connectGroup connects another group, of n access queue pairs.
func (s *session) connectGroup(ctx context.Context, n int) error {
	group := make([]uint32, 0, n)
	for i := range n {
		qp, err := s.link.Access()
		if err != nil {
			return err
		}
		answer, err := s.connect(ctx, qp, wire.KindAccess, uint8(len(s.groups)*n+i))
		if err != nil {
			return err
		}
		if len(answer) != 4 {
			return s.ch.Violated("an access queue pair's number of %d bytes", len(answer))
		}
		group = append(group, binary.LittleEndian.Uint32(answer))
	}
	s.groups = append(s.groups, group)
	return nil
}

// connect connects the queue pairs to allocate and to free with.
func (p *pair) connect(ctx context.Context) (err error) {
	s := p.s
	create := func(kind wire.Kind) (verbs.QP, error) {
		qp, err := s.link.PD.CreateQP(verbs.QPInit{SendCQ: s.cq, RecvCQ: s.cq, SendDepth: batch, RecvDepth: 4})
		if err != nil {
			return nil, fmt.Errorf("cannot create a queue pair to manage memory with: %w", err)
		}
		answer, err := s.connect(ctx, qp, kind, uint8(p.index))
		if err == nil && len(answer) != 12 {
			err = s.ch.Violated("a table's address and a budget of %d bytes", len(answer))
		}
		if err != nil {
			qp.Close()
			return nil, err
		}
		s.table, p.budget = binary.LittleEndian.Uint64(answer), binary.LittleEndian.Uint32(answer[8:])
		return qp, nil
	}
	p.allocs.init()
	p.frees.init()
	if !s.native {
		if p.free, err = create(wire.KindFree); err != nil {
			return err
		}
	}
	p.alloc, err = create(wire.KindAlloc)
	return err
}

func (s *session) connect(ctx context.Context, qp verbs.QP, kind wire.Kind, i uint8) ([]byte, error) {
	hello := wire.Hello{Version: s.ch.Version(), Kind: kind, Index: i, Manager: s.name}
	answer, err := s.link.Conn.Connect(ctx, qp, hello.Append(nil))
	if err != nil {
		return nil, fmt.Errorf("cannot connect a queue pair: %w", err)
	}
	return answer, nil
}

// Info implements manager.Session.
func (s *session) Info() manager.Info { return s.info }

// Close implements manager.Session.
func (s *session) Close() {
	s.mu.Lock()
	s.closed = true
	s.setDry(false) // whoever waits may look again
	s.mu.Unlock()
	if s.ch != nil {
		s.ch.Fail(manager.ErrClosed)
	}
	s.users.Wait()
	var errs []error
	for _, p := range s.pairs {
		for _, qp := range []verbs.QP{p.alloc, p.free} {
			if qp != nil {
				errs = append(errs, qp.Close())
			}
		}
	}
	if s.ch != nil {
		s.ch.Close()
	}
	// Wait for a handler that is running before the buffers go.
	s.pollMu.Lock()
	defer s.pollMu.Unlock()
	if s.cq != nil {
		errs = append(errs, s.cq.Close())
	}
	if s.mr != nil {
		errs = append(errs, s.mr.Deregister())
	}
	// If the device still has it registered, the memory stays mapped until the device is closed.
	if s.mem != nil && errors.Join(errs...) == nil {
		s.mem.Close()
	}
}
