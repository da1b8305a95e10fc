package heap

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"polder/far/object"
	"polder/internal/arena"
)

// Logs is the local memory of records: segments of one size, filled from the front and emptied as a whole by the
// evacuator (the paper's section 5.2). It also keeps the account of the budget, which the index draws on too.
//
// An OpenLog's mutex comes before Logs.Mu, and after the locks of owners.
type Logs struct {
	Mapping *arena.Mapping
	mem     []byte
	Base    uintptr // where mem lies
	first   int     // offset of mem in mapping
	SegSize int
	Segs    []LogSegment
	Open    []OpenLog // the mutators', of locked records; the owner chooses which
	Shrunk  OpenLog   // for records that replace one as large, when there is no other room

	Objects []OpenLog // the mutators', of scoped records, by processor
	Streams []OpenLog // the same for records without temporal locality

	kept [2]OpenLog // the evacuator's, for what it keeps: of locked kind, and of scoped ones

	// crowd is told when memory becomes scarce, and when it no longer is, with mu held; immutable.
	crowd func(scarce bool)

	// full is the time, in Unix nanoseconds, until which waiting for room is known to be useless; or the constant
	// looking, while the evacuator finds that out. The next record that dies makes it 0. If inUse is set, waiting is
	// useless because all that is local is in use, otherwise because the store is full.
	full  atomic.Int64
	inUse atomic.Bool

	// Each of the two says that there is room that costs little to use. ample: there are more empty segments than the
	// evacuator keeps. sparse: when Weigh last looked, so little lived in the logs that they are compacted before
	// anything is evacuated.
	ample, sparse atomic.Bool

	views atomic.Int64 // the sum of the views of all segments

	Mu       sync.Mutex
	empty    []int32               // resident segments that hold nothing, under Mu
	absent   []int32               // segments without memory, under Mu
	resident int                   // number of segments with memory, under Mu
	top      int                   // segments from it on were never used, under Mu
	Back     int                   // empty segments that only the evacuator may take, under Mu
	Owed     int                   // how many of those it has taken and not made up for, under Mu
	scoped   int                   // empty segments beside Back that only scopes may take, under Mu
	shrink   int                   // empty segments beside both that only ForShrink may take, under Mu
	shrinks  int                   // how many of those who wait for room wait ForShrink, under Mu
	fresh    bool                  // a mutator has taken a segment since the evacuator last looked, under Mu
	gain     int                   // segments released less those that the evacuator took, under Mu
	scarce   bool                  // what crowd was told last, under Mu
	budget   int64                 // for indexes and logs, under Mu
	others   int64                 // the rest of Config.Local; immutable
	index    int64                 // bytes of budget that the owners' indexes have, under Mu
	asleep   atomic.Int64          // bytes that indexes may want back, see SleepIndex
	of       [Staging]atomic.Int64 // index by Line; changes under Mu
	window   int64                 // bytes of budget that have gone to a wider window, under Mu
	emptying int                   // segments that are being emptied, under Mu
	apart    int                   // 1 if there are scoped records, which the evacuator keeps apart, under Mu
	want     int                   // empty segments that the indexes wait for, under Mu
	seq      uint64                // age of the youngest segment, under Mu
	round    *round                // what those who wait for room wait for, under Mu
	waiting  int                   // how many wait for round, under Mu
	trouble  error                 // why the store takes nothing just now, or nil, under Mu
	expected int                   // segments for what is fetched before it is used, see Expect, under Mu
	low      int                   // the evacuator keeps that many segments empty, under Mu
	kick     chan struct{}

	narrow atomic.Bool // the window is to become narrow, since its memory is needed
}

