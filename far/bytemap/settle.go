package bytemap

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"polder/far/heap"
	"polder/far/index"
	"polder/far/pagelog"
	"polder/internal/arena"
)

// settler is the goroutine that moves words from the tables of maps to their leaves, range by range, and cleans the far
// segments of leaves. It holds no lock while the store works; a word that changes in a table meanwhile stays there.
//
// It takes local memory for its buffers when it has to settle for the first time; from then on it needs only far
// memory. If it cannot have one or the other, or settling makes too few places, the tables grow beyond their share,
// for as long as the budget allows: so nobody waits for the settler longer than one try.
type settler struct {
	h      *Maps
	kick   chan struct{}
	mu     sync.Mutex
	round  chan struct{}          // closed, and replaced, when a table has been settled; under mu
	dead   []*corpse              // yet to be buried; under mu
	learn  atomic.Pointer[[]byte] // the buffer that Learn reads leaves into; nil if there are no leaves yet
	urgent atomic.Bool            // words have to be settled since there is no other memory
	full   atomic.Bool            // see Maps.CleanLeaves

	// The rest is the goroutine's.
	mem    *arena.Mapping
	pages  *pagelog.Log
	visits [2]visit
	merged index.Merged
	hot    []index.Slot // words of tables, as they were when leaves were made of them
	groups [][2]int     // the words of each tag that went into a leaf: in hot, from the first index up to the second
	use    heap.PageUse // why leaves are written; for CleanPages, although they have not changed
}

const (
	// The settler has three buffers, each a 128th of the budget, within these bounds. Two visits share one of them.
	leastSettler = 16 << 10
	mostSettler  = 64 << 10
	// mostLeaf is the longest leaf. It fits into half a buffer with any budget, since a heap may be opened with
	// another budget.
	mostLeaf = leastSettler / 4
	// visitLeaves is how many leaves a visit has at the most.
	visitLeaves = 512
)

func (s *settler) init(h *Maps) {
	s.h, s.kick, s.round = h, make(chan struct{}, 1), make(chan struct{})
}

func (s *settler) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// wait wakes the settler, and returns when it has settled some table, or has tried.
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

// ended wakes whoever is in wait.
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
		if s.full.Swap(false) && s.pages != nil {
			s.clean(true)
		}
	}
}

