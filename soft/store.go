package soft

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"polder/internal/arena"
	"polder/soft/internal/order"
	"polder/soft/wire"
)

// store is the memory of a heap: the segments, which may vanish, the control
// table with their generations, and what is kept beside the segments in
// memory of our own: hotness counters and the state of stripes.
//
// A private store is anonymous memory with huge pages that nobody else can
// see. A shared one is a memfd that a coordinator holds too.
type store struct {
	segments *arena.Mapping
	memfd    *arena.Memfd // nil when private
	table    *arena.Memfd // the control table's, nil when private
	ctl      *wire.Control
	side     *arena.Mapping
	stripes  []stripe
	hot      []byte
	base     base
	n        int
	huge     []atomic.Bool // the segment exists as one huge page, as far as we know
}

const (
	hotGranule = 64 // bytes that share a hotness counter
	hotPerSeg  = SegmentSize / hotGranule
	sidePerSeg = hotPerSeg + stripesPerSeg*8
	hottest    = 3
)

func newStore(n int, shared bool) (s *store, err error) {
	if n <= 0 || n > maxSegments {
		return nil, fmt.Errorf("cannot make a heap of %d segments: want 1 to %d", n, maxSegments)
	}
	s = &store{n: n, huge: make([]atomic.Bool, n)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
			s = nil
		}
	}()
	var table *arena.Mapping
	if shared {
		if s.memfd, err = arena.NewMemfd("polder-soft", n*SegmentSize); err != nil {
			return s, err
		}
		if s.segments, err = s.memfd.Map(0, n*SegmentSize, true); err != nil {
			return s, err
		}
		// Growing is forbidden to both sides. Shrinking is not: truncation
		// is how a coordinator ends a client that will not let go.
		if _, err = unix.FcntlInt(s.memfd.File().Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
			return s, fmt.Errorf("cannot seal a heap's memory: %w", err)
		}
		size := wire.ControlSize(n)
		if s.table, err = arena.NewMemfd("polder-soft-control", size); err != nil {
			return s, err
		}
		if err = s.table.SealSize(); err != nil {
			return s, err
		}
		table, err = s.table.Map(0, size, true)
	} else {
		if s.segments, err = arena.Anonymous(n*SegmentSize, true); err != nil {
			return s, err
		}
		table, err = arena.Anonymous(wire.ControlSize(n), false)
	}
	if err != nil {
		return s, err
	}
	if s.ctl, err = wire.InitControl(table, n); err != nil {
		return s, errors.Join(err, table.Close())
	}
	if s.side, err = arena.Anonymous(n*sidePerSeg, false); err != nil {
		return s, err
	}
	s.hot = s.side.Bytes()[:n*hotPerSeg]
	s.stripes = asStripes(s.side.Bytes()[n*hotPerSeg:])
	s.base = baseOf(s.segments.Bytes())
	return s, nil
}

// files returns the descriptors to give to a coordinator.
func (s *store) files() []*os.File { return []*os.File{s.memfd.File(), s.table.File()} }

// populate makes a fresh segment of a memfd one huge page, where the kernel lets us. That takes as long as touching
// the segment's pages one by one, which would have to be done anyway. Reading is faster then, and punching the
// segment away takes a coordinator 8 µs in place of 400.
func (s *store) populate(seg uint32, gen uint64) {
	if s.memfd == nil || s.huge[seg].Load() {
		return
	}
	s.huge[seg].Store(true) // even if the kernel refuses: then it is not asked again
	off := int(seg) * SegmentSize
	s.segments.Bytes()[off] = 0
	_ = s.segments.Collapse(off, SegmentSize)
	if s.ctl.Generation(seg) != gen {
		s.huge[seg].Store(false)
		_ = s.discard(seg) // revoked meanwhile: what we touched must not stay
	}
}

// discard gives a segment's pages back to the operating system. The segment
// must have been revoked.
func (s *store) discard(seg uint32) error {
	off := int(seg) * SegmentSize
	if s.memfd != nil {
		return s.memfd.Punch(off, SegmentSize)
	}
	return s.segments.Punch(off, SegmentSize)
}

// renew forgets what is known about a segment's objects. The segment must be
// empty and not open.
func (s *store) renew(seg uint32) {
	clear(s.hot[int(seg)*hotPerSeg : (int(seg)+1)*hotPerSeg])
	s.revive(seg)
}

// headerOf reads the header of an object and proves it.
func (s *store) headerOf(w word) (header, bool) {
	seg := w.segment()
	gen := s.ctl.Generation(seg)
	if w == 0 || !w.alive(gen) {
		return header{}, false
	}
	hd := s.base.header(seg, w.offset())
	order.LoadFence()
	return hd, s.ctl.Generation(seg) == gen
}

func (s *store) close() error {
	var errs []error
	if s.segments != nil {
		errs = append(errs, s.segments.Close())
	}
	if s.memfd != nil {
		errs = append(errs, s.memfd.Close())
	}
	if s.ctl != nil {
		errs = append(errs, s.ctl.Close())
	}
	if s.table != nil {
		errs = append(errs, s.table.Close())
	}
	if s.side != nil {
		errs = append(errs, s.side.Close())
	}
	return errors.Join(errs...)
}
