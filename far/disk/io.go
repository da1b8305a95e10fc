package disk

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"polder/far/store"
)

const slotName = "segment %d"

// segment is a slot of the file as a store.Segment.
type segment struct {
	store *Store
	slot  int
	lost  chan struct{} // never closed

	mu    sync.Mutex // held by whoever writes: adjacent writes may share a block
	fresh bool       // Alloc has lent it: what an earlier borrower has written does not count
	end   int        // this borrower may have written up to here, and never beyond; guarded by mu
}

// ends are the blocks in which the last writes to some segments have ended: whoever writes on in the same block, as
// to a log, need not read it.
type ends struct {
	mu   sync.Mutex
	of   [mostEnds]end // guarded by mu
	next int           // which element of of is replaced next; guarded by mu
}

type end struct {
	seg *segment // nil if there is none
	at  int      // where the block begins in the segment
	b   [block]byte
}

const mostEnds = 8

// keep notes that the last write to g has ended in the block at offset at, which now has the contents b. If b is nil,
// keep forgets the block that it noted for g.
func (e *ends) keep(g *segment, at int, b []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := slices.IndexFunc(e.of[:], func(x end) bool { return x.seg == g })
	if i < 0 {
		if b == nil {
			return
		}
		i, e.next = e.next, (e.next+1)%mostEnds
	}
	if e.of[i].seg, e.of[i].at = g, at; b == nil {
		e.of[i].seg = nil
	}
	copy(e.of[i].b[:], b)
}

// get copies the block of g at an offset to b, and reports whether it is known.
func (e *ends) get(b []byte, g *segment, at int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.of {
		if x := &e.of[i]; x.seg == g && x.at == at {
			copy(b, x.b[:])
			return true
		}
	}
	return false
}

// had fills b with what the block of g at an offset has so far. g.mu must be held.
func (g *segment) had(b []byte, at int) error {
	switch {
	case g.fresh && at >= g.end: // nothing
		clear(b)
		return nil
	case g.store.ends.get(b, g, at):
		return nil
	}
	return g.store.pread(b, g, at)
}

// Name implements store.Segment.
func (g *segment) Name() string { return fmt.Sprintf(slotName, g.slot) }

// Lost implements store.Segment.
func (g *segment) Lost() <-chan struct{} { return g.lost }

// base is where the segment begins in the file.
func (g *segment) base() int64 { return int64(g.slot) * int64(g.store.cfg.SegmentSize) }

// Free implements store.Segment.
func (g *segment) Free(context.Context) error {
	s := g.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots[g.slot] != g {
		return fmt.Errorf("%s of %s was given back", g.Name(), s.cfg.Dir)
	}
	if err := s.giveBack(g.slot); err != nil {
		return fmt.Errorf("cannot give back %s of %s: %w", g.Name(), s.cfg.Dir, err)
	}
	s.slots[g.slot] = nil
	s.lent--
	return nil
}

// Write implements store.Segment.
func (g *segment) Write(_ context.Context, p []byte, off int) error {
	s := g.store
	if off < 0 || off > s.cfg.SegmentSize || len(p) > s.cfg.SegmentSize-off {
		return fmt.Errorf("cannot write [%d, %d+%d) of %s, which has %d bytes", off, off, len(p), g.Name(), s.cfg.SegmentSize)
	}
	buf, err := s.buffer()
	if err != nil {
		return err
	}
	defer func() { s.bufs <- buf }()
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(p) > 0 && err == nil {
		begin := off / block * block
		n := min(len(p), len(buf)-(off-begin))
		b := buf[:(off-begin+n+block-1)/block*block]
		// The first and the last block may have bytes of other writes.
		if off > begin {
			err = g.had(b[:block], begin)
		}
		if last := len(b) - block; err == nil && off-begin+n < len(b) && (last > 0 || off == begin) {
			err = g.had(b[last:], begin+last)
		}
		copy(b[off-begin:], p[:n])
		if err == nil {
			g.end = max(g.end, off+n)
			err = s.pwrite(b, g.base()+int64(begin))
		}
		if last := len(b) - block; err == nil && n == len(p) && off+n < begin+len(b) {
			s.ends.keep(g, begin+last, b[last:])
		} else {
			s.ends.keep(g, 0, nil)
		}
		p, off = p[n:], off+n
	}
	if err != nil {
		return fmt.Errorf("cannot write to %s of %s: %w", g.Name(), s.cfg.Dir, err)
	}
	return nil
}

// job is reads of one segment whose blocks are adjacent.
type job struct {
	ops  []*store.ReadOp
	done *sync.WaitGroup
}