// LogSegment is the state of one segment of the local logs.
type LogSegment struct {
	Live  atomic.Int64 // bytes of records that owners refer to
	Clean atomic.Int64 // bytes of Live that have a far copy

	sealed bool   // full, and nobody empties it; under Logs.Mu
	Kind   Kind   // of what is in it; under Logs.Mu until sealed
	seq    uint64 // age; under Logs.Mu
	kept   bool   // the evacuator fills it; under Logs.Mu
	Used   int    // bytes filled; under the OpenLog's mutex until sealed

	id int // its number; immutable

	emptying bool  // the evacuator goes through it
	leaving  int64 // bytes of the records in it that are being written; the evacuator's
	debtor   bool  // some of its records were moved, and the rest could not be; the evacuator's

	views atomic.Int32 // scopes that use locked records in it; grows from 0 only while such a record is alive

	// The rest is for scoped records.
	Phase  atomic.Uint32 // of the pass that empties it
	Freed  atomic.Int64  // the epoch in which an object in it was last freed
	passed int64         // the epoch of the pass; the evacuator's
}

// Kind is what a segment of the local logs holds.
type Kind uint8

const (
	Locked   Kind = iota // records that locks of their owners keep in place
	Scoped               // records that scopes keep in place
	Streamed             // records that scopes keep in place, without temporal locality
)

// scoped reports whether scopes keep what is in a segment of the kind in place.
func (k Kind) scoped() bool { return k != Locked }

// Claim is on whose behalf an empty segment is taken. Some are set aside for those who cannot wait for the evacuator.
type Claim uint8

const (
	ForMutator   Claim = iota // who can wait for room
	ForShrink                 // who replaces something as large, which makes as much room
	ForScope                  // who is in a scope, which the evacuator may be waiting for
	ForEvacuator              // who makes room
)

// OpenLog is a segment that is being filled.
type OpenLog struct {
	Mu   sync.Mutex
	Kind Kind // immutable
	ID   int  // its number among those of its kind; immutable
	Seg  int  // none at -1; under Mu
	lent bool // Seg was taken ForScope, and is not for mutators; under Mu
	_    [31]byte
}

// round is one stretch of the evacuator's work, for whose end callers wait. err is set before done is closed.
type round struct {
	done chan struct{}
	err  error
}

// reserved is the number of empty segments that only the evacuator may take: the records that it keeps of a segment
// fit into one. If there are scoped records, which it keeps apart, aim adds one.
const reserved = 1

// shrinkReserve is the number of empty segments that are kept ForShrink, once there are locked records.
const shrinkReserve = 1

// ampleFrom is the number of empty segments, beyond those that the evacuator keeps empty, above which room is ample:
// it may empty that many more than it needs.
const ampleFrom = 2

// MinSegments is how many segments, beside those that mutators have open, the logs need to work.
const MinSegments = 7

// Init makes logs with a budget that can grow to most.
func (l *Logs) Init(budget, most, others int64, segSize, openLogs int) error {
	n := int(most) / segSize
	// One more than needed, so that the first can begin at a multiple of the
	// size: a huge page that lay in two segments could not be given back.
	m, err := arena.Anonymous((n+1)*segSize, segSize >= arena.HugePageSize)
	if err != nil {
		return err
	}
	l.first = padding(m.Bytes(), segSize)
	l.Mapping, l.mem = m, m.Bytes()[l.first:l.first+n*segSize]
	l.Base = addressOf(l.mem)
	l.SegSize, l.budget, l.others = segSize, budget, others
	l.Segs = make([]LogSegment, n)
	l.Open = newOpenLogs(Locked, openLogs)
	l.Objects = newOpenLogs(Scoped, openLogs)
	l.Streams = newOpenLogs(Streamed, openLogs)
	l.Shrunk.Seg = -1
	for i, k := range []Kind{Locked, Scoped} {
		l.kept[i].Seg, l.kept[i].Kind = -1, k
	}
	for i := n - 1; i >= 0; i-- {
		l.Segs[i].id = i
		l.absent = append(l.absent, int32(i))
	}
	l.crowd = func(bool) {}
	l.aim()
	l.round = &round{done: make(chan struct{})}
	l.kick = make(chan struct{}, 1)
	return nil
}

func newOpenLogs(k Kind, n int) []OpenLog {
	ls := make([]OpenLog, n)
	for i := range ls {
		ls[i].Seg, ls[i].Kind, ls[i].ID = -1, k, i
	}
	return ls
}

