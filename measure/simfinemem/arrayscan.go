package simfinemem

import (
	"context"
	"errors"

	"polder/measure/arrayscan"
	"polder/verbs/sim"
)

// scanPiece is how many words one READ of the array scan brings, unless the block has more chunks. It is the one
// fitted parameter: with 128 words the scan's mean is half of what was published for 128 threads, and with 512 it is
// three times that.
const scanPiece = 256

var errFull = errors.New("no memory left")

// scanner is a user of package arrayscan's.
type scanner struct {
	a      *arrayscan.Allocator
	ctx    context.Context
	counts *counts
}

// scanning are the allocators of an array scan.
func scanning(r *rig, l load, allocators, chunks int, c *counts) ([]allocator, error) {
	array, err := r.node.pd.RegMR(make([]byte, 8*chunks), remote)
	if err != nil {
		return nil, err
	}
	all := make([]allocator, allocators)
	for i := range all {
		f, err := r.reach(r.host(i), array)
		if err != nil {
			return nil, err
		}
		all[i] = &scanner{a: arrayscan.New(f, uint64(i+1), chunks, max(scanPiece, 1<<l.class)), ctx: r.ctx, counts: c}
	}
	return all, nil
}

// alloc implements allocator.
func (s *scanner) alloc(_ *sim.Proc, class int) (uint64, error) {
	before := s.a.Retries
	at, err := s.a.Alloc(s.ctx, class)
	s.counts.retries += s.a.Retries - before
	if errors.Is(err, arrayscan.ErrFull) {
		err = errFull
	}
	return uint64(at), err
}

// free implements allocator.
func (s *scanner) free(_ *sim.Proc, at uint64, class int) error {
	return s.a.Free(s.ctx, int(at), class)
}
