package farlog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"polder/far/record"
	"polder/far/store"
)

// Log is the segments of a heap in far memory. All of its methods may be called by any number of
// goroutines unless they say otherwise.
type Log struct {
	Store   store.Store
	SegSize int
	Units   uint64 // SegSize in units of addresses
	heap    uint64 // number of the heap; it is random, so two heaps have the same only by chance
	died    func() // called when a segment may be dead; immutable

	version atomic.Uint64 // the last version that was given out

	// Segs are the segments by id, from 1. The slice is replaced to grow.
	Segs atomic.Pointer[[]atomic.Pointer[Segment]]

	mu         sync.Mutex
	ids        []uint64        // ids to use again, under mu
	spare      []store.Segment // for cleaning a full store, and for shrinking writes: see spares; under mu
	lent       int             // spare segments lent to shrinking writes and not replaced yet, under mu
	paged      []store.Segment // spare segments for pages, under mu
	pageSpares int             // how many segments paged should have, under mu
	pageLast   int             // how many of these are for UrgentPages alone, under mu
	idle       []idle          // kept for a while, the oldest first, under mu
	count      int             // segments that are in use, without those that are away (see Segment.away), under mu
	lastID     uint64          // the highest id that was ever given out, under mu
	owed       []debt          // segments that the store would not take back, under mu

	scarce atomic.Bool   // set when Borrow or BorrowForPages finds the store full, cleared when Borrow does not
	age    atomic.Uint64 // position of the last segment that was opened, including parts of checkpoints

	keeping keeping
}

// Init makes the log, whose segments st lends. The log calls died when a segment may be dead.
func (f *Log) Init(st store.Store, died func()) {
	f.Store, f.SegSize, f.died = st, st.SegmentSize(), died
	f.Units = uint64(f.SegSize / record.Unit)
	f.heap = rand.Uint64()
	f.keeping.root.Epoch = 1
	segs := make([]atomic.Pointer[Segment], 64)
	f.Segs.Store(&segs)
	if m, ok := st.(store.Mirror); ok {
		m.Judge(f.Mend)
	}
}

// Seg returns the segment of a far address. There is one as long as an owner refers to the address.
func (f *Log) Seg(addr uint64) *Segment {
	return (*f.Segs.Load())[addr/f.Units].Load()
}

// SegOf is Seg for an address that may be any number. It returns nil if no segment has the address, or the segment is
// gone.
func (f *Log) SegOf(addr uint64) *Segment {
	if segs := *f.Segs.Load(); addr/f.Units < uint64(len(segs)) {
		if s := segs[addr/f.Units].Load(); s != nil && !s.Gone() {
			return s
		}
	}
	return nil
}

// Position is the position of the segment that was opened last.
func (f *Log) Position() uint64 { return f.keeping.root.Epoch<<epochShift | f.age.Load() }

// Offset is the offset in bytes of a far address in its segment.
func (f *Log) Offset(addr uint64) int { return int(addr%f.Units) * record.Unit }

// All calls fn for every segment in use.
func (f *Log) All(fn func(s *Segment)) {
	segs := *f.Segs.Load()
	for i := range segs {
		if s := segs[i].Load(); s != nil {
			fn(s)
		}
	}
}

// Pages returns what lives in the full segments of pages, how many these are, how many bytes they have, and the one of
// them in which least lives, or nil.
func (f *Log) Pages() (worst *Segment, n int, live, filled int64) {
	f.All(func(s *Segment) {
		lives := s.Live.Load()
		if !s.HasPages() || !s.Sealed() || s.Gone() || lives == 0 { // what is empty is about to be given back
			return
		}
		n, live, filled = n+1, live+lives, filled+s.Filled()
		if worst == nil || lives < worst.Live.Load() {
			worst = s
		}
	})
	return worst, n, live, filled
}

// Add makes a borrowed segment one of the log's.
func (f *Log) Add(seg store.Segment, stream record.Stream) (*Segment, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var id uint64
	if n := len(f.ids); n > 0 {
		id, f.ids = f.ids[n-1], f.ids[:n-1]
	} else {
		f.lastID++
		id = f.lastID
	}
	if id*f.Units+f.Units > record.MaxAddr {
		return nil, fmt.Errorf("%w: %d segments are more than can be addressed", store.ErrStoreFull, id)
	}
	f.count++
	s := &Segment{log: f, Seg: seg, ID: id, age: f.age.Add(1), epoch: f.keeping.root.Epoch, stream: stream}
	s.Seed = s.Header().Seed()
	f.place(s)
	return s, nil
}

// place makes s one of the segments. Either f.mu is held, or nobody else uses the heap yet.
func (f *Log) place(s *Segment) {
	segs := *f.Segs.Load()
	if s.ID >= uint64(len(segs)) {
		more := make([]atomic.Pointer[Segment], max(2*uint64(len(segs)), s.ID+1))
		for i := range segs {
			more[i].Store(segs[i].Load())
		}
		f.Segs.Store(&more)
		segs = more
	}
	segs[s.ID].Store(s) // from now on everybody may see it
}

// spares is how many spare segments there should be: one to clean into, and one in 32 for shrinking writes, which are
// writes that replace something at least as large (heap.ForShrink). f.mu must be held.
//
// Shrinking writes use up no more of the spare segments than they leave dead elsewhere. So when the spare segments
// are used up, enough of some segment is dead for the heap to clean it (its shrinkCleaning), which makes room again
// at a bounded cost.
func (f *Log) spares() int { return 1 + (f.count+24)/32 }