// aim sets how many segments the evacuator keeps empty. l.Mu must be held, or l not be shared yet.
func (l *Logs) aim() {
	// The more is in flight, the more records may be kept before the segments that they come from are given back.
	l.Back = reserved + l.apart + int(l.window)/l.SegSize/4
	ahead := int(l.budget) / l.SegSize / 64
	if l.apart > 0 {
		ahead *= 4 // segments of objects take longer, since scopes have to be left
	}
	l.low = 1 + max(ahead, min(l.expected, int(l.budget)/l.SegSize/8)) + l.Back + l.scoped + l.shrink
}

// Expect has the evacuator keep room for n bytes that may be fetched at any time, before they are used: whoever
// fetches them would come too late if he had to wait for room.
func (l *Logs) Expect(n int64) {
	l.Mu.Lock()
	l.expected = int(n) / l.SegSize
	l.aim()
	l.Mu.Unlock()
}

// keep is the number of empty segments that c has to leave to others. What is set aside for one claim is not for
// another, so that what scopes were promised goes neither to the evacuator nor to an index. l.Mu must be held.
func (l *Logs) keep(c Claim) int {
	own := max(l.Back-l.Owed, 0) // what is left of the evacuator's
	switch {
	case c == ForScope:
		return own
	case c == ForEvacuator && own > 0:
		return 0
	case c == ForMutator:
		return own + l.scoped + l.shrink
	}
	return own + l.scoped
}

// edges is how many segments scopes may take beside those that their bytes fill. Every allocation buffer may be about
// to take one, and so may the words of pointers, which take a segment's worth of the budget at a time.
func (l *Logs) edges() int { return len(l.Objects) + 1 }

// At returns the record at a local address.
func (l *Logs) At(addr uint64) object.Object { return object.Object(l.mem[addr*Unit:]) }

// Object returns the object whose data lies at addr.
func (l *Logs) Object(addr uintptr) object.Object {
	return object.Object(l.mem[addr-l.Base-object.Header:])
}

// SegmentOf returns the segment of the local object whose data lies at addr. The object's header decides: an object
// without data may be the last in its segment, and addr be behind the segment.
func (l *Logs) SegmentOf(addr uintptr) *LogSegment {
	return &l.Segs[int(addr-l.Base-object.Header)/l.SegSize]
}

// DataOf is where the data of the local object at addr lies.
func (l *Logs) DataOf(addr uint64) uintptr { return l.Base + uintptr(addr)*Unit + object.Header }

// Seg returns the segment of a local address.
func (l *Logs) Seg(addr uint64) *LogSegment { return &l.Segs[int(addr*Unit)/l.SegSize] }

// Viewed reports whether a scope may use the record at addr, or one near it, in place.
func (l *Logs) Viewed(addr uint64) bool { return l.Seg(addr).views.Load() != 0 }

// Views is how many segments scopes keep because they use records there in place. A segment counts once for every
// scope that keeps it.
func (l *Logs) Views() int64 { return l.views.Load() }

// Wake starts the evacuator if it sleeps.
func (l *Logs) Wake() { wake(l.kick) }

// available is the number of segments that could be taken. l.Mu must be held.
func (l *Logs) available() int {
	return len(l.empty) + min(len(l.absent), l.allowed(l.index)-l.resident)
}

// allowed is the number of segments that fit beside an index of that size.
func (l *Logs) allowed(index int64) int { return int((l.budget - l.window - index) / int64(l.SegSize)) }

// Take gives out an empty segment, for records of kind k, if c may have one. It is to be filled in the place of
// segment full (-1 if there is none), which Take hands to the evacuator at the same moment: in between, the evacuator
// could find neither room nor anything to make room of.
func (l *Logs) Take(c Claim, k Kind, full int) (int, bool) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	if k == Locked && l.shrink == 0 {
		l.shrink = shrinkReserve
		l.aim()
	}
	n := l.available()
	if c != ForEvacuator && n-1 <= l.low {
		l.Wake()
	}
	if c == ForEvacuator {
		n = max(n, len(l.empty)) // while the budget shrinks, too
	}
	if n <= l.keep(c) {
		return 0, false
	}
	if c == ForEvacuator {
		l.gain--
		if n <= l.keep(ForMutator) {
			l.Owed++
		}
	} else {
		l.fresh = true
		l.Stir()
	}
	var s int32
	if k := len(l.empty); k > 0 {
		s, l.empty = l.empty[k-1], l.empty[:k-1]
	} else {
		k := len(l.absent)
		s, l.absent = l.absent[k-1], l.absent[:k-1]
		l.resident++
		l.top = max(l.top, int(s)+1)
	}
	l.seq++
	l.Segs[s].seq, l.Segs[s].Used, l.Segs[s].Kind, l.Segs[s].kept = l.seq, 0, k, c == ForEvacuator
	if full >= 0 {
		l.Segs[full].sealed = true
	}
	l.assess()
	return int(s), true
}

