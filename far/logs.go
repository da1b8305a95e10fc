package far

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"polder/internal/arena"
)

// logs is the local memory of entries: segments of one size, filled from the
// front and emptied as a whole by the evacuator (the paper's section 5.2).
// It also keeps the account of the budget, which the index draws on too.
//
// An openLog's mutex comes before logs.mu, and after a shard's.
type logs struct {
	mapping *arena.Mapping
	mem     []byte
	base    uintptr // where mem lies
	first   int     // offset of mem in mapping
	segSize int
	segs    []logSegment
	open    []openLog // the mutators', by shard
	shrunk  openLog   // for what replaces something as large when there is no other room

	objects []openLog // as open, for the objects of pointers; by processor
	streams []openLog // the same for non-temporal objects

	kept [2]openLog // the evacuator's, for what it keeps: of locked kind, and of scoped ones

	// crowd is told when memory becomes scarce, and when it no longer is, with
	// mu held; immutable.
	crowd func(scarce bool)

	// full is the time, in Unix nanoseconds, until which waiting for room is
	// known to be useless. The next entry that dies makes it 0. With inUse set, it
	// is since all that is local is in use, and otherwise since the store is full.
	full  atomic.Int64
	inUse atomic.Bool

	// There is room that costs little to use: there are more empty segments than
	// the evacuator keeps; so little lives in the others, as of late, that
	// they are compacted before anything is evacuated.
	ample, sparse atomic.Bool

	mu       sync.Mutex
	empty    []int32 // resident segments that hold nothing, under mu
	absent   []int32 // segments without memory, under mu
	resident int     // number of segments with memory, under mu
	top      int     // segments from it on were never used, under mu
	back     int     // empty segments that only the evacuator may take, under mu
	owed     int     // how many of those it has taken and not made up for, under mu
	scoped   int     // empty segments beside them that only scopes may take, under mu
	shrink   int     // empty segments beside them that only forShrink may take, under mu
	shrinks  int     // how many of those who wait for room wait forShrink, under mu
	fresh    bool    // one was taken by another since the evacuator looked, under mu
	gain     int     // segments released less those that the evacuator took, under mu
	scarce   bool    // what crowd was told last, under mu
	budget   int64   // for index and logs, under mu
	others   int64   // what else there is in Config.Local; immutable
	index    int64   // bytes of it that the index has, under mu
	want     int     // empty segments that the index waits for, under mu
	seq      uint64  // age of the youngest segment, under mu
	round    *round  // what those who wait for room wait for, under mu
	waiting  int     // number of them, under mu
	trouble  error   // why the store takes nothing just now, or nil, under mu
	low      int     // the evacuator keeps that many segments empty, under mu
	kick     chan struct{}
}

// logSegment is the state of one segment of the local logs.
type logSegment struct {
	live  atomic.Int64 // bytes of entries that the index refers to
	clean atomic.Int64 // those of them that have a far copy

	sealed bool   // full, and so the evacuator's; under logs.mu
	kind   kind   // of what is in it; under logs.mu until sealed
	seq    uint64 // age; under logs.mu
	used   int    // bytes filled; under the openLog's mutex until sealed

	// The rest is for objects of pointers.
	phase atomic.Uint32 // of the pass that empties it
	freed atomic.Int64  // the epoch in which an object in it was last freed
}

// kind is what a segment of the local logs holds.
type kind uint8

const (
	entries kind = iota // of maps, which their shards' locks keep in place
	objects             // of pointers, which scopes keep in place
	streams             // the same, without temporal locality
)

// scoped reports whether scopes keep what is in a segment of the kind in place.
func (k kind) scoped() bool { return k != entries }

// claim is on whose behalf an empty segment is taken. Some are set aside for
// those who cannot wait for the evacuator.
type claim uint8

const (
	forMutator   claim = iota // who can wait for room
	forShrink                 // who replaces something as large, which makes as much room
	forScope                  // who is in a scope, which the evacuator may be waiting for
	forEvacuator              // who makes room
)

// openLog is a segment that is being filled.
type openLog struct {
	mu   sync.Mutex
	kind kind // immutable
	id   int  // its number among those of its kind; immutable
	seg  int  // none at -1; under mu
	lent bool // seg was taken for a scope, and is for scopes; under mu
	_    [31]byte
}

