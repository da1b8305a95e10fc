package bytemap

import (
	"context"
	"fmt"
	"math/bits"

	"polder/far/entry"
	"polder/far/heap"
	"polder/far/index"
	"polder/far/record"
)

// holding is the flights that a call holds, seldom more than one.
type holding struct{ flights []*heap.Flight }

func (hd *holding) add(f *heap.Flight) { hd.flights = append(hd.flights, f) }

// of returns the flight that brought the bytes at a far address, or found them corrupt; nil if hd has none. If whole
// is set, a flight that brought only the head does not count.
func (hd *holding) of(addr uint64, whole bool) *heap.Flight {
	if hd == nil {
		return nil
	}
	for _, f := range hd.flights {
		if f.Addr == addr && (f.Whole() || !whole) && (f.Rec != nil || f.Corrupt()) {
			return f
		}
	}
	return nil
}

func (hd *holding) release(h *Maps) {
	for _, f := range hd.flights {
		h.core.LetGo(f)
	}
	hd.flights = nil
}

// board joins the flight of the far entry at p, or begins one, which the caller then leads. If b is not nil, the
// flight is a part of b with this number. If there is no buffer for a new flight, board returns no flight but the
// channel to wait for, and the caller must let go of all its flights before it waits. If use is UseHead, a new flight
// reads no more than klen bytes of the key. sh.mu must be held.
func (m *Map) board(b *heap.Batch, number int, sh *shard, p index.Place, use heap.Use, klen int) (f *heap.Flight, leader bool, busy <-chan struct{}) {
	return m.boardWord(b, number, sh, sh.t.Tag(p), sh.t.Word(p), use, klen)
}

// boardWord is board for the far entry of the word at, which may be a copy of the table's word if use is UseHead.
func (m *Map) boardWord(b *heap.Batch, number int, sh *shard, tag uint32, at *index.Word, use heap.Use, klen int) (f *heap.Flight, leader bool, busy <-chan struct{}) {
	h := m.h
	w := *at
	sh.count.misses++
	if f := h.core.Join(w.Addr(), use); f != nil {
		sh.count.coalesced++
		if b != nil {
			b.Join(f, number)
		}
		return f, false, nil
	}
	want := heap.Want{
		Owner:  (*owner)(m),
		Number: uint64(sh.id)<<32 | uint64(tag),
		Word:   uint64(w),
		Addr:   w.Addr(),
		N:      min(w.Size(), h.core.Far.SegSize-h.core.Far.Offset(w.Addr())),
		Size:   w.Size(),
		Index:  number,
		Use:    use,
	}
	if use == heap.UseHead {
		head := record.HeaderSize + klen
		if w&index.TTL != 0 {
			head += record.ExpirySize
		}
		if w&index.Big != 0 {
			head += entry.LargeSize
		}
		want.N = min(want.N, head)
		want.Apart = true
	} else {
		want.Admit = sh.admits(h, at)
		want.Apart = !want.Admit && b != nil && use == heap.UseBytes
	}
	f, busy, err := h.core.Board(b, &want)
	if err != nil {
		panic("BUG: " + err.Error()) // Board's errors are about objects, whose words no lock keeps
	}
	return f, true, busy
}

// fly reads f if the caller leads it, and otherwise waits until f has landed. It returns the error that the call has
// to report.
func (m *Map) fly(ctx context.Context, f *heap.Flight, leader bool) error {
	if leader {
		m.h.core.Fly(ctx, f)
		if f.Told() != nil {
			return nil // the next try sees it
		}
		return f.Err
	}
	if err := f.Wait(ctx); err != nil {
		return fmt.Errorf("cannot fetch %d bytes from %s: %w", f.N, f.Segment().Seg.Name(), err)
	}
	return f.Failure()
}

// demand reads the far entry at p, which may be the entry of key. It returns the flight that has brought the entry,
// which the caller ends with done. If it returns neither a flight nor an error, the call has to go the long way.
//
// Preconditions: sh.mu is held; demand unlocks it.
func (m *Map) demand(ctx context.Context, sh *shard, p index.Place, key []byte) (*heap.Flight, error) {
	h := m.h
	if ctx == nil || ctx.Err() != nil || h.core.Begin() != nil { // slow panics for nil, without a lock
		sh.mu.Unlock()
		return nil, nil
	}
	f, leader, busy := m.board(nil, 0, sh, p, heap.UseBytes, len(key))
	sh.mu.Unlock()
	if busy != nil {
		h.core.End()
		return nil, nil
	}
	err := m.fly(ctx, f, leader)
	if err != nil || !brings(f, key) {
		h.done(f)
		return nil, err
	}
	return f, nil
}

