// Package rpcmw manages remote memory by messages: the memory node's control
// goroutine allocates, frees, and binds a window for every chunk, of type 2B or,
// less safely, of type 1 (RPC-MW of section 2.2.2 of the OneSidedMW paper). It is simple and costs
// the node's CPU; what it costs is what the one-sided mechanisms are measured
// against.
//
// The messages are those of package memnode/wire. A session has as many in
// flight as the node gives it credits, matches replies by id, and waits
// without a goroutine: the completion handler wakes the caller.
//
// Lock order: session.pollMu, session.mu.
package rpcmw

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"polder/internal/arena"
	"polder/memnode/wire"
	"polder/pool/mech"
	"polder/verbs"
)

// What memory nodes know this mechanism as.
const (
	Name  = "rpcmw"
	Name1 = "rpcmw1" // with windows of type 1
)

// Mechanism is the mechanism. It has no state.
type Mechanism struct {
	// Type1 asks for windows of type 1. The node needs one bind for a free
	// and the allocation after it, but clients are not safe from each
	// other: any of them can guess another's key.
	Type1 bool
}

var _ mech.Mechanism = Mechanism{}

// Name implements mech.Mechanism.
func (m Mechanism) Name() string {
	if m.Type1 {
		return Name1
	}
	return Name
}

// Attach implements mech.Mechanism.
func (m Mechanism) Attach(ctx context.Context, l mech.Link) (mech.Session, error) {
	return Attach(ctx, l, m.Name())
}

