// Package meta is the half of the daemon that owns names: which key lies where,
// who has pinned it, when it expires, which was used last; and which pages
// are free, hold a key, or still have to be waited for.
//
// An [Index] maps keys to entries. [Pages] keeps the state of every page in
// the shared table and decides when a page whose key is gone may be used
// again. Neither knows of regions beyond their numbers.
//
// Concurrency: nothing here locks. The daemon serialises all calls under its
// own lock. What clients do at the same time in shared memory is described in
// the package shm.
package meta

import (
	"cmp"
	"container/heap"
	"container/list"
	"iter"
	"slices"
)

// Entry is a registered key.
type Entry struct {
	Key     string
	Region  uint64
	Owner   uint64 // of the region when the key was put: see Index.Orphan
	Offset  int64  // in the region
	Length  int64
	Page    uint32 // in the table of page words; 0 if it lies in a region of Maru's
	LSN     uint64 // of the record that registered it
	Expires int64  // Unix time in milliseconds, 0 for never
	Durable bool   // the record must be on the medium, as the bytes are

	in         *region
	pins       map[uint64]uint32 // by session
	prev, next *Entry            // LRU; nil if it is on no list
	at         int               // in the heap of expiries, from 1; 0 if not in it
	snap       uint64            // the last snapshot that has saved it, or that began before it was put
}

// region is what the index knows of a region that has entries.
type region struct {
	entries map[*Entry]struct{}
	owner   uint64        // on whose LRU list the unpinned entries are; 0 if the owner has left
	used    uint64        // when an entry was put or touched last, by Index.clock
	pinned  int           // entries that somebody has pinned
	orphan  *list.Element // in Index.orphans, or nil
	spans   []*Entry      // of Maru's: the entries in the order of their offsets
	filled  int64         // of Maru's: bytes of the entries
}

// Pinned reports whether some session has pinned the entry.
func (e *Entry) Pinned() bool { return len(e.pins) > 0 }

// Maru reports whether the entry lies in a region of Maru's, anywhere, and so in
// no page.
func (e *Entry) Maru() bool { return e.Page == 0 }

// PinsOf returns how often a session has pinned the entry.
func (e *Entry) PinsOf(session uint64) uint32 { return e.pins[session] }

// Pins iterates over the sessions that have pinned the entry, and how often.
func (e *Entry) Pins() iter.Seq2[uint64, uint32] {
	return func(yield func(uint64, uint32) bool) {
		for s, n := range e.pins {
			if !yield(s, n) {
				return
			}
		}
	}
}

// Index maps keys to entries. The zero value is not usable: call NewIndex.
type Index struct {
	keys    map[string]*Entry
	bytes   int64
	lru     map[uint64]*Entry // by owner: sentinel of a ring, next is the latest; pinned entries are on none
	clock   uint64            // counts uses
	orphans list.List         // regions with entries, none pinned, and without owner; the last used first
	expiry  expiryHeap
	regions map[uint64]*region
	pages   map[uint32]*Entry
	pinned  map[uint64]map[*Entry]struct{} // by session
	logged  int64                          // see Logged
	snap    uint64                         // number of the last snapshot that has begun
	save    func(*Entry)                   // of the snapshot that is being taken, or nil
}

// About how many bytes a checkpoint needs for an entry, and for the pins of a session, beside the key.
const (
	entryBytes = 64
	pinBytes   = 48
)

// NewIndex returns an empty index.
func NewIndex() *Index {
	return &Index{
		keys:    map[string]*Entry{},
		lru:     map[uint64]*Entry{},
		regions: map[uint64]*region{},
		pages:   map[uint32]*Entry{},
		pinned:  map[uint64]map[*Entry]struct{}{},
	}
}

// Len returns the number of keys, and Bytes the sum of their lengths.
func (x *Index) Len() int { return len(x.keys) }