// addSpare keeps seg as a spare segment. f.mu must be held.
func (f *Log) addSpare(seg store.Segment) {
	f.spare = append(f.spare, seg)
	if len(f.spare) > 1 {
		f.lent = max(f.lent-1, 0)
	}
}

// TakeSpare returns a spare segment, or nil if there is none. With lend set, the segment is lent to a shrinking
// write; the last spare segment is not lent.
func (f *Log) TakeSpare(lend bool) store.Segment {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.spare) - 1
	if n < 0 || lend && n == 0 {
		return nil
	}
	s := f.spare[n]
	f.spare = f.spare[:n]
	if lend {
		f.lent++
	}
	return s
}

// Owing reports whether spare segments are lent. While they are, only shrinking writes and the writing back for a
// checkpoint may use far memory.
func (f *Log) Owing() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lent > 0
}

// Borrow gets a segment for data, from the store unless one is idle, and then a spare segment if there are too few.
func (f *Log) Borrow(ctx context.Context) (store.Segment, error) {
	ctx, cancel := context.WithTimeout(ctx, store.Timeout)
	defer cancel()
	seg, err := f.takeIdle(false), error(nil)
	if seg == nil {
		seg, err = f.Store.Alloc(ctx)
	}
	scarce := f.full(err)
	if scarce {
		if s := f.takeIdle(false); s != nil {
			seg, err = s, nil
		}
	}
	f.scarce.Store(scarce)
	if f.Keeps() && f.Starved() {
		f.keeping.remind()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot borrow far memory: %w", err)
	}
	f.mu.Lock()
	need, pages := len(f.spare) < f.spares(), f.Keeps() && len(f.paged) < f.pageSpares
	f.mu.Unlock()
	if need {
		_ = f.BorrowSpare(ctx) // if it fails, there is one spare segment less
	}
	if pages { // otherwise data would take the last of the store while no words are settled
		if s, err := f.Store.Alloc(ctx); err == nil {
			f.mu.Lock()
			f.paged = append(f.paged, s)
			f.mu.Unlock()
		}
	}
	return seg, nil
}

// PageUse is what a segment of pages is for. The more urgent it is, the fewer spare segments it leaves.
type PageUse uint8

const (
	SettlePages PageUse = iota // words leave tables
	CleanPages                 // pages are written anew, so that the segments that they were in die
	UrgentPages                // words leave tables since there is no other local memory
)

// cleaningPages is how many spare segments for pages SettlePages leaves to CleanPages: pages that are written anew are
// a little longer than they were.
const cleaningPages = 2

// leavesPages is how many spare segments for pages use leaves. f.mu must be held.
func (f *Log) leavesPages(use PageUse) int {
	switch use {
	case SettlePages:
		return min(f.pageLast+cleaningPages, f.pageSpares)
	case CleanPages:
		return f.pageLast
	}
	return 0
}

// LacksPages reports whether SettlePages would find no segment, and a checkpoint may change that.
func (f *Log) LacksPages() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Keeps() && f.scarce.Load() && len(f.paged) < f.pageSpares && len(f.paged) <= f.leavesPages(SettlePages)
}

// BorrowForPages gets a segment for pages, and borrows as many spare segments as there should be, those for data
// first: nobody else may do that, if no data is to be written. It does not ask the store if that was full, or while
// spare segments for data are lent, since only data may use what becomes free then: it takes a spare segment for pages
// instead, if it leaves enough of them to what is more urgent than use.
func (f *Log) BorrowForPages(ctx context.Context, use PageUse) (store.Segment, error) {
	ctx, cancel := context.WithTimeout(ctx, store.Timeout)
	defer cancel()
	for full := false; ; {
		f.mu.Lock()
		may := !full && (!f.scarce.Load() && f.lent == 0 || f.count == 0)
		lacks := f.count > 0 && len(f.spare) < f.spares()
		n, least := len(f.paged), f.leavesPages(use)
		if n > f.pageSpares || n > least && !may {
			s := f.paged[n-1]
			f.paged = f.paged[:n-1]
			f.mu.Unlock()
			return s, nil
		}
		f.mu.Unlock()
		if !may {
			if f.Keeps() {
				f.Want() // the checkpoint gives back what the one before it refers to
			}
			return nil, fmt.Errorf("cannot borrow far memory for indexes: %w", store.ErrStoreFull)
		}
		s := f.takeIdle(false)
		if s == nil {
			var err error
			if s, err = f.Store.Alloc(ctx); f.full(err) {
				f.scarce.Store(true)
				full = true
				continue
			} else if err != nil {
				return nil, fmt.Errorf("cannot borrow far memory for indexes: %w", err)
			}
		}
		f.mu.Lock()
		if lacks {
			f.addSpare(s)
		} else {
			f.paged = append(f.paged, s)
		}
		f.mu.Unlock()
	}
}

// BorrowSpare gets a spare segment from the store.
func (f *Log) BorrowSpare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, store.Timeout)
	defer cancel()
	seg, err := f.Store.Alloc(ctx)
	if err != nil {
		return fmt.Errorf("cannot borrow far memory: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.addSpare(seg)
	return nil
}

// Version is the version of the record that was staged last.
func (f *Log) Version() uint64 { return f.version.Load() }

// NextVersion is the version for another record.
func (f *Log) NextVersion() uint64 { return f.version.Add(1) }

// KeepForPages sets how many spare segments are kept for pages, and how many of them only UrgentPages may take. There
// are fewer if the store is full before it has lent that many.
func (f *Log) KeepForPages(n, last int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pageSpares, f.pageLast = n, last
}
