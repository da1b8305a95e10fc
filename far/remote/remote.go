// Package remote lets a far heap evacuate to memory nodes: it makes a far.Store of a pool.Pool, or, for copies.Store,
// a place of each of its nodes.
//
// A store's segments are chunks of the pool's. Reads of a batch go out together; "no memory left" becomes
// far.ErrStoreFull. Everything may be called by any number of goroutines. A store keeps no state of its own but the
// batches that it reuses and, for each node that it has asked to look through what lies there, an object of the
// component "scan".
package remote

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"polder/far"
	"polder/far/copies"
	"polder/far/store"
	"polder/pool"
)

// NewStore returns a store that borrows from p, which stays the caller's.
func NewStore(p *pool.Pool) far.Store { return &poolStore{pool: p} }

// Places returns the memory of each node of p, which stays the caller's, for a store that keeps copies at several.
func Places(p *pool.Pool) (places []copies.Place) {
	for _, name := range p.Nodes() {
		places = append(places, Place(p, name))
	}
	return places
}

// Place is the memory of the node of that name, for a store that keeps copies: for example, of a node that was added
// to p after Places was called. If the pool is kept, the place's Store is a copies.Reopener.
func Place(p *pool.Pool, name string) copies.Place {
	var at far.Store = &placeStore{&poolStore{pool: p}, name}
	if p.Kept() {
		at = keptStore{at.(*placeStore)}
	}
	return copies.Place{
		Name:  name,
		Zone:  func() string { return p.Node(name).Zone },
		Store: at,
		State: func() copies.State {
			n := p.Node(name)
			return copies.State{Usable: n.Up, Leaving: n.Leaving, Idle: n.Idle, Space: n.Space}
		},
	}
}

// placeStore borrows from one node.
type placeStore struct {
	*poolStore
	node string
}

// Alloc implements far.Store.
func (s *placeStore) Alloc(ctx context.Context) (far.Segment, error) {
	return s.borrowed(s.pool.AllocAt(ctx, s.node, int64(s.SegmentSize())))
}

type poolStore struct {
	pool    *pool.Pool
	batches sync.Pool // of *[]pool.Op

	scanners scanners
}

// SegmentSize implements far.Store: it is the size of the nodes' chunks or, if that is too small, of several of them.
func (s *poolStore) SegmentSize() int { return max(s.pool.ChunkSize(), far.MinSegmentSize) }

// Alloc implements far.Store.
func (s *poolStore) Alloc(ctx context.Context) (far.Segment, error) {
	return s.borrowed(s.pool.Alloc(ctx, int64(s.SegmentSize())))
}

// borrowed is c as a segment, or why there is none.
func (s *poolStore) borrowed(c *pool.Chunk, err error) (far.Segment, error) {
	switch {
	case errors.Is(err, pool.ErrNoMemory):
		return nil, fmt.Errorf("%w: %w", far.ErrStoreFull, err)
	case err != nil:
		return nil, err
	}
	return segment{Chunk: c}, nil
}

// Read implements far.Store.
func (s *poolStore) Read(ctx context.Context, ops []far.ReadOp) {
	if len(ops) == 1 && !ops[0].Bulk { // it may be read in place, which takes nothing of the pool
		op := &ops[0]
		_, op.Err = op.Seg.(segment).ReadContext(ctx, op.Buf, int64(op.Off))
		return
	}
	batch, _ := s.batches.Get().(*[]pool.Op)
	if batch == nil {
		batch = new([]pool.Op)
	}
	for i := range ops {
		op := &ops[i]
		*batch = append(*batch, pool.Op{
			Kind: pool.OpRead, Chunk: op.Seg.(segment).Chunk, Off: int64(op.Off), Buf: op.Buf, Bulk: op.Bulk,
		})
	}
	_ = s.pool.Do(ctx, *batch) // every operation has its own error
	for i := range ops {
		ops[i].Err = (*batch)[i].Err
	}
	clear(*batch)
	*batch = (*batch)[:0]
	s.batches.Put(batch)
}

// segment is a chunk as a far.Segment.
type segment struct {
	*pool.Chunk
	name string // if the segment is kept
}

// Name implements far.Segment.
func (s segment) Name() string {
	if s.name == "" {
		return s.Chunk.Name()
	}
	return s.name
}

// Write implements far.Segment.
func (s segment) Write(ctx context.Context, p []byte, off int) error {
	return s.WriteBulk(ctx, p, int64(off))
}

// Start implements far/store's Starter.
func (s segment) Start(ctx context.Context, p []byte, off int, landed func()) store.Flight {
	return s.StartWrite(ctx, p, int64(off), landed)
}