// done ends a call of demand.
func (h *Maps) done(f *heap.Flight) {
	h.core.LetGo(f)
	h.core.End()
}

// brings reports whether f, which has landed, has brought a value of key that is entire and not out of date.
func brings(f *heap.Flight, key []byte) bool {
	e := entryOf(f)
	return e != nil && string(e.Key()) == string(key) && !e.Big() && !e.Expired()
}

// Prefetch brings the entries of keys that are far into local memory, in one batch, and returns when they are there:
// calls that follow need not wait. Missing keys are no error, and neither are lost ones, of which Get will tell. Of
// values in pieces it brings no more than fit into an eighth of local memory, all together.
//
// It is for entries that other calls are going to use: GetMany reads the entries that it is asked for without giving
// all of them a place in local memory.
func (m *Map) Prefetch(ctx context.Context, keys ...[]byte) error {
	h := m.h
	if err := h.core.Begin(); err != nil {
		return err
	}
	defer h.core.End()
	var large []int
	err := m.fetch(ctx, len(keys), func(i int) []byte { return keys[i] }, index.Entries, false, func(i int) { large = append(large, i) })
	if err != nil {
		return err
	}
	room := int(h.core.Cfg.Local / 8)
	for _, i := range large {
		big, ok := m.bigOf(keys[i])
		if !ok {
			continue
		}
		n := min(big.Count(), max(room, 0)/big.Piece)
		if err := m.fetchPieces(ctx, big, 0, n); err != nil {
			return err
		}
		room -= n * big.Piece
	}
	return nil
}