// ready sees to it that there is memory to settle with.
func (s *settler) ready() error {
	if s.mem != nil {
		return nil
	}
	n := min(max(heap.Floor2(s.h.core.Local()/128), leastSettler), mostSettler)
	if err := s.h.core.GrowIndex(heap.Settling, int64(3*n), heap.HoldFor); err != nil {
		return err
	}
	mem, err := arena.Anonymous(3*n, false)
	if err != nil {
		s.h.core.Logs.ShrinkIndex(heap.Settling, int64(3*n))
		return err
	}
	s.mem = mem
	b := mem.Bytes()
	s.pages = pagelog.New(s.h.core, b[:n:n]) // for leaves that are to be written
	for i := range s.visits {
		s.visits[i].bodies, s.visits[i].done = b[n+i*n/2:n+(1+i)*n/2], make(chan error, 1)
	}
	s.learn.Store(new(b[2*n:]))
	return nil
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
func (s *settler) settle(m *Map, sh *shard) {
	err := s.ready()
	if err == nil {
		s.keepSpare()
		if s.use = heap.SettlePages; s.urgent.Load() {
			s.use = heap.UrgentPages
		}
		err = s.sweep(m, sh)
	}
	sh.mu.Lock()
	sh.cold.settling = false
	sh.cold.barren = false
	sh.forget(s.h, 0, sh.spared())
	sh.cold.crowded = err != nil || !sh.roomy()
	sh.mu.Unlock()
	s.h.settled.Add(1)
	s.ended()
	s.clean(errors.Is(err, heap.ErrStoreFull))
}

// sweep visits the leaves of sh for which the table has words to be settled, and those that two ranges share.
func (s *settler) sweep(m *Map, sh *shard) error {
	err := s.double(sh)
	sh.mu.Lock()
	if sh.closed || sh.cold.shelf != nil {
		sh.mu.Unlock()
		return heap.ErrClosed
	}
	j := job{m: m, sh: sh, gen: sh.cold.gen, ranges: sh.cold.Due(&sh.t)}
	none := sh.cold.Len() == 0
	sh.mu.Unlock()
	if none {
		return err
	}
	return s.visitAll([]job{j})
}

// double gives the directory of sh more ranges if their leaves have grown too long.
func (s *settler) double(sh *shard) error {
	for {
		sh.mu.Lock()
		c := sh.cold
		n := c.Count() + sh.t.Count(index.Word.Settles)
		least, size := 2*c.Len(), c.DoubledBytes() // only the settler changes them, and whoever clears the map
		enough := n <= c.Len()*index.Most || !s.h.mayDouble(&c.Dir)
		for i := range c.Len() {
			enough = enough || c.At(i).Shared() // the sweep first has to end that
		}
		sh.mu.Unlock()
		if enough {
			return nil
		}
		if err := s.h.core.GrowIndex(heap.Leaves, size, heap.HoldFor); err != nil {
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

// keepSpare keeps as many spare segments for leaves as it takes, when the store is full, to clean the leaves' far
// memory and to settle the words that tables have. If only a checkpoint gives dead segments back, it keeps besides as
// many as it takes to write all leaves anew once: so words can be settled if the checkpoint has no memory otherwise.
func (s *settler) keepSpare() {
	f := &s.h.core.Far
	n, live, last := 0, int64(0), 0 // segments of leaves, bytes of leaves, and segments for the worst case
	f.All(func(seg *heap.FarSegment) {
		if seg.HasPages() {
			n, live = n+1, live+seg.Live.Load()
		}
	})
	tables := s.h.core.Logs.Of(heap.Tables)
	if f.Keeps() {
		last = 1 + int((live+tables)/int64(f.SegSize))
		n += 8 // so that there is one to settle with until the next checkpoint
	}
	f.KeepForPages(2+n/8+int(tables)/f.SegSize+last, last)
}

const (
	// cleanPagesAbove is the part of the far memory of leaves that may be dead before it is cleaned, if there are at
	// least cleanPagesFrom segments of it. When the store is full, the part is cleanPagesFull, and one segment is
	// enough.
	cleanPagesAbove = 1.0 / 2
	cleanPagesFull  = 0.1
	cleanPagesFrom  = 3
)

// clean empties segments of leaves, always the one of which least lives, until far memory is clean enough.
func (s *settler) clean(full bool) {
	above, least := cleanPagesAbove, cleanPagesFrom
	if full {
		above, least = cleanPagesFull, 1
	}
	for s.h.core.Ctx.Err() == nil {
		worst, n, live, filled := s.h.core.Far.Pages()
		if worst == nil || n < least || float64(filled-live) < above*float64(filled) || !s.empty(worst) {
			return
		}
	}
}

// empty writes the leaves in f anew, and reports whether nothing lives in it any more.
func (s *settler) empty(f *heap.FarSegment) bool {
	s.use = heap.CleanPages
	s.h.cleanedPages.Add(1)
	var jobs []job
	for _, m := range *s.h.maps.Load() {
		shards := m.shards() // m may have other shards once it is freed
		for i := range shards {
			sh := &shards[i]
			sh.mu.Lock()
			if !sh.hasLeaves() || sh.cold.shelf != nil {
				sh.mu.Unlock()
				continue
			}
			j := job{m: m, sh: sh, gen: sh.cold.gen}
			for k := range sh.cold.Len() {
				if a := sh.cold.At(k).Addr(); a != 0 && a/s.h.core.Far.Units == f.ID {
					j.ranges = append(j.ranges, k)
				}
			}
			sh.mu.Unlock()
			jobs = append(jobs, j)
		}
	}
	return s.visitAll(jobs) == nil && f.Live.Load() == 0
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