// assess tells crowd if memory has become scarce, or no longer is. l.Mu must be held.
func (l *Logs) assess() {
	n := l.available()
	if ample := n > l.low+l.want+ampleFrom; ample != l.ample.Load() {
		l.ample.Store(ample)
	}
	if scarce := n <= l.keep(ForMutator); scarce != l.scarce {
		l.scarce = scarce
		l.crowd(scarce)
	}
}

// Place finds room for n bytes at the end of ol, opening another segment if c may have one, and accounts for them.
// ol.Mu must be held until the record is written, since the evacuator reads every segment that is sealed.
func (l *Logs) Place(ol *OpenLog, n int, c Claim) (object.Object, uint64, bool) {
	if ol.lent && c == ForMutator {
		// Otherwise callers that can wait would use up what is set aside for scopes.
		if !l.intact() {
			return nil, 0, false
		}
		ol.lent = false
	}
	if ol.Seg < 0 || l.Segs[ol.Seg].Used+n > l.SegSize {
		s, ok := l.Take(c, ol.Kind, ol.Seg)
		if !ok {
			if ol.Seg >= 0 && (2*l.Segs[ol.Seg].Live.Load() <= int64(l.Segs[ol.Seg].Used) || l.SegSize-l.Segs[ol.Seg].Used < l.SegSize/16) {
				l.Seal(ol) // the evacuator empties sealed segments only, and there may be no other
			}
			return nil, 0, false
		}
		ol.Seg, ol.lent = s, c == ForScope
	}
	s := &l.Segs[ol.Seg]
	off := ol.Seg*l.SegSize + s.Used
	s.Used += n
	s.Live.Add(int64(n))
	return object.Object(l.mem[off : off+n : off+n]), uint64(off) / Unit, true
}

// intact reports whether all segments that are set aside are there.
func (l *Logs) intact() bool {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return l.available() >= l.keep(ForMutator)
}

// Seal hands ol's segment to the evacuator, which may then look for room in it. ol.Mu must be held.
func (l *Logs) Seal(ol *OpenLog) {
	if ol.Seg < 0 {
		return
	}
	l.Mu.Lock()
	l.Segs[ol.Seg].sealed = true
	l.Mu.Unlock()
	ol.Seg = -1
	l.Stir() // the segment may make room
}

// Hot is where the evacuator puts what it keeps of a segment of a kind.
func (l *Logs) Hot(k Kind) *OpenLog {
	if k.scoped() {
		return &l.kept[1]
	}
	return &l.kept[0]
}

// walk calls fn for every record in a sealed segment to which an owner may
// refer, with the number of the owner, until fn returns false.
func (l *Logs) walk(s int, fn func(r Local, owner uint16) bool) {
	seg := &l.Segs[s]
	begin := s * l.SegSize
	end := begin + seg.Used
	for off := begin; off < end; {
		r := Local{l.mem[off:end], uint64(off) / Unit}
		head := object.Object(r.Mem).Head()
		r.Mem = r.Mem[:object.Header+object.HeadLen(head)]
		somebodys := object.HeadNumber(head) != 0 || !seg.Kind.scoped()
		if somebodys && !fn(r, r.owner()) {
			return
		}
		off += object.Size(object.HeadLen(head))
	}
}

// local is the record at a local address.
func (l *Logs) local(addr uint64) Local {
	o := l.At(addr)
	return Local{o[:object.Header+object.HeadLen(o.Head())], addr}
}

// owner is the number of the owner of r.
func (r Local) owner() uint16 {
	return object.TailOwner(atomic.LoadUint64(object.Object(r.Mem).Tail()))
}