// round is one stretch of the evacuator's work. Err is set before done is
// closed.
type round struct {
	done chan struct{}
	err  error
}

// reserved is the number of empty segments that only the evacuator may take:
// what it keeps of a segment fits into one. With objects of pointers, which it
// keeps apart, it is one more.
const reserved = 1

// shrinkReserve is the number of empty segments that are kept for what shrinks,
// once there are entries.
const shrinkReserve = 1

// ampleFrom is how many segments the evacuator may empty more than it needs.
const ampleFrom = 2

// minSegments is the number of segments, beside those that mutators have open,
// below which the logs do not work.
const minSegments = 7

// init makes logs with a budget that can grow to most.
func (l *logs) init(budget, most, others int64, segSize, openLogs int) error {
	n := int(most) / segSize
	// One more than needed, so that the first can begin at a multiple of the
	// size: a huge page that lay in two segments could not be given back.
	m, err := arena.Anonymous((n+1)*segSize, segSize >= arena.HugePageSize)
	if err != nil {
		return err
	}
	l.first = padding(m.Bytes(), segSize)
	l.mapping, l.mem = m, m.Bytes()[l.first:l.first+n*segSize]
	l.base = addressOf(l.mem)
	l.segSize, l.budget, l.others = segSize, budget, others
	l.segs = make([]logSegment, n)
	l.open = newOpenLogs(entries, openLogs)
	l.objects = newOpenLogs(objects, openLogs)
	l.streams = newOpenLogs(streams, openLogs)
	l.shrunk.seg = -1
	for i, k := range []kind{entries, objects} {
		l.kept[i].seg, l.kept[i].kind = -1, k
	}
	for i := n - 1; i >= 0; i-- {
		l.absent = append(l.absent, int32(i))
	}
	l.back = reserved
	l.crowd = func(bool) {}
	l.aim()
	l.round = &round{done: make(chan struct{})}
	l.kick = make(chan struct{}, 1)
	return nil
}

func newOpenLogs(k kind, n int) []openLog {
	ls := make([]openLog, n)
	for i := range ls {
		ls[i].seg, ls[i].kind, ls[i].id = -1, k, i
	}
	return ls
}

// aim sets how many segments the evacuator keeps empty. l.mu must be held, or
// l not be shared yet.
func (l *logs) aim() {
	ahead := int(l.budget) / l.segSize / 64
	if l.back > reserved {
		ahead *= 4 // segments of objects take longer, since scopes have to be left
	}
	l.low = 1 + ahead + l.back + l.scoped + l.shrink
}

// keep is the number of empty segments that c has to leave: what is set aside
// for one is not for the other, so that what scopes were promised is neither the
// evacuator's nor the index's. l.mu must be held.
func (l *logs) keep(c claim) int {
	own := l.back - l.owed // what is left of the evacuator's
	switch {
	case c == forScope:
		return own
	case c == forEvacuator && own > 0:
		return 0
	case c == forMutator:
		return own + l.scoped + l.shrink
	}
	return own + l.scoped
}

// edges is how many segments scopes may take beside those that what they take
// fills: every allocation buffer may be about to take one, and the words are
// about to, which take a segment's worth of the budget at a time.
func (l *logs) edges() int { return len(l.objects) + 1 }

// at returns the entry at a local address.
func (l *logs) at(addr uint64) entry { return entry(l.mem[addr*unit:]) }

// object returns the object whose data lies at addr.
func (l *logs) object(addr uintptr) object {
	return object(l.mem[addr-l.base-objectHeader:])
}

// segmentOf returns the segment of the local object whose data lies at addr, which
// is where its header lies: what has no data may be the last in a segment.
func (l *logs) segmentOf(addr uintptr) *logSegment {
	return &l.segs[int(addr-l.base-objectHeader)/l.segSize]
}

// dataOf is where the data of the local object at addr lies.
func (l *logs) dataOf(addr uint64) uintptr { return l.base + uintptr(addr)*unit + objectHeader }

// seg returns the segment of a local address.
func (l *logs) seg(addr uint64) *logSegment {
	return &l.segs[int(addr*unit)/l.segSize]
}

// wake starts the evacuator if it sleeps.
func (l *logs) wake() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// available is the number of segments that could be taken. l.mu must be held.
func (l *logs) available() int {
	return len(l.empty) + min(len(l.absent), l.allowed(l.index)-l.resident)
}

