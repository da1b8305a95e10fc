package finemem

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"polder/internal/arena"
	"polder/memnode/twolayer"
	"polder/memnode/wire"
	"polder/pool/control"
	"polder/pool/manager"
	"polder/verbs"
)

// Name is the name by which memory nodes know the manager.
const Name = wire.FineMem

// Manager is this way of managing memory.
type Manager struct {
	// Policy says where allocators look for memory.
	Policy Policy
	// Secret is what the node requires before it opens its metadata, if it has a service secret.
	Secret [wire.SecretSize]byte
}

var _ manager.Manager = Manager{}

// Name implements manager.Manager.
func (Manager) Name() string { return Name }

// Attach implements manager.Manager. The session is a *Session.
func (m Manager) Attach(ctx context.Context, l manager.Link) (manager.Session, error) {
	s := &Session{link: l, turn: make(chan struct{}, 1), loans: make(map[uint32]*loan)}
	s.turn <- struct{}{}
	if err := s.open(ctx, m); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Session is a manager.Session by FineMem.
type Session struct {
	link  manager.Link
	info  manager.Info
	ch    *control.Channel
	cq    verbs.CQ
	meta  verbs.QP
	mem   *arena.Mapping
	mr    verbs.MR
	alloc *Allocator // used only by the call that has the turn
	k     int        // the class of a chunk

	groups int // how many groups there are, each of one access queue pair
	lent   int // blocks lent so far, to deal them out to groups; for the call that has the turn

	turn  chan struct{}    // capacity 1: full while nobody uses alloc
	loans map[uint32]*loan // by the first chunk of every grant; for the call that has the turn
	runs  Runs

	mu     sync.Mutex // guards what follows
	closed bool
	space  wire.Space // as far as is known
}

// A loan is a block that was granted. It has a grant for every key.
type loan struct {
	block  Block
	grants int // how many have not been given back
}

func (s *Session) open(ctx context.Context, m Manager) error {
	ch, w, err := control.Open(ctx, s.link, Name, control.Handlers{})
	if err != nil {
		return err
	}
	s.ch = ch
	s.info = manager.Info{
		Version: w.Version,
		Session: w.Session, Resumed: w.Resumed,
		ChunkSize: int(w.ChunkSize), Chunks: int(w.Chunks), Grace: w.Grace, Zone: w.Zone,
	}
	s.space = w.Space
	if s.groups, err = ch.ConnectAccess(ctx); err != nil {
		return err
	}
	if s.mem, err = arena.Anonymous(BufferSize, false); err != nil {
		return err
	}
	if s.mr, err = s.link.PD.RegMR(s.mem.Bytes(), verbs.AccessLocalWrite); err != nil {
		return fmt.Errorf("cannot register a buffer: %w", err)
	}
	if s.cq, err = s.link.Device.CreateCQ(verbs.CQInit{Depth: QueueDepth}); err != nil {
		return fmt.Errorf("cannot create a completion queue: %w", err)
	}
	if s.meta, err = s.link.PD.CreateQP(verbs.QPInit{SendCQ: s.cq, RecvCQ: s.cq, SendDepth: QueueDepth, RecvDepth: 1}); err != nil {
		return fmt.Errorf("cannot create a queue pair for the metadata: %w", err)
	}
	answer, err := s.connect(ctx, s.meta, wire.Hello{Kind: wire.KindAlloc, Session: wire.Session{Secret: m.Secret}})
	if err != nil {
		return err
	}
	cfg, err := s.config(answer, w.Base)
	if err != nil {
		return err
	}
	cfg.Policy = m.Policy
	s.alloc, err = NewAllocator(cfg)
	return err
}

func (s *Session) connect(ctx context.Context, qp verbs.QP, hello wire.Hello) ([]byte, error) {
	hello.Manager, hello.Version = Name, s.ch.Version()
	answer, err := s.link.Conn.Connect(ctx, qp, hello.Append(nil))
	if err != nil {
		return nil, fmt.Errorf("cannot connect a queue pair: %w", err)
	}
	return answer, nil
}

// config makes a Config of what the node has said about its metadata.
func (s *Session) config(answer []byte, base uint64) (Config, error) {
	var m wire.Metadata
	if err := m.Decode(answer); err != nil {
		return Config{}, s.ch.Violated("%v", err)
	}
	l, err := twolayer.NewLayout(m.Bytes, m.Least)
	if err != nil || m.Least != uint64(s.info.ChunkSize) || uint64(l.Chunks>>l.Least) != uint64(s.info.Chunks) {
		return Config{}, s.ch.Violated("metadata of %d bytes by %d", m.Bytes, m.Least)
	}
	s.k = l.Least
	return Config{
		Layout: l, QP: s.meta, CQ: s.cq, Buffer: s.mr, Metadata: m.Addr, Key: m.Key,
		Memory: base, User: m.User, Sync: s.sync, SpanKeys: true, Doorbell: true,
	}, nil
}

// Info implements manager.Session.
func (s *Session) Info() manager.Info { return s.info }

// sync returns when the node has dealt with what was freed. A node that has much to do answers before it has done
// everything, so that it can serve other clients meanwhile; sync then asks again.
func (s *Session) sync(ctx context.Context) error {
	for {
		again, err := s.askSpace(ctx)
		if err != nil || !again {
			return err
		}
	}
}

// askSpace asks the node once, and reports whether it is to be asked again.
func (s *Session) askSpace(ctx context.Context) (again bool, err error) {
	var r wire.Reply
	release, err := s.ch.Exchange(ctx, &r, func(b []byte, id uint32) []byte {
		return wire.AppendRequest(b, wire.OpSpace, id, 1, 0)
	})
	if err != nil {
		return false, err
	}
	defer release()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.space.Free = r.Space.Free
	return r.Status == wire.StatusAgain, nil
}

// Do calls f with the session's allocator, which nobody else uses meanwhile, and returns f's error.
func (s *Session) Do(ctx context.Context, f func(*Allocator) error) error {
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	return f(s.alloc)
}

// Beat shows the node that this client is alive; see Allocator.Beat.
func (s *Session) Beat(ctx context.Context) error {
	return s.Do(ctx, func(a *Allocator) error { return a.Beat(ctx) })
}

// take waits until it is this call's turn to use the allocator.
func (s *Session) take(ctx context.Context) error {
	select {
	case <-s.turn:
	default:
		select {
		case <-s.turn:
		case <-s.link.Conn.Done():
			return s.link.Conn.Err()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		s.turn <- struct{}{}
		return manager.ErrClosed
	}
	return nil
}

func (s *Session) give() { s.turn <- struct{}{} }

// fault is the error that the session's caller gets for err.
func (s *Session) fault(err error) error {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed && !errors.Is(err, manager.ErrNoMemory) {
		return manager.ErrClosed
	}
	return err
}

// Alloc implements manager.Session.
func (s *Session) Alloc(ctx context.Context, grants []manager.Grant) (int, error) {
	if err := s.take(ctx); err != nil {
		return 0, err
	}
	defer s.give()
	want := s.reserve(len(grants))
	if want == 0 {
		return 0, manager.ErrBudget
	}
	n, chunks := 0, 0
	var err error
	for chunks < want {
		var b Block
		err = s.runs.Alloc(s.k, want-chunks, func(class int) (err error) {
			b, err = s.alloc.Alloc(ctx, class)
			return err
		})
		if err != nil {
			break
		}
		for _, g := range s.lend(b) {
			grants[n] = g
			chunks += g.Chunks
			n++
		}
	}
	s.unreserve(want - chunks)
	if n > 0 && (errors.Is(err, manager.ErrNoMemory) || ctx.Err() != nil) {
		err = nil
	}
	if err != nil {
		return 0, s.fault(err)
	}
	return n, nil
}

// lend notes that b is lent, and returns its grants: one for every key.
func (s *Session) lend(b Block) []manager.Grant {
	l := &loan{block: b, grants: b.Keys()}
	s.lent++
	grants := make([]manager.Grant, l.grants)
	chunks := 1 << (b.Class - s.k) / l.grants
	for i := range grants {
		g := &grants[i]
		g.Chunk, g.Chunks, g.Group = b.First>>s.k+uint32(i*chunks), chunks, s.lent%s.groups
		g.Addr = b.Addr + uint64(i*chunks*s.info.ChunkSize)
		g.Keys[0] = b.Key(i)
		s.loans[g.Chunk] = l
	}
	return grants
}

// reserve takes up to want chunks of the budget.
func (s *Session) reserve(want int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(want, int(s.space.Budget))
	s.space.Budget -= uint32(n)
	s.space.Free -= min(s.space.Free, uint32(n))
	return n
}

func (s *Session) unreserve(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.space.Budget += uint32(n)
	s.space.Free += uint32(n)
}

// Free implements manager.Session.
func (s *Session) Free(ctx context.Context, chunks []uint32) error {
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	back := make([]*loan, 0, len(chunks))
	for _, c := range chunks {
		l := s.loans[c]
		if l == nil {
			for i, l := range back {
				s.loans[chunks[i]] = l
			}
			return fmt.Errorf("%w: %v", manager.ErrRefused, wire.StatusNotOwner)
		}
		delete(s.loans, c)
		back = append(back, l)
	}
	var failed error
	for _, l := range back {
		if l.grants--; l.grants > 0 {
			continue // a block is freed as a whole
		}
		// A block that cannot be freed now is owed, and a later call frees it.
		if err := s.alloc.Free(ctx, l.block); err != nil && failed == nil {
			failed = err
		}
		s.unreserve(1 << (l.block.Class - s.k))
	}
	if failed != nil {
		return s.fault(failed)
	}
	return nil
}

// Owned implements manager.Session.
func (s *Session) Owned(ctx context.Context) ([]manager.Grant, error) {
	if err := s.take(ctx); err != nil {
		return nil, err
	}
	defer s.give()
	var blocks []uint32 // their first chunks
	for {
		var r wire.Reply
		release, err := s.ch.Exchange(ctx, &r, func(b []byte, id uint32) []byte {
			return wire.AppendRequest(b, wire.OpOwned, id, wire.MaxBatch, uint32(len(blocks)))
		})
		if err != nil {
			return nil, err
		}
		status, n := r.Status, r.N
		for i := range n {
			g := r.Grant(i)
			if int(g.Chunk) >= s.info.Chunks {
				release()
				return nil, s.ch.Violated("chunk %d of %d listed", g.Chunk, s.info.Chunks)
			}
			blocks = append(blocks, g.Chunk)
		}
		release()
		switch {
		case status != wire.StatusOK:
			return nil, fmt.Errorf("%w: %v", manager.ErrRefused, status)
		case len(blocks) > s.info.Chunks:
			return nil, s.ch.Violated("more chunks listed than there are")
		case n == 0:
			return s.adopt(ctx, blocks)
		}
	}
}

// adopt makes grants of the blocks that the node has listed by their first chunks.
func (s *Session) adopt(ctx context.Context, firsts []uint32) (grants []manager.Grant, err error) {
	for _, first := range firsts {
		b, err := s.alloc.Held(ctx, first<<s.k)
		if err != nil {
			return nil, s.fault(err)
		}
		grants = append(grants, s.lend(b)...)
	}
	return grants, nil
}

// Leaving implements manager.Session.
func (s *Session) Leaving() bool { return s.ch.Leaving() }

// Space implements manager.Session.
func (s *Session) Space() wire.Space {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.space
}

// Close implements manager.Session.
func (s *Session) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	s.mu.Unlock()
	if s.ch != nil {
		s.ch.Fail(manager.ErrClosed)
	}
	var errs []error
	if s.meta != nil {
		errs = append(errs, s.meta.Close())
	}
	// Wake whoever waits for a completion.
	if s.cq != nil {
		errs = append(errs, s.cq.Close())
	}
	<-s.turn
	defer s.give()
	if s.ch != nil {
		s.ch.Close()
	}
	if s.mr != nil {
		errs = append(errs, s.mr.Deregister())
	}
	// If the device still has it registered, the memory stays mapped until the device is closed.
	if s.mem != nil && errors.Join(errs...) == nil {
		s.mem.Close()
	}
}
