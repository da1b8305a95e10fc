package heap

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"polder/far/record"
)

// StoreTimeout bounds every operation on the store that no caller waits for.
const StoreTimeout = 10 * time.Second

// FarSegment is a segment borrowed from the store. It is written once, from
// the front to the back, and lives until nothing refers to it. It begins with its header, as package
// record has it.
type FarSegment struct {
	Seg  Segment
	ID   uint64
	age  uint64 // order of opening: its position in the log
	Seed uint32 // of the checksums of the records in it

	stream record.Stream // what is in it
	epoch  uint64        // of the owner that has opened it

	lost     atomic.Bool // the store has lost it, or it is forsaken
	forsaken atomic.Bool // see forsake
	worn     atomic.Bool // the store takes no more in it: it is not used again
	sealed   atomic.Bool // nothing is written to it any more

	restored bool // it was there when the heap was opened: what lives in it may be less than Live; immutable

	counted atomic.Bool // the loss is accounted for; the janitor sets it
	away    bool        // it is forsaken, and given back; under mu of the log

	// The evacuator's:
	broken bool // it cannot be walked, so it cannot be cleaned
	failed bool // a write has; what was to be written behind it fails, too
	writes int  // under way
	end    int  // bytes written, or about to be

	_ [64]byte // what is above seldom changes

	// Live is the bytes, in whole size classes, of the records that owners refer
	// to, by themselves or through a local copy.
	Live    atomic.Int64
	filled  atomic.Int64 // end in whole size classes
	written atomic.Int64 // bytes that the store is known to have
	// pins counts the reads under way of scoped records, and by the cleaner; reads those
	// of locked ones, by processor, since two of them for every miss would be at the
	// same number. They are taken while a lock of the owner's keeps a record here alive, or
	// the owner looks again afterwards, so none counts once Live is 0.
	pins  atomic.Int64
	reads [readParts]readPart
}

// readParts is a power of two.
const readParts = 4

type readPart struct {
	_ [64]byte
	n atomic.Int64
}

// Pin keeps s from being given back until unpin is called with what it returns.
func (s *FarSegment) Pin() (part int) {
	part = Processor() & (readParts - 1)
	s.reads[part].n.Add(1)
	return part
}

// unpin ends a pin, and reports whether s may be dead now.
func (s *FarSegment) unpin(part int) bool {
	return s.reads[part].n.Add(-1) == 0 && s.Dead()
}

// DecodeHead is record.DecodeHead of what was read at off.
func (s *FarSegment) DecodeHead(b []byte, off int) (record.Record, error) {
	return record.DecodeHead(b, s.Seed, off)
}

// Decode is record.Decode of what was read at off.
func (s *FarSegment) Decode(b []byte, off int) (record.Record, error) {
	return record.Decode(b, s.Seed, off)
}

// Pinned is the number of reads under way.
func (s *FarSegment) Pinned() int64 {
	n := s.pins.Load()
	for i := range s.reads {
		n += s.reads[i].n.Load()
	}
	return n
}

// Position says when s was opened: no two segments of a heap have the same, whoever has opened them.
func (s *FarSegment) Position() uint64 { return s.epoch<<epochShift | s.age }

// epochShift leaves room for 2^40 segments in an epoch, and for 2^24 epochs.
const epochShift = 40

// HasPages reports whether s is one of Pages, which its owner cleans.
func (s *FarSegment) HasPages() bool { return s.stream == record.Pages }

// Filled is the bytes of the records that were written to s, in whole size classes.
func (s *FarSegment) Filled() int64 { return s.filled.Load() }

// Sealed reports whether nothing is written to s any more.
func (s *FarSegment) Sealed() bool { return s.sealed.Load() }

// Dead reports whether nothing can refer to s any more.
func (s *FarSegment) Dead() bool {
	return s.sealed.Load() && s.Live.Load() == 0 && s.Pinned() == 0
}

// dying reports whether there is a segment that waits for reads of it to end.
func (f *farLog) dying() (yes bool) {
	f.All(func(s *FarSegment) { yes = yes || s.sealed.Load() && s.Live.Load() == 0 })
	return yes
}

// Gone reports whether the store has lost s.
func (s *FarSegment) Gone() bool {
	if s.lost.Load() {
		return true
	}
	select {
	case <-s.Seg.Lost():
		s.lost.Store(true)
		return true
	default:
		return false
	}
}

