// Package onesided manages remote memory without the memory node's CPU
// (OneSidedMW): a client takes and returns chunks by requests that the node's
// NIC serves, with windows of type 2B that are bound to the client's own queue
// pairs. The NIC does it by chains of work requests, or by an allocation verb
// if it has one; the results are the same.
//
// # Protocol
//
// Package memnode/wire connects: a management queue pair, the group of access
// queue pairs, of which the answers say the numbers at the node, and those to
// free and to allocate with. Then
//
//   - by chains (package memnode/chain), a request to allocate is a SEND with the
//     access queue pairs' numbers and where to write the answer; the node's NIC
//     WRITEs it there, and an empty SEND says that it has. A request to free is a
//     SEND with a handle, answered by an empty SEND.
//   - by the verb (verbs.Allocator), they are an ALLOC and a FREE.
//
// One request of each kind is under way at a time. The management queue pair is
// used when a session begins or is resumed, and when the node has nothing left:
// it tells whose allocation has failed, and when there is memory again.
//
// # Concurrency
//
// There is no goroutine: completion handlers wake the callers. Lock order:
// session.pollMu, session.mu; control's locks come before session.mu.
package onesided

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"polder/internal/arena"
	"polder/memnode/chain"
	"polder/memnode/wire"
	"polder/pool/control"
	"polder/pool/mech"
	"polder/verbs"
)

// What memory nodes know the mechanisms as.
const (
	Name       = "onesided"
	NativeName = "native"
)

// Mechanism is the mechanism. It has no state.
type Mechanism struct {
	// Native has the node's NIC allocate by its own verb, not by chains.
	Native bool
}

var _ mech.Mechanism = Mechanism{}

// Name implements mech.Mechanism.
func (m Mechanism) Name() string {
	if m.Native {
		return NativeName
	}
	return Name
}