// Release takes back a segment that nothing refers to any more.
func (l *Logs) Release(s int) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	l.gain++
	l.Owed = max(l.Owed-1, 0)
	l.Segs[s].sealed = false
	l.Segs[s].Clean.Store(0)
	if l.empty = append(l.empty, int32(s)); l.resident > l.allowed(l.index) {
		l.discard()
	}
	l.assess()
}

// discard gives the memory of an empty segment back. l.Mu must be held.
func (l *Logs) discard() {
	k := len(l.empty) - 1
	s := l.empty[k]
	l.empty = l.empty[:k]
	if err := l.Mapping.Punch(l.first+int(s)*l.SegSize, l.SegSize); err != nil {
		panic("BUG: " + err.Error())
	}
	l.resident--
	l.absent = append(l.absent, s)
}

// ErrNoRoom: the evacuator has to make room first.
var ErrNoRoom = errors.New("no room")

// ErrNoShrink is ErrNoRoom for ForShrink.
var ErrNoShrink = errors.New("no room for what shrinks")

// LacksRoom reports whether err is one of the two.
func LacksRoom(err error) bool { return err == ErrNoRoom || err == ErrNoShrink }

// GrowIndex accounts for n more bytes of the index u. They come out of the segments of the logs that c may take. If
// the logs have to be evacuated first, it fails with ErrNoRoom; if they would become too small, with ErrMetadataFull.
func (l *Logs) GrowIndex(u Line, n int64, c Claim) error { return l.growIndex(u, n, 0, c) }

// WakeIndex is GrowIndex for n bytes for which SleepIndex was called. There will be room for them: it does not fail
// with ErrMetadataFull.
func (l *Logs) WakeIndex(u Line, n int64, c Claim) error { return l.growIndex(u, n, n, c) }

// SleepIndex takes back n bytes from the index u, which may want them again: no index may grow so far that there
// would be no room for them.
func (l *Logs) SleepIndex(u Line, n int64) {
	l.ShrinkIndex(u, n)
	l.asleep.Add(n)
}

// Asleep is how many bytes indexes may want again.
func (l *Logs) Asleep() int64 { return l.asleep.Load() }

func (l *Logs) growIndex(u Line, n, woken int64, c Claim) error {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	allowed := l.allowed(l.index + n)
	if least := MinSegments + len(l.Open); l.allowed(l.index+l.Asleep()-woken+n) < least {
		if l.window > 0 {
			l.narrow.Store(true)
			l.Wake()
			return ErrNoRoom
		}
		total := l.others + l.budget
		return fmt.Errorf("cannot grow the index to %d bytes: of the local budget of %d too little would be left for entries (give at least %d): %w",
			l.index+l.Asleep()+n, total, l.others+l.index+l.Asleep()+n+int64(least*l.SegSize), ErrMetadataFull)
	}
	if less := l.allowed(l.index) - allowed; less > 0 {
		if left := len(l.empty) + min(len(l.absent), allowed-l.resident); left < l.keep(c) {
			l.want = less
			l.Wake()
			return ErrNoRoom
		}
		for l.resident > allowed {
			l.discard()
		}
	}
	l.index += n
	l.asleep.Add(-woken)
	l.of[u].Add(n)
	l.want = 0
	l.assess()
	return nil
}

// IndexRoom is by how much indexes may grow.
func (l *Logs) IndexRoom() int64 {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return int64(l.allowed(l.index+l.Asleep())-MinSegments-len(l.Open)) * int64(l.SegSize)
}

// ShrinkIndex takes back n bytes from the index u.
func (l *Logs) ShrinkIndex(u Line, n int64) {
	l.Mu.Lock()
	l.index -= n
	l.of[u].Add(-n)
	l.assess()
	l.Mu.Unlock()
}

