package far

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"polder/far/heap"
	"polder/far/index"
	"polder/internal/arena"
)

// settler is the goroutine that moves words from the tables of maps to their leaves, range by range, and
// cleans the far segments of leaves. It holds no lock while the store works; what has changed meanwhile
// in a table stays there.
//
// It needs memory of its own, which it gets when it has to settle for the first time, and beside that only
// far memory. If it cannot have that, or settling makes too few places, the tables grow beyond their share, until
// the budget ends that: so nobody waits for it longer than one try.
type settler struct {
	h     *Heap
	kick  chan struct{}
	mu    sync.Mutex
	round chan struct{}          // closed, and replaced, when a table has been settled; under mu
	dead  []*corpse              // yet to be buried; under mu
	learn atomic.Pointer[[]byte] // what the evacuator reads leaves to; nil if there are no leaves yet

	// The rest is the goroutine's.
	mem    *arena.Mapping
	pages  *heap.Pages
	bodies []byte // of the leaves of a visit
	units  []unit
	reads  []heap.PageRead
	slots  []index.Slot
	hot    []hotSlot
	groups []group
	forced bool // leaves are written although they have not changed
}

const (
	// The settler has three buffers, each a 128th of the budget, within these bounds.
	leastSettler = 16 << 10
	mostSettler  = 64 << 10
	// A visit is of so many leaves at a time.
	visitLeaves = 128
)

func (s *settler) init(h *Heap) {
	s.h, s.kick, s.round = h, make(chan struct{}, 1), make(chan struct{})
}

func (s *settler) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// wait returns when some table has been settled, or there was a try.
func (s *settler) wait(ctx context.Context) error {
	s.mu.Lock()
	c := s.round
	s.mu.Unlock()
	s.wake()
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot wait for a place in the index: %w", context.Cause(ctx))
	case <-s.h.core.Ctx.Done():
		return heap.ErrClosed
	}
}

// ended wakes who waits.
func (s *settler) ended() {
	s.mu.Lock()
	close(s.round)
	s.round = make(chan struct{})
	s.mu.Unlock()
}

func (s *settler) run() {
	for {
		select {
		case <-s.h.core.Ctx.Done():
			return
		case <-s.kick:
		}
		s.buryDead()
		for _, m := range *s.h.maps.Load() {
			shards := m.shards()
			for i := range shards {
				sh := &shards[i]
				sh.mu.Lock()
				due := sh.cold != nil && sh.cold.settling
				sh.mu.Unlock()
				if due && s.h.core.Ctx.Err() == nil {
					s.settle(m, sh)
				}
			}
		}
		s.ended()
	}
}

// ready sees to it that there is memory to settle with.
func (s *settler) ready() error {
	if s.mem != nil {
		return nil
	}
	l := &s.h.core.Logs
	n := min(max(heap.Floor2(s.h.Local()/128), leastSettler), mostSettler)
	if err := s.room(heap.Settling, int64(3*n)); err != nil {
		return err
	}
	mem, err := arena.Anonymous(3*n, false)
	if err != nil {
		l.ShrinkIndex(heap.Settling, int64(3*n))
		return err
	}
	s.mem = mem
	b := mem.Bytes()
	s.pages = s.h.core.NewPages(b[:n:n]) // for leaves that are to be written
	s.bodies = b[n : 2*n : 2*n]          // for leaves that were read
	s.learn.Store(new(b[2*n:]))
	return nil
}

// room takes n bytes of the budget for u, for which it waits a little.
func (s *settler) room(u heap.Line, n int64) error {
	ctx, cancel := context.WithTimeout(s.h.core.Ctx, heap.HoldFor)
	defer cancel()
	for {
		err := s.h.core.Logs.GrowIndex(u, n, heap.ForMutator)
		if err != heap.ErrNoRoom {
			return err
		}
		if err := s.h.core.WaitRoom(ctx); err != nil {
			return err
		}
	}
}

// bytes is the memory of the settler: its buffers, and the directories of what is to be buried.
func (s *settler) bytes() (buffers, dead int64) {
	if s.mem != nil {
		buffers = int64(len(s.mem.Bytes()))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.dead {
		dead += d.dir.Bytes()
	}
	return buffers, dead
}

// settle settles what there is to settle in sh.
func (s *settler) settle(m *ByteMap, sh *shard) {
	err := s.ready()
	if err == nil {
		s.keepSpare()
		err = s.sweep(m, sh)
	}
	sh.mu.Lock()
	sh.cold.settling = false
	sh.cold.barren = false
	sh.forget(s.h, 0)
	sh.cold.crowded = err != nil || !sh.roomy()
	sh.mu.Unlock()
	s.h.settled.Add(1)
	s.ended()
	s.clean(errors.Is(err, heap.ErrStoreFull))
}

// sweep visits the leaves of sh of which words are in the table.
func (s *settler) sweep(m *ByteMap, sh *shard) error {
	err := s.double(sh)
	sh.mu.Lock()
	if sh.closed || sh.cold.shelf != nil {
		sh.mu.Unlock()
		return heap.ErrClosed
	}
	c := sh.cold
	due := make([]bool, c.Len())
	for i := range due {
		due[i] = c.At(i).Shared()
	}
	for p := range sh.t.All() {
		if w := *sh.t.Word(p); len(due) > 0 && w&index.Settled == 0 && (w.Settles() || w.IsGone()) {
			due[c.Of(sh.t.Tag(p))] = true
		}
	}
	gen := c.gen
	sh.mu.Unlock()
	if len(due) == 0 {
		return err
	}
	return s.visitAll(m, sh, gen, due)
}

// double gives the directory of sh more ranges if their leaves have grown too long.
func (s *settler) double(sh *shard) error {
	for {
		sh.mu.Lock()
		c := sh.cold
		n := c.count()
		for p := range sh.t.All() {
			if sh.t.Word(p).Settles() {
				n++
			}
		}
		least, size := 2*c.Len(), c.DoubledBytes() // the settler alone changes them, and who clears the map
		enough := n <= c.Len()*index.Most
		for i := range c.Len() {
			enough = enough || c.At(i).Shared() // the sweep first has to end that
		}
		sh.mu.Unlock()
		if enough {
			return nil
		}
		if err := s.room(heap.Leaves, size); err != nil {
			return err
		}
		sh.mu.Lock()
		old, err := c.Bytes(), error(nil)
		same := 2*c.Len() == least && c.shelf == nil && !sh.closed
		if same {
			err = c.Double()
			c.gen++
		}
		now := c.Bytes()
		sh.mu.Unlock()
		s.h.core.Logs.ShrinkIndex(heap.Leaves, size+old-now)
		if err != nil || !same {
			return err
		}
	}
}

// close gives the settler's memory back, after it has ended.
func (s *settler) close() error {
	var errs []error
	for _, d := range s.dead {
		errs = append(errs, d.dir.Close())
	}
	if s.mem != nil {
		errs = append(errs, s.mem.Close())
	}
	return errors.Join(errs...)
}
