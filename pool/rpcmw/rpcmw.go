// Package rpcmw manages remote memory by messages: the memory node's control goroutine allocates, frees, and binds a
// window of type 2B for every chunk (RPC-MW of section 2.2.2 of the OneSidedMW paper). It is simple and costs CPU of
// the node; the one-sided managers are measured against that cost.
//
// The messages are those of package memnode/wire, carried by package control.
package rpcmw

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"polder/memnode/wire"
	"polder/pool/control"
	"polder/pool/manager"
	"polder/verbs"
)

// Manager is this way of managing memory. It has no state.
type Manager struct{}

var _ manager.Manager = Manager{}

// Name implements manager.Manager.
func (Manager) Name() string { return wire.RPCMW }

// Attach implements manager.Manager.
func (m Manager) Attach(ctx context.Context, l manager.Link) (manager.Session, error) {
	return Attach(ctx, l, m.Name())
}

// Attach attaches to a node that manages memory under the given name and is asked for memory by the same messages.
func Attach(ctx context.Context, l manager.Link, name string) (manager.Session, error) {
	return AttachWith(ctx, l, name, func(ctx context.Context, ch *control.Channel) (int, error) { return ch.ConnectAccess(ctx) })
}

// AttachWith is Attach with another way to connect what chunks are accessed through: access does so, and returns how
// many groups there are. The grants of the session are as the node makes them.
func AttachWith(ctx context.Context, l manager.Link, name string, access func(context.Context, *control.Channel) (groups int, err error)) (manager.Session, error) {
	s := &session{link: l, name: name}
	err := s.open(ctx)
	if err == nil {
		s.groups, err = access(ctx, s.ch)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// session implements manager.Session.
type session struct {
	link  manager.Link
	name  string // of the manager
	info  manager.Info
	ch    *control.Channel
	space atomic.Uint64 // free<<32 | budget

	groups int // how many groups there are, each of one access queue pair

	mu      sync.Mutex
	orphans []uint32 // chunks that were granted to calls that had given up
}

func (s *session) open(ctx context.Context) error {
	ch, w, err := control.Open(ctx, s.link, s.name, control.Handlers{Late: s.late, Space: s.setSpace})
	if err != nil {
		return err
	}
	s.ch = ch
	s.info = manager.Info{
		Version: w.Version,
		Session: w.Session, Resumed: w.Resumed,
		ChunkSize: int(w.ChunkSize), Chunks: int(w.Chunks), Grace: w.Grace, Zone: w.Zone, Yielder: ch.Yielder(w),
	}
	s.setSpace(w.Space)
	return nil
}

// late records what was granted to a call that had given up.
func (s *session) late(r *wire.Reply) {
	if r.Op != wire.OpAlloc || r.Status != wire.StatusOK {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range r.N {
		s.orphans = append(s.orphans, r.Grant(i).Chunk)
	}
}

// Info implements manager.Session.
func (s *session) Info() manager.Info { return s.info }

// Leaving implements manager.Session.
func (s *session) Leaving() bool { return s.ch.Leaving() }

// Space implements manager.Session.
func (s *session) Space() wire.Space {
	v := s.space.Load()
	return wire.Space{Free: uint32(v >> 32), Budget: uint32(v)}
}

func (s *session) setSpace(v wire.Space) { s.space.Store(uint64(v.Free)<<32 | uint64(v.Budget)) }

// Alloc implements manager.Session.
func (s *session) Alloc(ctx context.Context, grants []manager.Grant) (int, error) {
	if err := s.freeOrphans(ctx); err != nil {
		return 0, err
	}
	var r wire.Reply
	release, err := s.ch.Exchange(ctx, &r, func(b []byte, id uint32) []byte {
		return wire.AppendRequest(b, wire.OpAlloc, id, min(len(grants), wire.MaxBatch), 0)
	})
	if err != nil {
		return 0, err
	}
	defer release()
	switch {
	case r.Status == wire.StatusBudget:
		return 0, manager.ErrBudget
	case r.Status == wire.StatusNoMemory:
		return 0, fmt.Errorf("%w (%v)", manager.ErrNoMemory, r.Status)
	case r.Status != wire.StatusOK:
		return 0, fmt.Errorf("%w: %v", manager.ErrRefused, r.Status)
	case r.N == 0 || r.N > len(grants):
		return 0, s.ch.Violated("%d chunks granted where 1 to %d were asked for", r.N, len(grants))
	}
	for i := range r.N {
		if grants[i], err = s.grant(r.Grant(i)); err != nil {
			return 0, err
		}
	}
	return r.N, nil
}

// Free implements manager.Session.
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
		release, err := s.ch.Exchange(ctx, &r, func(b []byte, id uint32) []byte {
			return wire.AppendFree(b, id, batch)
		})
		if err != nil {
			return err
		}
		release()
		if r.Status != wire.StatusOK {
			return fmt.Errorf("%w: %v", manager.ErrRefused, r.Status)
		}
	}
	return nil
}

// freeOrphans gives back chunks that were granted to calls that had given up.
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

// Owned implements manager.Session.
func (s *session) Owned(ctx context.Context) ([]manager.Grant, error) {
	var grants []manager.Grant
	for {
		var r wire.Reply
		skip := len(grants)
		release, err := s.ch.Exchange(ctx, &r, func(b []byte, id uint32) []byte {
			return wire.AppendRequest(b, wire.OpOwned, id, wire.MaxBatch, uint32(skip))
		})
		if err != nil {
			return nil, err
		}
		for i := 0; i < r.N && err == nil; i++ {
			var g manager.Grant
			g, err = s.grant(r.Grant(i))
			grants = append(grants, g)
		}
		n, status := r.N, r.Status
		release()
		switch {
		case err != nil:
			return nil, err
		case status != wire.StatusOK:
			return nil, fmt.Errorf("%w: %v", manager.ErrRefused, status)
		case len(grants) > s.info.Chunks:
			return nil, s.ch.Violated("more chunks owned than there are")
		case n == 0:
			return grants, nil
		}
	}
}

func (s *session) grant(g wire.Grant) (manager.Grant, error) {
	if int(g.Chunk) >= s.info.Chunks {
		return manager.Grant{}, s.ch.Violated("chunk %d of %d granted", g.Chunk, s.info.Chunks)
	}
	return manager.Grant{Chunk: g.Chunk, Chunks: 1, Addr: g.Addr, Group: wire.GroupOf(g.Chunk, s.groups), Keys: [manager.MaxPaths]verbs.RKey{g.Key}}, nil
}

// Close implements manager.Session.
func (s *session) Close() {
	if s.ch != nil {
		s.ch.Close()
	}
}