// farLog is the far memory of a heap: segments, of which one is open and is
// appended to through the staging buffers of a window, by the evacuator alone.
type farLog struct {
	Store   Store
	SegSize int
	Units   uint64 // segSize in units of addresses
	heap    uint64 // number of the heap, which no other has but by chance

	version atomic.Uint64 // the last that was given out

	// segs are the segments by id, from 1. The slice is replaced to grow.
	Segs atomic.Pointer[[]atomic.Pointer[FarSegment]]

	mu         sync.Mutex
	ids        []uint64  // ids to use again, under mu
	spare      []Segment // kept so that a full store can be cleaned, and what shrinks has room, under mu
	lent       int       // how many of those are in use for what shrinks, under mu
	paged      []Segment // spare ones for pages, under mu,
	pageSpares int       // and how many there should be, under mu
	idle       []idle    // kept for a while, the oldest first, under mu
	count      int       // segments that are in use, without those that are away, under mu
	lastID     uint64    // the highest id that was ever given out, under mu
	owed       []debt    // segments that the store would not take back, under mu

	freeing atomic.Int64  // segments that are being given back
	freed   atomic.Bool   // one has been, since the store was last asked
	scarce  atomic.Bool   // the store had none when it was last asked for one for data
	age     atomic.Uint64 // position of the last segment that was opened

	// The rest is the evacuator's.
	window
	open    *FarSegment
	Retry   time.Time // not before then is the store asked for memory again
	backoff time.Duration
	err     error // why

	keeping keeping
}

func (f *farLog) init(store Store) {
	f.Store, f.SegSize = store, store.SegmentSize()
	f.Units = uint64(f.SegSize / Unit)
	f.heap = rand.Uint64()
	f.keeping.root.Epoch = 1
	segs := make([]atomic.Pointer[FarSegment], 64)
	f.Segs.Store(&segs)
}

// Seg returns the segment of a far address. There is one as long as an owner
// refers to it.
func (f *farLog) Seg(addr uint64) *FarSegment {
	return (*f.Segs.Load())[addr/f.Units].Load()
}

// SegOf is Seg for an address that may be any number. It returns nil if no segment has it, or the segment is gone.
func (f *farLog) SegOf(addr uint64) *FarSegment {
	if segs := *f.Segs.Load(); addr/f.Units < uint64(len(segs)) {
		if s := segs[addr/f.Units].Load(); s != nil && !s.Gone() {
			return s
		}
	}
	return nil
}

// Position is that of the segment that was opened last.
func (f *farLog) Position() uint64 { return f.keeping.root.Epoch<<epochShift | f.age.Load() }

// Offset is the offset in bytes of a far address in its segment.
func (f *farLog) Offset(addr uint64) int { return int(addr%f.Units) * Unit }

// All calls fn for every segment in use.
func (f *farLog) All(fn func(s *FarSegment)) {
	segs := *f.Segs.Load()
	for i := range segs {
		if s := segs[i].Load(); s != nil {
			fn(s)
		}
	}
}

// add makes a borrowed segment one of the log's.
func (f *farLog) add(seg Segment, stream record.Stream) (*FarSegment, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var id uint64
	if n := len(f.ids); n > 0 {
		id, f.ids = f.ids[n-1], f.ids[:n-1]
	} else {
		f.lastID++
		id = f.lastID
	}
	if id*f.Units+f.Units > AddrMask {
		return nil, fmt.Errorf("%w: %d segments are more than can be addressed", ErrStoreFull, id)
	}
	f.count++
	s := &FarSegment{Seg: seg, ID: id, age: f.age.Add(1), epoch: f.keeping.root.Epoch, stream: stream}
	s.Seed = f.header(s).Seed()
	f.place(s)
	return s, nil
}

// place makes s one of the segments. f.mu must be held, or the heap not be shared yet.
func (f *farLog) place(s *FarSegment) {
	segs := *f.Segs.Load()
	if s.ID >= uint64(len(segs)) {
		more := make([]atomic.Pointer[FarSegment], max(2*uint64(len(segs)), s.ID+1))
		for i := range segs {
			more[i].Store(segs[i].Load())
		}
		f.Segs.Store(&more)
		segs = more
	}
	segs[s.ID].Store(s) // from now on everybody may see it
}