// Bytes returns the sum of the lengths of all entries.
func (x *Index) Bytes() int64 { return x.bytes }

// Get returns the entry of key, or nil. It is the hot path of a lookup: the
// key is a byte slice so that nothing is allocated.
func (x *Index) Get(key []byte) *Entry { return x.keys[string(key)] }

// AtPage returns the entry that lies in a page, or nil.
func (x *Index) AtPage(page uint32) *Entry { return x.pages[page] }

// All iterates over all entries, in no order.
func (x *Index) All() iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		for _, e := range x.keys {
			if !yield(e) {
				return
			}
		}
	}
}

// Logged returns about how many bytes of a log say what the index holds.
func (x *Index) Logged() int64 { return x.logged }

// countPins adds to logged the pins that so many more sessions have of an entry: a checkpoint has a record for each
// session that has pinned the entry.
func (x *Index) countPins(e *Entry, sessions int) {
	x.logged += int64(sessions) * int64(pinBytes+len(e.Key))
}

// snapshotStep is how many entries a snapshot looks at between two pauses.
const snapshotStep = 128

// Snapshot calls save once with every entry that is in the index now, with its
// pins as they are now. Every so often it calls pause, in which the index may be
// used and changed, so that nobody has to wait for the whole snapshot; if pause
// returns false, the snapshot ends early. An entry that is about to be changed
// or deleted is saved before.
//
// Preconditions: no other snapshot is being taken.
func (x *Index) Snapshot(save func(*Entry), pause func() bool) {
	x.snap++
	x.save = save
	defer func() { x.save = nil }()
	n := 0
	for _, e := range x.keys { // an entry that is put meanwhile may come up; keep passes it over
		x.keep(e)
		if n++; n%snapshotStep == 0 && !pause() {
			return
		}
	}
}

// keep saves an entry if a snapshot is being taken that does not have it yet.
func (x *Index) keep(e *Entry) {
	if x.save != nil && e.snap != x.snap {
		e.snap = x.snap
		x.save(e)
	}
}

// OfRegion iterates over the entries that lie in a region. The entry yielded may be
// deleted.
func (x *Index) OfRegion(id uint64) iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		r := x.regions[id]
		if r == nil {
			return
		}
		for e := range r.entries {
			if !yield(e) {
				return
			}
		}
	}
}

// Put adds an entry as the one used last.
//
// Preconditions: its key is not in the index.
func (x *Index) Put(e *Entry) {
	if x.keys[e.Key] != nil {
		panic("BUG: a key is registered twice")
	}
	x.keys[e.Key] = e
	e.snap = x.snap // a snapshot that is being taken began before
	x.bytes += e.Length
	x.logged += entryBytes + int64(len(e.Key))
	r := x.regions[e.Region]
	if r == nil {
		r = &region{entries: map[*Entry]struct{}{}, owner: e.Owner}
		x.regions[e.Region] = r
	}
	e.in = r
	r.entries[e] = struct{}{}
	if e.Maru() {
		at, _ := r.span(e.Offset)
		r.spans = slices.Insert(r.spans, at, e)
		r.filled += e.Length
	} else {
		x.pages[e.Page] = e
	}
	x.Touch(e)
	if e.Expires != 0 {
		heap.Push(&x.expiry, e)
	}
}

// Delete removes an entry.
//
// Preconditions: it is in the index.
func (x *Index) Delete(e *Entry) {
	x.keep(e)
	x.countPins(e, -len(e.pins))
	x.logged -= entryBytes + int64(len(e.Key))
	delete(x.keys, e.Key)
	x.bytes -= e.Length
	r := e.in
	if delete(r.entries, e); e.Maru() {
		at, _ := r.span(e.Offset)
		r.spans = slices.Delete(r.spans, at, at+1)
		r.filled -= e.Length
	} else {
		delete(x.pages, e.Page)
	}
	for s := range e.pins {
		remove(x.pinned, s, e)
	}
	if e.Pinned() {
		e.pins = nil
		r.pinned--
	}
	unlink(e)
	x.order(e.Region, r)
	if len(r.entries) == 0 {
		delete(x.regions, e.Region)
	}
	if e.at != 0 {
		heap.Remove(&x.expiry, e.at-1)
	}
}

