package memfd_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"polder/memnode"
	"polder/pool"
	"polder/pool/manager"
	"polder/pool/memfd"
	"polder/pool/pooltest"
)

// revoking is the manager with leases that can be made to look revoked, once.
type revoking struct {
	memfd.Manager
	revoked *atomic.Bool
}

type revokingSession struct {
	manager.Session
	manager.Mapper
	revoked *atomic.Bool
}

func (m revoking) Attach(ctx context.Context, l manager.Link) (manager.Session, error) {
	s, err := m.Manager.Attach(ctx, l)
	if err != nil {
		return nil, err
	}
	return &revokingSession{s, s.(manager.Mapper), m.revoked}, nil
}

func (s *revokingSession) Valid() bool {
	return s.Mapper.Valid() && !s.revoked.CompareAndSwap(true, false)
}

// TestNothingIsBelievedAfterTheLease: an operation that finds the lease revoked
// is done again, by a connection that has a lease, or its outcome is unknown.
func TestNothingIsBelievedAfterTheLease(t *testing.T) {
	s := pooltest.SHM
	m := revoking{revoked: new(atomic.Bool)}
	s.Manager = m
	p := pooltest.NewCluster(t, s, memnode.Config{Lend: 1 << 20, ChunkSize: 1 << 16}).Open(pool.Config{})
	c := p.MustAlloc(t)
	if _, err := c.WriteAt([]byte("mine"), 8); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4)
	m.revoked.Store(true)
	if _, err := c.ReadAt(buf, 8); err != nil || string(buf) != "mine" {
		t.Fatalf("read %q, %v", buf, err)
	}
	if n := p.Stats().Nodes[0].Reconnects; n != 1 {
		t.Fatalf("%d connections were given up, want the one with the revoked lease", n)
	}
	m.revoked.Store(true)
	if _, err := c.FetchAdd(t.Context(), 16, 1); !errors.Is(err, pool.ErrOutcomeUnknown) {
		t.Fatalf("an addition: got %v, want %v", err, pool.ErrOutcomeUnknown)
	}
	m.revoked.Store(true)
	ops := []pool.Op{{Kind: pool.OpWrite, Chunk: c, Off: 8, Buf: []byte("ours")}, {Kind: pool.OpRead, Chunk: c, Off: 8, Buf: buf}}
	if err := p.Do(t.Context(), ops); err != nil || m.revoked.Load() {
		t.Fatalf("a batch: %v", err)
	}
	if _, err := c.ReadAt(buf, 8); err != nil || string(buf) != "ours" {
		t.Fatalf("read %q, %v", buf, err)
	}
}

// TestALeaseEndsWithTheSession: who has slept longer than the node waited is told.
func TestALeaseEndsWithTheSession(t *testing.T) {
	s := pooltest.SHM
	m := keeping{sessions: make(chan manager.Session, 16)}
	s.Manager = m
	cluster := pooltest.NewCluster(t, s, memnode.Config{Lend: 1 << 20, ChunkSize: 1 << 16})
	cluster.Open(pool.Config{})
	lease := (<-m.sessions).(manager.Mapper)
	if !lease.Valid() {
		t.Fatal("the lease of a session that goes on is not valid")
	}
	cluster.Nodes[0].Crash()
	if lease.Valid() {
		t.Error("the lease is valid although its node has ended")
	}
}

// keeping is the manager, and keeps its sessions.
type keeping struct {
	memfd.Manager
	sessions chan manager.Session
}

func (m keeping) Attach(ctx context.Context, l manager.Link) (manager.Session, error) {
	s, err := m.Manager.Attach(ctx, l)
	if err == nil {
		m.sessions <- s
	}
	return s, err
}