// Read implements store.Store.
func (s *Store) Read(ctx context.Context, ops []store.ReadOp) {
	if len(ops) == 1 {
		one := [1]*store.ReadOp{&ops[0]}
		s.read(one[:])
		return
	}
	all := make([]*store.ReadOp, len(ops))
	for i := range ops {
		all[i] = &ops[i]
	}
	slices.SortFunc(all, func(a, b *store.ReadOp) int {
		if d := a.Seg.(*segment).slot - b.Seg.(*segment).slot; d != 0 {
			return d
		}
		return a.Off - b.Off
	})
	var done sync.WaitGroup
	for i := 0; i < len(all); {
		first, end := all[i], all[i].Off+len(all[i].Buf)
		k := i + 1
		for k < len(all) && all[k].Seg == first.Seg && all[k].Off/block <= (end+block-1)/block &&
			max(end, all[k].Off+len(all[k].Buf))-first.Off <= mostRead-2*block {
			end = max(end, all[k].Off+len(all[k].Buf))
			k++
		}
		done.Add(1)
		s.jobs <- job{all[i:k], &done}
		i = k
	}
	done.Wait()
}

func (s *Store) work() {
	for j := range s.jobs {
		s.read(j.ops)
		j.done.Done()
	}
}

// read carries out reads of one segment whose blocks are adjacent, in order.
func (s *Store) read(ops []*store.ReadOp) {
	buf, err := s.buffer()
	if err == nil {
		defer func() { s.bufs <- buf }()
		if len(ops) == 1 {
			err = s.readOne(buf, ops[0])
		} else {
			err = s.readRun(buf, ops)
		}
	}
	for _, op := range ops {
		op.Err = err
	}
}

// readOne carries out one read, of any length.
func (s *Store) readOne(buf []byte, op *store.ReadOp) error {
	g := op.Seg.(*segment)
	if op.Off < 0 || op.Off > s.cfg.SegmentSize || len(op.Buf) > s.cfg.SegmentSize-op.Off {
		return fmt.Errorf("cannot read [%d, %d+%d) of %s, which has %d bytes", op.Off, op.Off, len(op.Buf), g.Name(), s.cfg.SegmentSize)
	}
	for p, off := op.Buf, op.Off; len(p) > 0; {
		begin := off / block * block
		n := min(len(p), len(buf)-(off-begin))
		b := buf[:(off-begin+n+block-1)/block*block]
		if err := s.pread(b, g, begin); err != nil {
			return err
		}
		copy(p[:n], b[off-begin:])
		p, off = p[n:], off+n
	}
	return nil
}

// readRun carries out reads that fit into buf together.
func (s *Store) readRun(buf []byte, ops []*store.ReadOp) error {
	g, begin, end := ops[0].Seg.(*segment), ops[0].Off/block*block, 0
	for _, op := range ops {
		end = max(end, op.Off+len(op.Buf))
	}
	if begin < 0 || end > s.cfg.SegmentSize {
		return fmt.Errorf("cannot read [%d, %d) of %s, which has %d bytes", begin, end, g.Name(), s.cfg.SegmentSize)
	}
	b := buf[:(end-begin+block-1)/block*block]
	if err := s.pread(b, g, begin); err != nil {
		return err
	}
	for _, op := range ops {
		copy(op.Buf, b[op.Off-begin:])
	}
	return nil
}

// pread fills b from off of g. What was never written is zeros.
func (s *Store) pread(b []byte, g *segment, off int) error {
	var err error
	for at := g.base() + int64(off); len(b) > 0 && err == nil; {
		var n int
		n, err = unix.Pread(int(s.data.Fd()), b, at)
		if err == unix.EINTR {
			err, n = nil, 0
			continue
		}
		if err == nil && n == 0 {
			clear(b)
			return nil
		}
		b, at = b[max(n, 0):], at+int64(n)
	}
	if err != nil {
		return fmt.Errorf("cannot read %s of %s: %w", g.Name(), s.cfg.Dir, err)
	}
	return nil
}

// pwrite writes b at an offset of the file.
func (s *Store) pwrite(b []byte, at int64) error {
	var err error
	for len(b) > 0 && err == nil {
		var n int
		n, err = unix.Pwrite(int(s.data.Fd()), b, at)
		if err == unix.EINTR {
			err, n = nil, 0
			continue
		}
		b, at = b[max(n, 0):], at+int64(n)
	}
	return err
}

// buffer returns a buffer, and waits for one if all are in use. The caller has to send it back to s.bufs.
func (s *Store) buffer() ([]byte, error) {
	b := <-s.bufs
	if b == nil {
		m, err := unix.Mmap(-1, 0, mostRead, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			s.bufs <- nil
			return nil, fmt.Errorf("no memory for a buffer: %w", err)
		}
		b = m
	}
	return b, nil
}

func unmap(b []byte) error {
	if b == nil {
		return nil
	}
	return unix.Munmap(b)
}