// Spans returns the entries of one of Maru's regions in the order of their
// offsets. The caller must not keep it.
func (x *Index) Spans(id uint64) []*Entry {
	if r := x.regions[id]; r != nil {
		return r.spans
	}
	return nil
}

// BytesOf returns the sum of the lengths of the entries of one of Maru's regions.
func (x *Index) BytesOf(id uint64) int64 {
	if r := x.regions[id]; r != nil {
		return r.filled
	}
	return 0
}

// span finds where in the spans an entry at offset is, or belongs.
func (r *region) span(offset int64) (int, bool) {
	return slices.BinarySearchFunc(r.spans, offset, func(e *Entry, offset int64) int { return cmp.Compare(e.Offset, offset) })
}

// Overlap returns an entry of one of Maru's regions that has bytes in
// [offset, offset+length), or nil.
func (x *Index) Overlap(id uint64, offset, length int64) *Entry {
	r := x.regions[id]
	if r == nil {
		return nil
	}
	at, found := r.span(offset)
	switch {
	case found, at < len(r.spans) && r.spans[at].Offset < offset+length:
		return r.spans[at]
	case at > 0 && r.spans[at-1].Offset+r.spans[at-1].Length > offset:
		return r.spans[at-1]
	}
	return nil
}

// Pin counts n more pins of a session.
func (x *Index) Pin(e *Entry, session uint64, n uint32) {
	x.keep(e)
	if !e.Pinned() {
		e.pins = map[uint64]uint32{}
		e.in.pinned++
		unlink(e)
		x.order(e.Region, e.in)
	}
	if e.pins[session] == 0 {
		x.countPins(e, 1)
		add(x.pinned, session, e)
	}
	e.pins[session] += n
}

// Unpin takes one pin of the session away; false if it has none.
func (x *Index) Unpin(e *Entry, session uint64) bool {
	n := e.pins[session]
	if n == 0 {
		return false
	}
	x.keep(e)
	if n > 1 {
		e.pins[session] = n - 1
		return true
	}
	remove(x.pinned, session, e)
	x.unpinned(e, session)
	return true
}

// UnpinAll takes all pins of a session away.
func (x *Index) UnpinAll(session uint64) {
	for e := range x.pinned[session] {
		x.keep(e)
		x.unpinned(e, session)
	}
	delete(x.pinned, session)
}

// unpinned takes the pins of a session from an entry. One that nobody pins any more
// counts as used now.
func (x *Index) unpinned(e *Entry, session uint64) {
	x.countPins(e, -1)
	if delete(e.pins, session); !e.Pinned() {
		e.in.pinned--
		x.Touch(e)
	}
}

// Touch makes the entry the one used last, and its region, too.
func (x *Index) Touch(e *Entry) {
	x.clock++
	e.in.used = x.clock
	unlink(e)
	x.order(e.Region, e.in)
	switch {
	case e.in.orphan != nil:
		x.orphans.MoveToFront(e.in.orphan)
	case e.in.owner != 0 && !e.Pinned():
		x.link(e)
	}
}

// order makes a region one of the orphans if it belongs there, and otherwise removes it from them. A region that
// becomes an orphan counts as used last.
func (x *Index) order(id uint64, r *region) {
	switch belongs := r.owner == 0 && r.pinned == 0 && len(r.entries) > 0; {
	case belongs && r.orphan == nil:
		r.orphan = x.orphans.PushFront(id)
	case !belongs && r.orphan != nil:
		x.orphans.Remove(r.orphan)
		r.orphan = nil
	}
}