// drop forgets a dead segment and gives it back to the store, or keeps it as
// a spare one or as an idle one.
func (f *farLog) drop(ctx context.Context, s *FarSegment) error {
	f.mu.Lock()
	at := &(*f.Segs.Load())[s.ID]
	if at.Load() != s {
		f.mu.Unlock()
		return nil // somebody else did
	}
	at.Store(nil)
	f.ids = append(f.ids, s.ID)
	if s.away {
		f.mu.Unlock()
		return nil
	}
	f.count--
	gone := s.Gone() && !s.forsaken.Load()
	again := !gone && !s.worn.Load()
	if !gone && f.retain(s.Seg) {
		f.mu.Unlock()
		return nil
	}
	if again && s.HasPages() && len(f.paged) < f.pageSpares {
		f.paged = append(f.paged, s.Seg)
		f.mu.Unlock()
		return nil
	}
	if again && f.count > 0 && len(f.spare) < f.spares() {
		f.addSpare(s.Seg)
		f.mu.Unlock()
		return nil
	}
	if again && len(f.idle) < f.count/2 {
		f.idle = append(f.idle, idle{s.Seg, time.Now()})
		f.mu.Unlock()
		return nil
	}
	f.mu.Unlock()
	if gone {
		return nil
	}
	_, err := f.giveBack(ctx, debt{seg: s.Seg})
	return err
}

// forsake takes a segment for lost that the store still has: all was moved that could be found
// in it, and yet something counts as live. Either owners have lost sight of that
// (Host.Leaks), or whoever lends the memory has hidden it, and a word of an owner's still
// refers to it. So the memory can be given back, but not the id, which the next segment
// would be found by: what the word stands for would be counted as dead there, and with it
// another's records, from another lender. It is free when nothing counts as live.
// No more segments are kept like this than there were when owners lost sight of something.
func (s *FarSegment) forsake() {
	s.forsaken.Store(true)
	s.lost.Store(true)
}

// mayGo reports whether the memory of s is to be given back now, which it says once: s is
// forsaken, and nobody reads it any more. Since it counts as lost, nobody begins to.
func (f *farLog) mayGo(s *FarSegment) bool {
	if !s.forsaken.Load() {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.away || s.Pinned() > 0 {
		return false
	}
	s.away = true
	f.count--
	return true
}

// debt is a segment to be given back to the store.
type debt struct {
	seg   Segment
	tries int // that failed
}

// maxTries is how often a segment is offered back, a tenth of a second apart:
// a store that hangs needs some time to notice it.
const maxTries = 100

// giveBack gives a segment back, or else leaves it to payBack. It fails if it
// has been tried too often.
func (f *farLog) giveBack(ctx context.Context, d debt) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, StoreTimeout)
	defer cancel()
	if err = d.seg.Free(ctx); err == nil {
		return true, nil
	}
	if d.tries++; d.tries == maxTries {
		return false, fmt.Errorf("cannot give %s back: %w", d.seg.Name(), err)
	}
	f.owe(d)
	return false, nil
}

func (f *farLog) owe(debts ...debt) {
	f.mu.Lock()
	f.owed = append(f.owed, debts...)
	f.mu.Unlock()
}

// takeOwed returns the segments that are to be offered back again, without
// those that have been lost.
func (f *farLog) takeOwed() []debt {
	f.mu.Lock()
	defer f.mu.Unlock()
	owed := f.owed
	f.owed = nil
	return slices.DeleteFunc(owed, func(d debt) bool {
		select {
		case <-d.seg.Lost():
			return true
		default:
			return false
		}
	})
}

// spares is how many spare segments there should be: one to clean into, and one in
// 32 for what shrinks. f.mu must be held.
//
// What shrinks uses up no more of those than it leaves dead elsewhere. When they
// are used up, some segment is therefore so far dead that shrinkCleaning allows to
// clean it, which makes room again at a bounded cost.
func (f *farLog) spares() int { return 1 + (f.count+24)/32 }

// shrinkCleaning is worthCleaning for what shrinks.
const shrinkCleaning = 1.0 / 64

// addSpare keeps seg as a spare segment. f.mu must be held.
func (f *farLog) addSpare(seg Segment) {
	f.spare = append(f.spare, seg)
	if len(f.spare) > 1 {
		f.lent = max(f.lent-1, 0)
	}
}

// takeSpare returns a spare segment, or nil. To lend it to what shrinks, there
// has to be another.
func (f *farLog) takeSpare(lend bool) Segment {
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

// takeSurplus returns a spare segment of which there is one too many now that
// fewer segments are in use, or nil.
func (f *farLog) takeSurplus() Segment {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.paged) - 1; n >= f.pageSpares {
		s := f.paged[n]
		f.paged = f.paged[:n]
		return s
	}
	n := len(f.spare) - 1
	if n < f.spares() {
		return nil
	}
	s := f.spare[n]
	f.spare = f.spare[:n]
	return s
}