// allowed is the number of segments that fit beside an index of that size.
func (l *logs) allowed(index int64) int {
	return int((l.budget - index) / int64(l.segSize))
}

// take gives out an empty segment, for what is of kind k, if c may have one.
func (l *logs) take(c claim, k kind) (int, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k == entries && l.shrink == 0 {
		l.shrink = shrinkReserve
		l.aim()
	}
	n := l.available()
	if c != forEvacuator && n-1 <= l.low {
		l.wake()
	}
	if c == forEvacuator {
		n = max(n, len(l.empty)) // while the budget shrinks, too
	}
	if n <= l.keep(c) {
		return 0, false
	}
	if c == forEvacuator {
		l.gain--
		if n <= l.keep(forMutator) {
			l.owed++
		}
	} else {
		l.fresh = true
		l.stir()
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
	l.segs[s].seq, l.segs[s].used, l.segs[s].kind = l.seq, 0, k
	l.assess()
	return int(s), true
}

// assess tells crowd if memory has become scarce, or no longer is. l.mu must be
// held.
func (l *logs) assess() {
	n := l.available()
	if ample := n > l.low+l.want+ampleFrom; ample != l.ample.Load() {
		l.ample.Store(ample)
	}
	if scarce := n <= l.keep(forMutator); scarce != l.scarce {
		l.scarce = scarce
		l.crowd(scarce)
	}
}

// place finds room for n bytes at the end of ol, opening another segment if
// c may have one, and accounts for them. ol.mu must be held until the
// entry is written, since the evacuator reads every segment that is sealed.
func (l *logs) place(ol *openLog, n int, c claim) (entry, uint64, bool) {
	if ol.lent && c == forMutator {
		// Or who can wait would use up what is set aside for scopes.
		if !l.intact() {
			return nil, 0, false
		}
		ol.lent = false
	}
	if ol.seg < 0 || l.segs[ol.seg].used+n > l.segSize {
		s, ok := l.take(c, ol.kind)
		if !ok {
			return nil, 0, false
		}
		l.seal(ol)
		ol.seg, ol.lent = s, c == forScope
	}
	s := &l.segs[ol.seg]
	off := ol.seg*l.segSize + s.used
	s.used += n
	s.live.Add(int64(n))
	return entry(l.mem[off : off+n : off+n]), uint64(off) / unit, true
}

// intact reports whether all is there that is set aside.
func (l *logs) intact() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.available() >= l.keep(forMutator)
}

// seal hands ol's segment to the evacuator. ol.mu must be held.
func (l *logs) seal(ol *openLog) {
	if ol.seg < 0 {
		return
	}
	l.mu.Lock()
	l.segs[ol.seg].sealed = true
	l.mu.Unlock()
	ol.seg = -1
}

// hot is where the evacuator puts what it keeps of a segment of a kind.
func (l *logs) hot(k kind) *openLog {
	if k.scoped() {
		return &l.kept[1]
	}
	return &l.kept[0]
}

// walk calls fn for every record in a sealed segment to which an owner may
// refer, with the number of the owner, until fn returns false.
func (l *logs) walk(s int, fn func(r local, owner uint16) bool) {
	seg := &l.segs[s]
	begin := s * l.segSize
	end := begin + seg.used
	for off := begin; off < end; {
		r := local{l.mem[off:end], uint64(off) / unit}
		n, ok := r.bound(seg.kind)
		if ok && !fn(r, seg.owner(r)) {
			return
		}
		off += n
	}
}

// bound cuts r off where it ends. It returns how many bytes it takes, and whether
// it may be somebody's.
func (r *local) bound(k kind) (n int, ok bool) {
	if !k.scoped() {
		n = entry(r.mem).size()
		r.mem = r.mem[:n]
		return n, true
	}
	head := object(r.mem).head()
	r.mem = r.mem[:objectHeader+headLen(head)]
	return objectSize(headLen(head)), headNumber(head) != 0
}

// owner is the number of the owner of a record in s.
func (s *logSegment) owner(r local) uint16 {
	if s.kind.scoped() {
		return objectsID
	}
	return entry(r.mem).mapID()
}