// Attach attaches to a node that manages memory under the given name and is
// asked for it by the same messages.
func Attach(ctx context.Context, l mech.Link, name string) (mech.Session, error) {
	s := &session{link: l, name: name, broken: make(chan struct{})}
	if err := s.open(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// maxCredits bounds what a node can make a client hold.
const maxCredits = 32

// session implements mech.Session.
type session struct {
	link mech.Link
	name string // of the mechanism
	info mech.Info
	cq   verbs.CQ
	mgmt verbs.QP
	mem  *arena.Mapping // requests, then replies: one of each for every slot
	mr   verbs.MR

	space  atomic.Uint64 // free<<32 | budget
	idle   chan *slot
	slots  []*slot
	broken chan struct{} // closed when the session can do nothing more

	pollMu sync.Mutex // serialises completion handlers
	wcs    [2 * maxCredits]verbs.WC

	mu      sync.Mutex
	err     error          // why broken is closed
	users   sync.WaitGroup // calls that may touch mem; no more once broken
	orphans []uint32       // chunks granted to calls that had given up
	spare   []int          // reply buffers that no receive is posted for
	seq     uint32
}

// A slot carries one request at a time. Apart from done it is guarded by
// session.mu between the post and the wake-up, and its caller's otherwise.
type slot struct {
	index     int
	id        uint32
	left      int // completions awaited: the send's and the reply's
	abandoned bool
	done      chan struct{} // capacity 1
	reply     [wire.MaxMessage]byte
	size      int
}

// replyID marks the work-request id of a receive.
const replyID = 1 << 16

func (s *session) open(ctx context.Context) (err error) {
	if s.mem, err = arena.Anonymous(2*maxCredits*wire.MaxMessage, false); err != nil {
		return err
	}
	if s.mr, err = s.link.PD.RegMR(s.mem.Bytes(), verbs.AccessLocalWrite); err != nil {
		return fmt.Errorf("cannot register message buffers: %w", err)
	}
	s.cq, err = s.link.Device.CreateCQ(verbs.CQInit{Depth: 2 * maxCredits, Handler: s.complete})
	if err != nil {
		return fmt.Errorf("cannot create a completion queue: %w", err)
	}
	s.mgmt, err = s.link.PD.CreateQP(verbs.QPInit{
		SendCQ: s.cq, RecvCQ: s.cq, SendDepth: maxCredits, RecvDepth: maxCredits,
	})
	if err != nil {
		return fmt.Errorf("cannot create a management queue pair: %w", err)
	}
	hello := wire.Hello{Kind: wire.KindManagement, Manager: s.name, Session: s.link.Resume}
	private, err := s.link.Conn.Connect(ctx, s.mgmt, hello.Append(nil))
	if err != nil {
		return fmt.Errorf("cannot connect a management queue pair: %w", err)
	}
	var w wire.Welcome
	if err := w.Decode(private); err != nil {
		return err
	}
	s.info = mech.Info{
		Session: w.Session, Resumed: w.Resumed,
		ChunkSize: int(w.ChunkSize), Chunks: int(w.Chunks), Grace: w.Grace,
	}
	s.setSpace(w.Space)
	credits := min(int(w.Credits), maxCredits)
	s.idle = make(chan *slot, credits)
	for i := range credits {
		sl := &slot{index: i, done: make(chan struct{}, 1)}
		s.slots = append(s.slots, sl)
		s.spare = append(s.spare, i)
		s.idle <- sl
	}
	hello = wire.Hello{Kind: wire.KindAccess, Manager: s.name}
	if _, err := s.link.Conn.Connect(ctx, s.link.Access, hello.Append(nil)); err != nil {
		return fmt.Errorf("cannot connect an access queue pair: %w", err)
	}
	return nil
}

// Info implements mech.Session.
func (s *session) Info() mech.Info { return s.info }

// Space implements mech.Session.
func (s *session) Space() wire.Space {
	v := s.space.Load()
	return wire.Space{Free: uint32(v >> 32), Budget: uint32(v)}
}

func (s *session) setSpace(v wire.Space) { s.space.Store(uint64(v.Free)<<32 | uint64(v.Budget)) }

// Alloc implements mech.Session.
func (s *session) Alloc(ctx context.Context, grants []mech.Grant) (int, error) {
	if err := s.freeOrphans(ctx); err != nil {
		return 0, err
	}
	var r wire.Reply
	sl, err := s.exchange(ctx, &r, func(b []byte, id uint32) []byte {
		return wire.AppendRequest(b, wire.OpAlloc, id, min(len(grants), wire.MaxBatch), 0)
	})
	if err != nil {
		return 0, err
	}
	defer s.release(sl)
	switch {
	case r.Status == wire.StatusNoMemory || r.Status == wire.StatusBudget:
		return 0, fmt.Errorf("%w (%v)", mech.ErrNoMemory, r.Status)
	case r.Status != wire.StatusOK:
		return 0, fmt.Errorf("%w: %v", mech.ErrRefused, r.Status)
	case r.N == 0 || r.N > len(grants):
		return 0, s.violated("%d chunks granted where 1 to %d were asked for", r.N, len(grants))
	}
	for i := range r.N {
		if grants[i], err = s.grant(r.Grant(i)); err != nil {
			return 0, err
		}
	}
	return r.N, nil
}

// Free implements mech.Session.
func (s *session) Free(ctx context.Context, chunks []uint32) error {
	if err := s.freeOrphans(ctx); err != nil {
		return err
	}
	return s.free(ctx, chunks)
}

func (s *session) free(ctx context.Context, chunks []uint32) error {
	for len(chunks) > 0 {
		batch := chunks[:min(len(chunks), wire.MaxBatch)]
		chunks = chunks[len(batch):]
		var r wire.Reply
		sl, err := s.exchange(ctx, &r, func(b []byte, id uint32) []byte {
			return wire.AppendFree(b, id, batch)
		})
		if err != nil {
			return err
		}
		s.release(sl)
		if r.Status != wire.StatusOK {
			return fmt.Errorf("%w: %v", mech.ErrRefused, r.Status)
		}
	}
	return nil
}

// freeOrphans gives back what was granted to calls that had given up.
func (s *session) freeOrphans(ctx context.Context) error {
	s.mu.Lock()
	orphans := s.orphans
	s.orphans = nil
	s.mu.Unlock()
	if len(orphans) == 0 {
		return nil
	}
	err := s.free(ctx, orphans)
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
	for {
		var r wire.Reply
		skip := len(grants)
		sl, err := s.exchange(ctx, &r, func(b []byte, id uint32) []byte {
			return wire.AppendRequest(b, wire.OpOwned, id, wire.MaxBatch, uint32(skip))
		})
		if err != nil {
			return nil, err
		}
		for i := 0; i < r.N && err == nil; i++ {
			var g mech.Grant
			g, err = s.grant(r.Grant(i))
			grants = append(grants, g)
		}
		n, status := r.N, r.Status
		s.release(sl)
		switch {
		case err != nil:
			return nil, err
		case status != wire.StatusOK:
			return nil, fmt.Errorf("%w: %v", mech.ErrRefused, status)
		case len(grants) > s.info.Chunks:
			return nil, s.violated("more chunks owned than there are")
		case n == 0:
			return grants, nil
		}
	}
}

func (s *session) grant(g wire.Grant) (mech.Grant, error) {
	if int(g.Chunk) >= s.info.Chunks {
		return mech.Grant{}, s.violated("chunk %d of %d granted", g.Chunk, s.info.Chunks)
	}
	return mech.Grant{Chunk: g.Chunk, Addr: g.Addr, Key: g.Key}, nil
}

// violated gives up on a node that does not keep to the protocol.
func (s *session) violated(format string, args ...any) error {
	err := fmt.Errorf("%w: %s", wire.ErrMalformed, fmt.Sprintf(format, args...))
	s.fail(err)
	return err
}

// exchange sends the request that encode appends and decodes the answer into
// r, which is valid until the slot is released.
func (s *session) exchange(ctx context.Context, r *wire.Reply, encode func(b []byte, id uint32) []byte) (*slot, error) {
	var sl *slot
	select {
	case sl = <-s.idle:
	case <-s.broken:
		return nil, s.failure()
	case <-s.link.Conn.Done():
		return nil, s.link.Conn.Err()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if err := s.post(sl, encode); err != nil {
		s.fail(err)
		return nil, s.failure()
	}
	select {
	case <-sl.done:
	case <-s.broken:
		return nil, s.failure()
	case <-s.link.Conn.Done():
		return nil, s.link.Conn.Err()
	case <-ctx.Done():
		if s.abandon(sl) {
			return nil, context.Cause(ctx)
		}
		<-sl.done
	}
	if err := r.Decode(sl.reply[:sl.size]); err != nil {
		return nil, s.violated("%v", err)
	}
	s.setSpace(r.Space)
	return sl, nil
}

// release makes a slot whose reply has been used available.
func (s *session) release(sl *slot) { s.idle <- sl }

func (s *session) post(sl *slot, encode func([]byte, uint32) []byte) error {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return s.err
	}
	s.users.Add(1)
	defer s.users.Done()
	s.seq++
	sl.id = s.seq<<8 | uint32(sl.index)
	sl.left, sl.abandoned = 2, false
	spare := s.spare[len(s.spare)-1]
	s.spare = s.spare[:len(s.spare)-1]
	s.mu.Unlock()
	msg := encode(s.buffer(sl.index)[:0], sl.id)
	if err := s.mgmt.PostRecv(verbs.RecvWR{
		ID: replyID | uint64(spare), SGL: s.sge(maxCredits+spare, wire.MaxMessage),
	}); err != nil {
		return fmt.Errorf("cannot post a receive: %w", err)
	}
	if err := s.mgmt.PostSend(verbs.SendWR{
		ID: uint64(sl.index), Op: verbs.OpSend, Flags: verbs.SendSignaled, SGL: s.sge(sl.index, len(msg)),
	}); err != nil {
		return fmt.Errorf("cannot send a request: %w", err)
	}
	return nil
}

func (s *session) buffer(i int) []byte {
	return s.mem.Bytes()[i*wire.MaxMessage : (i+1)*wire.MaxMessage]
}

func (s *session) sge(i, n int) []verbs.SGE {
	return []verbs.SGE{{
		Addr: s.mr.Addr() + uint64(i*wire.MaxMessage), Length: uint32(n), LKey: s.mr.LKey(),
	}}
}

// abandon leaves sl to the completion handler, unless it is done already.
func (s *session) abandon(sl *slot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sl.left == 0 {
		return false
	}
	sl.abandoned = true
	return true
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
		s.mu.Lock()
		var err error
		for _, wc := range s.wcs[:n] {
			if err = s.arrived(wc); err != nil {
				break
			}
		}
		s.mu.Unlock()
		if err != nil {
			s.fail(err)
			return
		}
	}
}

// arrived takes one completion.
//
// Preconditions: s.mu is held.
func (s *session) arrived(wc verbs.WC) error {
	if err := wc.Err(); err != nil {
		return fmt.Errorf("management queue pair failed: %w", err)
	}
	var sl *slot
	if wc.ID&replyID == 0 {
		sl = s.slots[wc.ID]
	} else {
		// Replies fill receives in the order they were posted, whatever
		// they answer.
		spare := int(wc.ID &^ replyID)
		s.spare = append(s.spare, spare)
		b := s.buffer(maxCredits + spare)[:wc.ByteLen]
		var r wire.Reply
		if err := r.Decode(b); err != nil {
			return err
		}
		index := int(r.ID & 0xff)
		if index >= len(s.slots) || s.slots[index].id != r.ID || s.slots[index].left == 0 {
			return fmt.Errorf("%w: reply to a request that was not made", wire.ErrMalformed)
		}
		sl = s.slots[index]
		sl.size = copy(sl.reply[:], b)
	}
	sl.left--
	switch {
	case sl.left > 0:
	case !sl.abandoned:
		sl.done <- struct{}{}
	default:
		var r wire.Reply
		if r.Decode(sl.reply[:sl.size]) == nil && r.Op == wire.OpAlloc && r.Status == wire.StatusOK {
			for i := range r.N {
				s.orphans = append(s.orphans, r.Grant(i).Chunk)
			}
		}
		s.idle <- sl
	}
	return nil
}

// fail ends every call in progress and to come with err.
func (s *session) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
		close(s.broken)
	}
}

func (s *session) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Close implements mech.Session.
func (s *session) Close() {
	s.fail(mech.ErrClosed)
	s.users.Wait()
	var errs []error
	if s.mgmt != nil {
		errs = append(errs, s.mgmt.Close())
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