// Orphan records that the owner of a region has left: from then on the region's entries are evicted together. The
// time it takes grows with their number.
func (x *Index) Orphan(id uint64) {
	r := x.regions[id]
	if r == nil || r.owner == 0 {
		return
	}
	owner := r.owner
	r.owner = 0
	for e := range r.entries {
		unlink(e)
	}
	x.order(id, r)
	if s := x.lru[owner]; s != nil && s.next == s {
		delete(x.lru, owner)
	}
}

// OrphanAll is Orphan for all regions of an owner. It takes the same time however
// many entries they have: an owner that leaves keeps nobody waiting.
func (x *Index) OrphanAll(owner uint64) {
	delete(x.lru, owner) // the entries stay on a ring that nobody looks at
	var ids []uint64
	for id, r := range x.regions {
		if r.owner == owner {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b uint64) int { return cmp.Compare(x.regions[a].used, x.regions[b].used) })
	for _, id := range ids {
		x.regions[id].owner = 0
		x.order(id, x.regions[id])
	}
}

// Oldest iterates over the entries in an owner's regions that nobody has pinned, the least recently used entry first.
// The entry yielded may be deleted.
func (x *Index) Oldest(owner uint64) iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		sentinel := x.lru[owner]
		if sentinel == nil {
			return
		}
		for e := sentinel.prev; e != sentinel; {
			before := e.prev
			if !yield(e) {
				return
			}
			e = before
		}
	}
}

// Orphans iterates over the regions that have no owner any more, and that have entries but no pinned ones, the least
// recently used region first. The entries of the region yielded may be deleted.
func (x *Index) Orphans() iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for at := x.orphans.Back(); at != nil; {
			before := at.Prev()
			if !yield(at.Value.(uint64)) {
				return
			}
			at = before
		}
	}
}

// LastUse returns a number that is the greater the later an entry of the region was put or used. It returns false if
// the region has no entries, or if some are pinned.
func (x *Index) LastUse(id uint64) (uint64, bool) {
	r := x.regions[id]
	if r == nil || r.pinned > 0 {
		return 0, false
	}
	return r.used, true
}

// Expired returns an entry whose time is over at now, or nil.
func (x *Index) Expired(now int64) *Entry {
	if len(x.expiry) > 0 && x.expiry[0].Expires <= now {
		return x.expiry[0]
	}
	return nil
}

// NextExpiry returns when the next entry expires, or 0.
func (x *Index) NextExpiry() int64 {
	if len(x.expiry) == 0 {
		return 0
	}
	return x.expiry[0].Expires
}

// link puts an entry on its owner's list as the one used last.
//
// Preconditions: it is on none.
func (x *Index) link(e *Entry) {
	s := x.lru[e.in.owner]
	if s == nil {
		s = &Entry{}
		s.prev, s.next = s, s
		x.lru[e.in.owner] = s
	}
	e.prev, e.next = s, s.next
	s.next.prev = e
	s.next = e
}

// unlink takes an entry off the list that it is on, if any.
func unlink(e *Entry) {
	if e.prev == nil {
		return
	}
	e.prev.next, e.next.prev = e.next, e.prev
	e.prev, e.next = nil, nil
}

func add(sets map[uint64]map[*Entry]struct{}, k uint64, e *Entry) {
	if sets[k] == nil {
		sets[k] = map[*Entry]struct{}{}
	}
	sets[k][e] = struct{}{}
}

func remove(sets map[uint64]map[*Entry]struct{}, k uint64, e *Entry) {
	delete(sets[k], e)
	if len(sets[k]) == 0 {
		delete(sets, k)
	}
}

type expiryHeap []*Entry

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].Expires < h[j].Expires }
func (h expiryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i+1, j+1
}

func (h *expiryHeap) Push(v any) {
	e := v.(*Entry)
	*h = append(*h, e)
	e.at = len(*h)
}

func (h *expiryHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	e.at = 0
	return e
}