// fetch makes the far ones among n entries of a kind local, in one batch. With heads set, it reads only their headers
// and keys, which the shards remember, and reads whole entries only if their keys are too long for that. What key
// returns is valid until it is called again. fetch calls large with the numbers of entries that may be heads of large
// values, whose pieces it does not fetch.
func (m *Map) fetch(ctx context.Context, n int, key func(i int) []byte, kind index.Word, heads bool, large func(i int)) (err error) {
	b := m.h.core.NewBatch(n)
	b.Insist = true
	var failed error // the first of the store
	var again []int  // keys whose leaves had to be read first
	var todo []int   // the numbers that this round is about; nil for all
	crowd, waited := false, false
	board := func(i int) (int, <-chan struct{}, error) {
		if todo != nil {
			i = todo[i]
		}
		k := key(i)
		hs := m.hash(k)
		sh := m.shard(hs)
		use := heap.UseLocal
		if heads && len(k) <= entry.MaxHeadKey {
			use = heap.UseHead
		}
		sh.mu.Lock()
		defer sh.mu.Unlock()
		p, _, st := sh.find(m.h, hs, k, kind, nil, use != heap.UseHead)
		isLarge := p != index.None && *sh.t.Word(p)&index.Big != 0
		if st == remote {
			if ctx.Err() != nil {
				return 0, nil, context.Cause(ctx)
			}
			waited = true
			if _, _, busy := m.board(b, i, sh, p, use, len(k)); busy != nil {
				return 0, busy, nil
			}
			if kind == index.Entries && !heads {
				sh.count.prefetched++
			}
		}
		if isLarge {
			large(i)
		}
		if st == unread {
			if ctx.Err() != nil {
				return 0, nil, context.Cause(ctx)
			}
			if _, _, busy := m.boardLeaf(b, i, sh, hs.Tag()); busy != nil {
				return 0, busy, nil
			}
		}
		return 1, nil, nil
	}
	landed := func(f *heap.Flight, i int, err error) {
		if err == nil && isLeaf(&f.Want) && f.Told() == nil && f.Failure() == nil {
			crowd = f.Rec != nil && !m.tell(f, key(i)) || crowd
			again = append(again, i)
			return
		}
		// Whoever reads a lost or corrupt entry will be told.
		if err == nil && failed == nil {
			failed = f.Failure()
		}
		if err == nil && f.Rec != nil && !f.Whole() {
			sh, _ := m.placeOf(&f.Want)
			sh.remember(f)
		}
	}
	late := b.All(ctx, n, board, landed)
	for round := 0; late == nil && failed == nil && len(again) > 0 && round < leafRounds; round++ {
		if crowd {
			if late = m.h.settler.wait(ctx); late != nil {
				break
			}
		}
		todo, again, crowd = again, nil, false
		late = b.All(ctx, len(todo), board, landed)
	}
	b.End()
	switch {
	case failed != nil:
		return failed
	case late != nil:
		return late
	case waited && ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return nil
}

// leafRounds is how often a batch is tried again after leaves have been read: a table may have no
// place for all that they say.
const leafRounds = 3

// bigOf returns the head of key if it is local and has one.
func (m *Map) bigOf(key []byte) (entry.Large, bool) {
	hs := m.hash(key)
	sh := m.shard(hs)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	_, e, st := sh.find(m.h, hs, key, index.Entries, nil, true)
	if st != present || !e.Big() {
		return entry.Large{}, false
	}
	return entry.LargeOf(e), true
}

// Calls that replace, remove or Stat a far entry need its header and key and not its value. FetchHeads reads them for
// many keys in one batch; until the calls come, the shards remember the latest of what it read.

// FetchHeads reads the headers and keys of the far entries of keys, in one batch, and remembers them for a short
// while, so that calls to Set, Delete and Stat that follow need not wait; and it waits for some room in local memory
// to replace the entries. Missing and lost keys are no error.
func (m *Map) FetchHeads(ctx context.Context, keys [][]byte) error {
	if err := m.h.core.Begin(); err != nil {
		return err
	}
	defer m.h.core.End()
	err := m.fetch(ctx, len(keys), func(i int) []byte { return keys[i] }, index.Entries, true, func(int) {})
	if err != nil {
		return err
	}
	// The evacuator should be a little ahead of the mutators, if it is not stuck.
	for !m.h.core.Logs.HasRoom() && m.h.core.Logs.Why() == nil {
		if err := m.h.core.WaitRoom(ctx); err != nil {
			return err
		}
	}
	return nil
}

// remember keeps the head that f has brought. sh.mu must not be held.
func (sh *shard) remember(f *heap.Flight) {
	e := entryOf(f)
	if e.Klen() > entry.MaxHeadKey {
		return
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.heads == nil {
		sh.heads = new(entry.Heads)
	}
	sh.heads.Keep(f.Addr, f.Segment(), e)
}

// An entry that a miss fetches is not always worth a place in local memory: that costs a copy of it, and the eviction
// of something else, which may be worth more. So an entry is admitted when it is fetched for the second time within a
// while: as long as it takes to fetch a quarter, at the most, of what local memory holds. The word of a far entry
// that was not admitted remembers when it was fetched. (It is the idea of 2Q's queue A1out, of Johnson and Shasha,
// VLDB 1994, for which CLOCK's words have some bits to spare.)
//
// While there is room that nobody has to make, every entry is admitted. Entries that Prefetch brings to be used later
// need not be admitted to become local.

const (
	// admitShare says how long an epoch is: until one admitShare-th of local memory has been fetched. An entry is
	// admitted if it was fetched in this epoch or in the one before.
	admitShare = 8
	// epochs is how many epochs there are before their numbers, which begin at 1, repeat. An entry that was fetched
	// that long ago is taken for a recent one.
	epochs = 63
)

// admits reports whether the entry of the far word w, which is about to be fetched,
// should be local from now on, and remembers the time if not. sh.mu must be held.
func (sh *shard) admits(h *Maps, w *index.Word) bool {
	shift := h.epochShift()
	then := sh.missed >> shift
	sh.missed += uint64(w.Size())
	now := sh.missed >> shift
	if now != then {
		h.core.Logs.Weigh()
	}
	// Fetching what is larger than an epoch's worth does not make it old at once.
	stamp := uint64(*w & index.StampMask >> index.StampShift)
	if stamp != 0 && (then+epochs-(stamp-1))%epochs <= 1 || h.core.Logs.Roomy() {
		return true
	}
	*w = *w&^index.StampMask | index.Word(now%epochs+1)<<index.StampShift
	return false
}

// epochShift is log2 of how many bytes a shard fetches in an epoch.
func (h *Maps) epochShift() int {
	return max(bits.Len64(uint64(h.core.Local()/int64(h.shards)/admitShare))-1, 0)
}
