// Package memfd reaches the memory of a node on the same machine without the node. The node passes a memfd with the
// client's chunks over the connection (package verbs/shm), and the client maps it. READ, WRITE and the atomic
// operations are then memory copies and atomic instructions in the client's own address space.
//
// Package pool accesses chunks in place. Besides, every chunk that is granted, and nothing else of the memfd, is
// registered with the client's own device, for work requests on an access queue pair that is in loopback. Either way
// the bounds of the chunk are checked for every operation, as over any other connection. That protects a client from
// its own mistakes. The kernel protects clients from each other: none of them has another's memfd (package
// memnode/tenancy).
//
// Chunks are allocated and freed by messages, as in package rpcmw.
package memfd

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"polder/internal/arena"
	"polder/memnode/tenancy"
	"polder/memnode/wire"
	"polder/pool/control"
	"polder/pool/manager"
	"polder/pool/rpcmw"
	"polder/verbs"
)

// Name is the name by which memory nodes know this manager.
const Name = wire.MemFD

// Manager is this way of managing memory. It has no state.
type Manager struct{}

var _ manager.Manager = Manager{}

// Name implements manager.Manager.
func (Manager) Name() string { return Name }

// receiver is a connection that carries memory.
type receiver interface {
	ReceiveMemory(context.Context) (*arena.Memfd, error)
}

// Attach implements manager.Manager.
func (Manager) Attach(ctx context.Context, l manager.Link) (manager.Session, error) {
	from, ok := l.Conn.(receiver)
	if !ok {
		return nil, fmt.Errorf("cannot use memory of %s in place: it is not on this machine, or was not dialled by a Unix socket", l.Conn.RemoteAddr())
	}
	s := &session{link: l, regions: make(map[uint32]verbs.MR)}
	asked, err := rpcmw.AttachWith(ctx, l, Name, func(ctx context.Context, ch *control.Channel) (int, error) {
		return 1, s.open(ctx, ch, from)
	})
	if err != nil {
		s.release()
		return nil, err
	}
	s.Session = asked
	if err := s.checkSize(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// session implements manager.Session and manager.Mapper. It leaves requests to the node to the session that it wraps.
type session struct {
	manager.Session
	link  manager.Link
	mem   *arena.Mapping // chunks and lease
	lease *tenancy.Lease

	mu      sync.Mutex
	closed  bool                // guarded by mu
	regions map[uint32]verbs.MR // guarded by mu: by chunk
}

// open maps the memory that the node passes, and connects the access queue pair.
func (s *session) open(ctx context.Context, ch *control.Channel, from receiver) error {
	// The node passes the memory when the first request comes, whatever that is.
	var r wire.Reply
	release, err := ch.Exchange(ctx, &r, func(b []byte, id uint32) []byte {
		return wire.AppendRequest(b, wire.OpSpace, id, 1, 0)
	})
	if err != nil {
		return err
	}
	release()
	if r.Status == wire.StatusFailed || r.Status == wire.StatusBad {
		return fmt.Errorf("cannot get at the node's memory: %w: %v", manager.ErrRefused, r.Status)
	}
	fd, err := from.ReceiveMemory(ctx)
	if err != nil {
		return err
	}
	defer fd.Close()
	if s.mem, err = fd.Map(0, fd.Size(), true); err != nil {
		return err
	}
	if s.lease, err = tenancy.MapLease(fd); err != nil {
		return err
	}
	runtime.AddCleanup(s, func(l *tenancy.Lease) { l.Close() }, s.lease)
	access, err := s.link.Access()
	if err != nil {
		return err
	}
	return s.link.Device.ConnectLoopback(access, access)
}

// checkSize refuses memory that is not laid out for the node's chunk size.
func (s *session) checkSize() error {
	size := len(s.mem.Bytes())
	if _, ok := tenancy.Chunks(size, s.Info().ChunkSize); !ok {
		return fmt.Errorf("%w: %d bytes of memory for chunks of %d", wire.ErrMalformed, size, s.Info().ChunkSize)
	}
	return nil
}

const chunkAccess = verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic

// register opens a chunk to the access queue pair, and puts its address and key into g.
//
// Preconditions: s.mu is held.
func (s *session) register(g *manager.Grant) error {
	if s.closed {
		return manager.ErrClosed
	}
	mr := s.regions[g.Chunk]
	if mr == nil {
		size, off := uint64(s.Info().ChunkSize), g.Addr
		if all := uint64(len(s.mem.Bytes()) - arena.PageSize); off%size != 0 || off > all || size > all-off {
			return fmt.Errorf("%w: chunk %d at %d of %d bytes", wire.ErrMalformed, g.Chunk, g.Addr, all)
		}
		var err error
		if mr, err = s.link.PD.RegMR(s.mem.Bytes()[off:off+size:off+size], chunkAccess); err != nil {
			return err
		}
		s.regions[g.Chunk] = mr
	}
	g.Addr, g.Keys[0] = mr.Addr(), mr.RKey()
	return nil
}

// registerAll opens the chunks of grants.
func (s *session) registerAll(grants []manager.Grant) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range grants {
		if err := s.register(&grants[i]); err != nil {
			return fmt.Errorf("cannot open a chunk: %w", err)
		}
	}
	return nil
}

// Alloc implements manager.Session.
func (s *session) Alloc(ctx context.Context, grants []manager.Grant) (int, error) {
	n, err := s.Session.Alloc(ctx, grants)
	if err != nil {
		return 0, err
	}
	// If this fails, the session is given up, and the next session finds the chunks that this one has not reported.
	if err := s.registerAll(grants[:n]); err != nil {
		return 0, err
	}
	return n, nil
}

// Owned implements manager.Session.
func (s *session) Owned(ctx context.Context) ([]manager.Grant, error) {
	grants, err := s.Session.Owned(ctx)
	if err == nil {
		err = s.registerAll(grants)
	}
	return grants, err
}

// Free implements manager.Session. It closes the chunks first: nothing must be written to them once the node has
// them.
func (s *session) Free(ctx context.Context, chunks []uint32) error {
	s.mu.Lock()
	for _, i := range chunks {
		if err := s.deregister(i); err != nil {
			s.mu.Unlock()
			return err
		}
	}
	s.mu.Unlock()
	return s.Session.Free(ctx, chunks)
}

// deregister closes a chunk to the access queue pair.
//
// Preconditions: s.mu is held.
func (s *session) deregister(i uint32) error {
	mr := s.regions[i]
	if mr == nil {
		return nil
	}
	delete(s.regions, i)
	return mr.Deregister()
}

// Memory implements manager.Mapper.
func (s *session) Memory(g manager.Grant) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if mr := s.regions[g.Chunk]; mr != nil {
		return mr.Bytes()
	}
	return nil
}

// Valid implements manager.Verifier.
func (s *session) Valid() bool { return s.lease.Valid() }

// Close implements manager.Session.
func (s *session) Close() {
	s.Session.Close()
	s.release()
}

// release gives up the memory. The lease stays for goroutines that are looking at it, and goes with the session.
func (s *session) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	var errs []error
	for i := range s.regions {
		errs = append(errs, s.deregister(i))
	}
	// If the device still has it registered, the memory stays mapped until the device is closed.
	if s.mem != nil && errors.Join(errs...) == nil {
		s.mem.Close()
	}
}