// owing reports whether spare segments are lent, so that nothing else may be
// written.
func (f *farLog) owing() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lent > 0
}

// idle is a segment in which nothing lives any more. It is kept for idleFor, and
// no more than half as many as are in use: what is written anew finds memory that
// the store need not clear and hand over again.
type idle struct {
	seg   Segment
	since time.Time
}

const IdleFor = 500 * time.Millisecond

// takeIdle returns an idle segment, or nil. With old set it must have been one for
// idleFor, or one too many.
func (f *farLog) takeIdle(old bool) Segment {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.idle) > 0 {
		n := len(f.idle) - 1
		s := f.idle[n]
		if old {
			if s = f.idle[0]; n < f.count/2 && time.Since(s.since) < IdleFor {
				return nil
			}
			copy(f.idle, f.idle[1:])
		}
		f.idle[n] = idle{}
		f.idle = f.idle[:n]
		select {
		case <-s.seg.Lost():
		default:
			return s.seg
		}
	}
	return nil
}

// header is what the header of s says.
func (f *farLog) header(s *FarSegment) *record.Segment {
	return &record.Segment{
		Heap:     f.heap,
		Stream:   s.stream,
		Hash:     record.XXH3,
		Number:   s.ID,
		Epoch:    s.epoch,
		Position: s.age,
	}
}

// borrow gets a segment from the store, and a spare one behind it.
func (f *farLog) borrow(ctx context.Context) (Segment, error) {
	ctx, cancel := context.WithTimeout(ctx, StoreTimeout)
	defer cancel()
	seg, err := f.takeIdle(false), error(nil)
	if seg == nil {
		seg, err = f.Store.Alloc(ctx)
	}
	f.scarce.Store(errors.Is(err, ErrStoreFull))
	if f.Keeps() && f.Starved() {
		f.keeping.remind()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot borrow far memory: %w", err)
	}
	f.mu.Lock()
	need := len(f.spare) < f.spares()
	f.mu.Unlock()
	if need {
		_ = f.borrowSpare(ctx) // there is one less to be had, if there is none
	}
	return seg, nil
}

// cleaningPages is how many of the spare segments for pages are for cleaning them alone: what is written
// anew is a little longer than it was.
const cleaningPages = 2

// borrowForPages gets a segment for pages from the store, with those that are to be spare; or, since
// nothing but data may use what becomes free in a store that was full, a spare one.
func (f *farLog) borrowForPages(ctx context.Context, cleaning bool) (Segment, error) {
	ctx, cancel := context.WithTimeout(ctx, StoreTimeout)
	defer cancel()
	for {
		f.mu.Lock()
		may := !f.scarce.Load() && f.lent == 0 && len(f.spare) >= f.spares() || f.count == 0
		n, least := len(f.paged), 0
		if !cleaning {
			least = min(cleaningPages, f.pageSpares)
		}
		if n > f.pageSpares || n > least && !may {
			s := f.paged[n-1]
			f.paged = f.paged[:n-1]
			f.mu.Unlock()
			return s, nil
		}
		f.mu.Unlock()
		if !may {
			return nil, fmt.Errorf("cannot borrow far memory for indexes: %w", ErrStoreFull)
		}
		s := f.takeIdle(false)
		if s == nil {
			var err error
			if s, err = f.Store.Alloc(ctx); errors.Is(err, ErrStoreFull) {
				f.scarce.Store(true)
				continue
			} else if err != nil {
				return nil, fmt.Errorf("cannot borrow far memory for indexes: %w", err)
			}
		}
		f.mu.Lock()
		f.paged = append(f.paged, s)
		f.mu.Unlock()
	}
}

// borrowSpare gets a spare segment from the store.
func (f *farLog) borrowSpare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, StoreTimeout)
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
func (f *farLog) Version() uint64 { return f.version.Load() }

const (
	minBackoff = 5 * time.Millisecond
	MaxBackoff = time.Second
)

// Failed notes an error of the store, and that it is to be left alone for a
// while. A full one is asked again soon.
func (f *farLog) Failed(err error) error {
	f.backoff = min(max(2*f.backoff, minBackoff), MaxBackoff)
	if errors.Is(err, ErrStoreFull) {
		f.backoff = minBackoff
	}
	f.err, f.Retry = err, time.Now().Add(f.backoff)
	return err
}

func (f *farLog) succeeded() { f.err, f.backoff = nil, 0 }

// resting reports whether the store is to be left alone, and why.
func (f *farLog) resting() error {
	if f.err != nil && time.Now().Before(f.Retry) {
		return f.err
	}
	return nil
}