// growWindow accounts for n more bytes of staging buffers, which come out of the logs; fewer if n is negative. It
// reports false if the logs would become too small, or would no longer have the promised bytes for scopes. Buffers
// may be made only when fits reports true.
func (l *Logs) growWindow(n int64, promised int) bool {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	if n > 0 && l.allowed(l.index+n) < 2*(MinSegments+len(l.Open)) {
		return false
	}
	l.window += n
	// aim is going to set more aside for the evacuator.
	if keep := l.keep(ForScope) + int(n)/l.SegSize/4 + 1; n > 0 && promised > 0 &&
		l.available() < keep+(promised+l.SegSize-1)/l.SegSize+l.edges() {
		l.window -= n
		return false
	}
	l.trim()
	l.aim()
	l.assess()
	return true
}

// trim gives back empty segments that are beyond the budget, but not the evacuator's. l.Mu must be held.
func (l *Logs) trim() {
	for l.resident > l.allowed(l.index) && len(l.empty) > l.Back {
		l.discard()
	}
}

// finish ends the round of those who wait for room: they try again if err is nil and fail with it otherwise.
func (l *Logs) finish(err error) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	l.endRound(err)
}

// look is called when the evacuator begins to look for what may go.
func (l *Logs) look() { l.full.CompareAndSwap(0, looking) }

// refuse is finish, but in two cases it does nothing and reports false. One: somebody waits for room ForShrink, and
// the evacuator has tried without what is kept for that (shrinking is not set). Two: since look, something has died
// or a mutator has taken a segment. What died makes room, and the mutator may have filled all the room there was with
// what can go.
func (l *Logs) refuse(err error, shrinking bool) bool {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	if l.shrinks > 0 && !shrinking {
		return false
	}
	was := l.full.Load()
	if was == 0 || !l.full.CompareAndSwap(was, time.Now().Add(MinBackoff).UnixNano()) {
		return false
	}
	l.endRound(err)
	return true
}

// endRound is finish with l.Mu held.
func (l *Logs) endRound(err error) {
	if l.waiting == 0 {
		return
	}
	l.round.err = err
	close(l.round.done)
	l.round = &round{done: make(chan struct{})}
	l.waiting, l.shrinks = 0, 0
}

// join makes the caller one of those who wait for room, for c. The caller then has to call Wake.
func (l *Logs) join(c Claim) *round {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	l.waiting++
	if c == ForShrink {
		l.shrinks++
	}
	return l.round
}

// usage returns the bytes of live records, and how many bytes could live in the logs without the segments that are to
// stay empty, and without open ones.
func (l *Logs) usage() (live, usable int64) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	for i := range l.Segs[:l.top] {
		live += l.Segs[i].Live.Load()
	}
	n := l.allowed(l.index) - l.low - 1 - len(l.Open)
	return live, int64(n) * int64(l.SegSize)
}

// Roomy reports whether there is room that costs little to use.
func (l *Logs) Roomy() bool { return l.ample.Load() || l.sparse.Load() }

// Weigh brings sparse up to date.
func (l *Logs) Weigh() {
	live, usable := l.usage()
	if sparse := float64(live) < compactBelow*float64(usable); sparse != l.sparse.Load() {
		l.sparse.Store(sparse)
	}
}

// isFull reports whether waiting for room is known to be useless.
func (l *Logs) isFull() bool {
	t := l.full.Load()
	return t > 0 && time.Now().UnixNano() < t
}

// looking is the value of Logs.full while the evacuator looks for what may go.
const looking = -1

// errFull is what a call gets when the evacuator finds nothing to evacuate.
func (l *Logs) errFull() error {
	if l.inUse.Load() {
		return errLocalFull
	}
	return errStoreFull
}

var (
	errLocalFull = fmt.Errorf("cannot make room: %w", ErrLocalFull)
	errStoreFull = fmt.Errorf("cannot make room: %w", ErrStoreFull)
)

// Stir makes waiting for room worth a try again, since something has died. The caller has accounted for the death
// before, since the evacuator may look at once.
func (l *Logs) Stir() {
	if l.full.Load() != 0 {
		l.full.Store(0)
	}
}

// retry makes waiting for room worth a try again, although there is nothing new for the evacuator to find. If the
// evacuator is looking just now, what it says will hold.
func (l *Logs) retry() {
	if t := l.full.Load(); t > 0 {
		l.full.CompareAndSwap(t, 0)
	}
}

// Why returns the error that keeps the evacuator from evacuating, or nil.
func (l *Logs) Why() error {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return l.trouble
}