// release takes back a segment that nothing refers to any more.
func (l *logs) release(s int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gain++
	l.owed = max(l.owed-1, 0)
	l.segs[s].sealed = false
	l.segs[s].clean.Store(0)
	if l.resident > l.allowed(l.index) {
		l.discard(int32(s))
	} else {
		l.empty = append(l.empty, int32(s))
	}
	l.assess()
}

// discard gives the memory of an empty segment back. l.mu must be held.
func (l *logs) discard(s int32) {
	if err := l.mapping.Punch(l.first+int(s)*l.segSize, l.segSize); err != nil {
		panic("BUG: " + err.Error())
	}
	l.resident--
	l.absent = append(l.absent, s)
}

// errNoRoom: the evacuator has to make room first.
var errNoRoom = errors.New("no room")

// errNoShrink is errNoRoom for what replaces something as large.
var errNoShrink = errors.New("no room for what shrinks")

// lacksRoom reports whether err is one of the two.
func lacksRoom(err error) bool { return err == errNoRoom || err == errNoShrink }

// growIndex accounts for n more bytes of index, which come out of the logs: out
// of the segments that c may take. It fails with errNoRoom if the logs have to be
// evacuated first.
func (l *logs) growIndex(n int64, c claim) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	allowed := l.allowed(l.index + n)
	if least := minSegments + len(l.open); allowed < least {
		total := l.others + l.budget
		return fmt.Errorf("cannot grow the index to %d bytes: of the local budget of %d too little would be left for entries (give at least %d): %w",
			l.index+n, total, l.others+l.index+n+int64(least*l.segSize), ErrMetadataFull)
	}
	if less := l.allowed(l.index) - allowed; less > 0 {
		if left := len(l.empty) + min(len(l.absent), allowed-l.resident); left < l.keep(c) {
			l.want = less
			l.wake()
			return errNoRoom
		}
		for l.resident > allowed {
			k := len(l.empty)
			s := l.empty[k-1]
			l.empty = l.empty[:k-1]
			l.discard(s)
		}
	}
	l.index += n
	l.want = 0
	l.assess()
	return nil
}

// shrinkIndex takes back n bytes from the index.
func (l *logs) shrinkIndex(n int64) {
	l.mu.Lock()
	l.index -= n
	l.assess()
	l.mu.Unlock()
}

// finish ends the round of those who wait for room: they try again if err is
// nil and fail with it otherwise.
func (l *logs) finish(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting == 0 {
		return
	}
	l.round.err = err
	close(l.round.done)
	l.round = &round{done: make(chan struct{})}
	l.waiting, l.shrinks = 0, 0
}

// join makes the caller one of those who wait for room, for c. It then has to call
// wake.
func (l *logs) join(c claim) *round {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting++
	if c == forShrink {
		l.shrinks++
	}
	return l.round
}

// usage returns the bytes of live entries, and those that could live if the
// segments that are to stay empty or are open are left out.
func (l *logs) usage() (live, usable int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.segs[:l.top] {
		live += l.segs[i].live.Load()
	}
	n := l.allowed(l.index) - l.low - 1 - len(l.open)
	return live, int64(n) * int64(l.segSize)
}

// roomy reports whether there is room that costs little to use.
func (l *logs) roomy() bool { return l.ample.Load() || l.sparse.Load() }

// weigh brings sparse up to date.
func (l *logs) weigh() {
	live, usable := l.usage()
	if sparse := float64(live) < compactBelow*float64(usable); sparse != l.sparse.Load() {
		l.sparse.Store(sparse)
	}
}

// isFull reports whether waiting for room is known to be useless.
func (l *logs) isFull() bool {
	t := l.full.Load()
	return t != 0 && time.Now().UnixNano() < t
}

// errFull is what a call gets when the evacuator finds nothing to evacuate.
func (l *logs) errFull() error {
	if l.inUse.Load() {
		return errLocalFull
	}
	return errStoreFull
}

var (
	errLocalFull = fmt.Errorf("cannot make room: %w", ErrLocalFull)
	errStoreFull = fmt.Errorf("cannot make room: %w", ErrStoreFull)
)

// stir makes waiting for room worth a try again, since something has died.
func (l *logs) stir() {
	if l.full.Load() != 0 {
		l.full.Store(0)
	}
}

// why returns the error that keeps the evacuator from evacuating, or nil.
func (l *logs) why() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trouble
}