// Attach implements mech.Mechanism.
func (m Mechanism) Attach(ctx context.Context, l mech.Link) (mech.Session, error) {
	s := &session{
		link: l, name: m.Name(), native: m.Native,
		owned: make(map[uint32]struct{}), returned: make(chan struct{}),
	}
	if err := s.open(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// batch is the most ALLOCs or FREEs under way at a time.
const batch = 64

// Offsets in a session's memory.
const (
	requestOff = 0
	handleOff  = 128
	answerOff  = 256 // batch answers of answerRoom bytes
	answerRoom = 64
	memorySize = answerOff + batch*answerRoom
)

// IDs of work requests.
const (
	idAlloc = 1
	idFree  = 2
)

// session implements mech.Session and mech.Waiter.
type session struct {
	link   mech.Link
	name   string
	native bool
	info   mech.Info
	base   uint64 // of chunk 0
	table  uint64 // at the node: entry of chunk 0
	group  []uint32
	ch     *control.Channel
	cq     verbs.CQ
	alloc  verbs.QP
	free   verbs.QP // the same if native
	mem    *arena.Mapping
	mr     verbs.MR

	allocs, frees lane
	// What is posted, made in advance; each is of whoever has the lane's turn.
	allocWRs, freeWRs [batch]verbs.SendWR

	pollMu sync.Mutex // serialises completion handlers
	wcs    [2 * batch]verbs.WC

	mu       sync.Mutex // guards what follows, and the lanes' states
	closed   bool
	users    sync.WaitGroup // calls that may touch mem; no more once closed
	space    wire.Space     // as far as is known
	owned    map[uint32]struct{}
	orphans  []uint32 // allocated for calls that had given up
	dry      bool     // the node has said that there is nothing
	failures uint32   // allocations that failed, as the node counts them
	armed    bool     // a receive is posted to alloc for an answer
	returned chan struct{}
}

// A lane is the requests of one kind, which go one batch after the other.
type lane struct {
	turn chan struct{} // capacity 1: holds a token while the lane is free
	done chan bool     // capacity 1: the batch has ended, false if in vain

	busy      bool
	abandoned bool
	n         int // requests in the batch
}

func (l *lane) init() {
	l.turn, l.done = make(chan struct{}, 1), make(chan bool, 1)
	l.turn <- struct{}{}
}

func (s *session) open(ctx context.Context) error {
	s.allocs.init()
	s.frees.init()
	ch, w, err := control.Open(ctx, s.link, s.name, control.Handlers{Notice: s.noticed})
	if err != nil {
		return err
	}
	s.ch = ch
	s.info = mech.Info{
		Session: w.Session, Resumed: w.Resumed,
		ChunkSize: int(w.ChunkSize), Chunks: int(w.Chunks), Grace: w.Grace,
	}
	s.base, s.space = w.Base, w.Space
	if w.Group == 0 || int(w.Group) > mech.MaxPaths {
		return ch.Violated("groups of %d access queue pairs", w.Group)
	}
	if s.mem, err = arena.Anonymous(memorySize, false); err != nil {
		return err
	}
	access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	if s.native {
		access = verbs.AccessLocalWrite
	}
	if s.mr, err = s.link.PD.RegMR(s.mem.Bytes(), access); err != nil {
		return fmt.Errorf("cannot register buffers: %w", err)
	}
	if s.cq, err = s.link.Device.CreateCQ(verbs.CQInit{Depth: 4 * batch, Handler: s.complete}); err != nil {
		return fmt.Errorf("cannot create a completion queue: %w", err)
	}
	for i := range w.Group {
		qp, err := s.link.Access()
		if err != nil {
			return err
		}
		answer, err := s.connect(ctx, qp, wire.KindAccess, i)
		if err != nil {
			return err
		}
		if len(answer) != 4 {
			return ch.Violated("an access queue pair's number of %d bytes", len(answer))
		}
		s.group = append(s.group, binary.LittleEndian.Uint32(answer))
	}
	if err := s.connectManagement(ctx); err != nil {
		return err
	}
	s.prepare()
	// The answer comes when the node has built what serves us.
	_, err = s.ask(ctx)
	return err
}

// connectManagement connects the queue pairs to allocate and to free with.
func (s *session) connectManagement(ctx context.Context) (err error) {
	create := func(kind wire.Kind) (verbs.QP, error) {
		qp, err := s.link.PD.CreateQP(verbs.QPInit{SendCQ: s.cq, RecvCQ: s.cq, SendDepth: batch, RecvDepth: 4})
		if err != nil {
			return nil, fmt.Errorf("cannot create a queue pair to manage memory with: %w", err)
		}
		answer, err := s.connect(ctx, qp, kind, 0)
		if err == nil && len(answer) != 8 {
			err = s.ch.Violated("a table's address of %d bytes", len(answer))
		}
		if err != nil {
			qp.Close()
			return nil, err
		}
		s.table = binary.LittleEndian.Uint64(answer)
		return qp, nil
	}
	if !s.native {
		if s.free, err = create(wire.KindFree); err != nil {
			return err
		}
	}
	s.alloc, err = create(wire.KindAlloc)
	return err
}

func (s *session) connect(ctx context.Context, qp verbs.QP, kind wire.Kind, i uint8) ([]byte, error) {
	hello := wire.Hello{Kind: kind, Index: i, Manager: s.name}
	answer, err := s.link.Conn.Connect(ctx, qp, hello.Append(nil))
	if err != nil {
		return nil, fmt.Errorf("cannot connect a queue pair: %w", err)
	}
	return answer, nil
}

// Info implements mech.Session.
func (s *session) Info() mech.Info { return s.info }

// Space implements mech.Session.
func (s *session) Space() wire.Space {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.space
}

// Returned implements mech.Waiter.
func (s *session) Returned() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.returned
}

// ask asks the node whether there is memory.
func (s *session) ask(ctx context.Context) (wire.Status, error) {
	var r wire.Reply
	release, err := s.ch.Exchange(ctx, &r, func(b []byte, id uint32) []byte {
		return wire.AppendRequest(b, wire.OpSpace, id, 1, 0)
	})
	if err != nil {
		return 0, err
	}
	defer release()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.space.Free = r.Space.Free
	s.setDry(r.Status == wire.StatusNoMemory)
	return r.Status, nil
}

// setDry notes whether the node has memory.
//
// Preconditions: s.mu is held.
func (s *session) setDry(dry bool) {
	switch {
	case dry && !s.dry:
		select {
		case <-s.returned:
			s.returned = make(chan struct{})
		default:
		}
	case !dry:
		select {
		case <-s.returned:
		default:
			close(s.returned)
		}
	}
	s.dry = dry
}

// noticed takes a notice of the node's.
func (s *session) noticed(r *wire.Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.space.Free = r.Space.Free
	s.setDry(r.Status == wire.StatusNoMemory)
	if r.ID != s.failures {
		s.failures = r.ID
		s.finish(&s.allocs, false)
	}
}

// finish ends a lane's batch.
//
// Preconditions: s.mu is held.
func (s *session) finish(l *lane, ok bool) {
	if !l.busy {
		return
	}
	l.busy = false
	if l == &s.frees {
		s.space.Budget += uint32(l.n)
		s.space.Free += uint32(l.n)
	}
	if !l.abandoned {
		l.done <- ok
		return
	}
	if l == &s.allocs && ok {
		for i := range l.n {
			if g, found, err := s.answer(i); err == nil && found {
				s.owned[g.Chunk] = struct{}{}
				s.orphans = append(s.orphans, g.Chunk)
			}
		}
	}
	l.turn <- struct{}{}
}

// run takes the lane's turn, has post post n requests, and waits for them. If
// it returns no error the turn is the caller's until end is called.
func (s *session) run(ctx context.Context, l *lane, n int, post func() error) (ok bool, err error) {
	select {
	case <-l.turn:
	case <-s.ch.Broken():
		return false, s.ch.Err()
	case <-s.link.Conn.Done():
		return false, s.link.Conn.Err()
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return false, mech.ErrClosed
	}
	s.users.Add(1)
	l.busy, l.abandoned, l.n = true, false, n
	s.mu.Unlock()
	err = post()
	s.users.Done()
	if err != nil {
		s.ch.Fail(fmt.Errorf("cannot send a request: %w", err))
		return false, s.ch.Err()
	}
	select {
	case ok = <-l.done:
		return ok, nil
	case <-s.ch.Broken():
		return false, s.ch.Err()
	case <-s.link.Conn.Done():
		return false, s.link.Conn.Err()
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.busy {
		l.abandoned = true
		return false, context.Cause(ctx)
	}
	return <-l.done, nil
}

func (l *lane) end() { l.turn <- struct{}{} }

// Alloc implements mech.Session.
func (s *session) Alloc(ctx context.Context, grants []mech.Grant) (int, error) {
	if err := s.freeOrphans(ctx); err != nil {
		return 0, err
	}
	want, dry := s.reserve(min(len(grants), batch))
	if want == 0 {
		return 0, mech.ErrBudget
	}
	n, err := s.allocate(ctx, grants[:want], dry)
	s.unreserve(want - n)
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

func (s *session) allocate(ctx context.Context, grants []mech.Grant, dry bool) (int, error) {
	for {
		if dry {
			status, err := s.ask(ctx)
			switch {
			case err != nil:
				return 0, err
			case status == wire.StatusBudget:
				return 0, mech.ErrBudget
			case status == wire.StatusNoMemory:
				return 0, fmt.Errorf("%w (%v)", mech.ErrNoMemory, status)
			}
		}
		n, err := s.take(ctx, grants)
		if n > 0 || err != nil {
			return n, err
		}
		dry = true // it was empty: there may be something that is being zeroed
	}
}

// take allocates what it can get of len(grants) chunks.
func (s *session) take(ctx context.Context, grants []mech.Grant) (int, error) {
	got := 0
	for got < len(grants) {
		want := len(grants) - got
		post := func() error { return s.postAllocs(want) }
		if !s.native {
			want, post = 1, s.postAlloc
		}
		ok, err := s.run(ctx, &s.allocs, want, post)
		if err != nil {
			if got > 0 && ctx.Err() != nil {
				return got, nil
			}
			return 0, err
		}
		n := 0
		if ok {
			if n, err = s.answers(grants[got : got+want]); err != nil {
				s.ch.Fail(err)
				return 0, err
			}
		}
		s.allocs.end()
		got += n
		if n < want {
			break
		}
	}
	return got, nil
}

// answers takes what a batch of allocations has brought.
func (s *session) answers(grants []mech.Grant) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, mech.ErrClosed
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

func (s *session) sge(off, n int) []verbs.SGE {
	return []verbs.SGE{{Addr: s.mr.Addr() + uint64(off), Length: uint32(n), LKey: s.mr.LKey()}}
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
func (s *session) answer(i int) (g mech.Grant, found bool, err error) {
	le := binary.LittleEndian
	b := s.mem.Bytes()[answerOff+i*answerRoom:][:answerRoom]
	if s.native {
		switch verbs.AllocStatus(le.Uint32(b)) {
		case verbs.AllocOK:
		case verbs.AllocEmpty, verbs.AllocBudget:
			return g, false, nil
		default:
			return g, false, fmt.Errorf("%w: the node's device could not allocate", mech.ErrRefused)
		}
		b = b[8:]
	}
	addr, entry := le.Uint64(b), le.Uint64(b[8:])
	chunk := (addr - s.base) / uint64(s.info.ChunkSize)
	if addr < s.base || chunk >= uint64(s.info.Chunks) || (addr-s.base)%uint64(s.info.ChunkSize) != 0 ||
		entry != s.table+chunk*verbs.EntrySize {
		return g, false, fmt.Errorf("%w: a chunk at %#x was granted, its entry at %#x", wire.ErrMalformed, addr, entry)
	}
	g.Chunk, g.Addr = uint32(chunk), addr
	for j := range s.group {
		g.Keys[j] = verbs.RKey(le.Uint32(b[16+4*j:]))
	}
	return g, true, nil
}

// Free implements mech.Session.
func (s *session) Free(ctx context.Context, chunks []uint32) error {
	if err := s.freeOrphans(ctx); err != nil {
		return err
	}
	return s.give(ctx, chunks)
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
			return fmt.Errorf("%w: %v", mech.ErrRefused, wire.StatusNotOwner)
		}
		delete(s.owned, c)
	}
	return nil
}

func (s *session) give(ctx context.Context, chunks []uint32) error {
	if err := s.disown(chunks); err != nil {
		return err
	}
	for len(chunks) > 0 {
		n, post := min(len(chunks), batch), s.postFrees
		if !s.native {
			n, post = 1, s.postFree
		}
		_, err := s.run(ctx, &s.frees, n, func() error { return post(chunks[:n]) })
		if err != nil {
			return err // what has been posted is on its way
		}
		s.frees.end()
		chunks = chunks[n:]
	}
	return nil
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
	s.space.Budget -= min(s.space.Budget, uint32(len(orphans))) // give adds them
	s.mu.Unlock()
	if len(orphans) == 0 {
		return nil
	}
	err := s.give(ctx, orphans)
	if err != nil {
		s.mu.Lock()
		s.orphans = append(s.orphans, orphans...)
		s.mu.Unlock()
	}
	return err
}

// Owned implements mech.Session.
func (s *session) Owned(ctx context.Context) ([]mech.Grant, error) {
	var grants []mech.Grant
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
			var g mech.Grant
			g, err = s.listed(&r, i)
			grants = append(grants, g)
		}
		release()
		switch {
		case err != nil:
			return nil, err
		case status != wire.StatusOK:
			return nil, fmt.Errorf("%w: %v", mech.ErrRefused, status)
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
func (s *session) listed(r *wire.Reply, i int) (g mech.Grant, err error) {
	first := r.Grant(i)
	g.Chunk, g.Addr = first.Chunk, first.Addr
	if int(g.Chunk) >= s.info.Chunks {
		return g, s.ch.Violated("chunk %d of %d listed", g.Chunk, s.info.Chunks)
	}
	for j := range s.group {
		g.Keys[j] = r.Grant(i + j).Key
	}
	return g, nil
}

// complete is the completion handler.
func (s *session) complete(cq verbs.CQ) {
	s.pollMu.Lock()
	defer s.pollMu.Unlock()
	for {
		n := cq.Poll(s.wcs[:])
		if n == 0 {
			return
		}
		for _, wc := range s.wcs[:n] {
			if err := wc.Err(); err != nil {
				s.ch.Fail(fmt.Errorf("a queue pair to manage memory with failed: %w", err))
				return
			}
			s.mu.Lock()
			if wc.ID == idAlloc {
				s.armed = false
				s.finish(&s.allocs, true)
			} else {
				s.finish(&s.frees, true)
			}
			s.mu.Unlock()
		}
	}
}

// Close implements mech.Session.
func (s *session) Close() {
	s.mu.Lock()
	s.closed = true
	s.setDry(false) // whoever waits may look again
	s.mu.Unlock()
	if s.ch != nil {
		s.ch.Fail(mech.ErrClosed)
	}
	s.users.Wait()
	var errs []error
	for _, qp := range []verbs.QP{s.alloc, s.free} {
		if qp != nil {
			errs = append(errs, qp.Close())
		}
	}
	if s.ch != nil {
		s.ch.Close()
	}
	// A handler that is at work has done so before the buffers go.
	s.pollMu.Lock()
	defer s.pollMu.Unlock()
	if s.cq != nil {
		errs = append(errs, s.cq.Close())
	}
	if s.mr != nil {
		errs = append(errs, s.mr.Deregister())
	}
	// Memory that the device still knows stays mapped until it is closed.
	if s.mem != nil && errors.Join(errs...) == nil {
		s.mem.Close()
	}
}
