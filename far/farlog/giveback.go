package farlog

import (
	"context"
	"errors"
	"slices"
	"time"

	"polder/far/store"
)

// A dead segment is given back to the store, unless it is worth keeping: see Drop.

// Drop forgets a dead segment. It keeps it for the next checkpoint or a pin (see retain), as a spare segment, or as
// an idle one, or else gives it back to the store, as GiveBack does.
func (f *Log) Drop(ctx context.Context, s *Segment) {
	f.mu.Lock()
	at := &(*f.Segs.Load())[s.ID]
	if at.Load() != s {
		f.mu.Unlock()
		return // somebody else did
	}
	at.Store(nil)
	f.ids = append(f.ids, s.ID)
	if s.away {
		f.mu.Unlock()
		return
	}
	f.count--
	gone := s.Gone() && !s.forsaken.Load()
	again := !gone && !s.Worn.Load()
	if !gone && f.retain(s.kept()) {
		f.mu.Unlock()
		return
	}
	if again && s.HasPages() && len(f.paged) < f.pageSpares {
		f.paged = append(f.paged, s.Seg)
		f.mu.Unlock()
		return
	}
	if again && f.count > 0 && len(f.spare) < f.spares() {
		f.addSpare(s.Seg)
		f.mu.Unlock()
		return
	}
	if again && len(f.idle) < f.count/2 {
		f.idle = append(f.idle, idle{s.Seg, time.Now()})
		f.mu.Unlock()
		return
	}
	f.mu.Unlock()
	if !gone {
		f.GiveBack(ctx, s.Seg)
	}
}

// Forsake treats as lost a segment that the store still has: cleaning has moved all records that it found to live
// there, and yet some bytes count as live. Either owners have lost sight of records (see the heap's Host.Leaks), or
// whoever lends the memory has hidden a record, and a word of an owner's still refers to it. The memory can be given
// back (see MayGo), but the id cannot be used again yet. The word would refer to whatever segment has the id next,
// and the death of its record would be accounted for there, at the expense of records that another lender has. The id
// is free when nothing counts as live. No more segments are kept like this than there were when owners lost sight of
// something.
func (s *Segment) Forsake() {
	s.forsaken.Store(true)
	s.lost.Store(true)
}

// MayGo reports whether the memory of s is to be given back now: s is forsaken, and nobody reads it any more. Since s
// counts as lost, nobody begins to read it. MayGo reports true only once.
func (f *Log) MayGo(s *Segment) bool {
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
	seg   store.Segment
	tries int // how many tries have failed
}

// maxTries is how often a segment is offered back, a tenth of a second apart:
// a store that hangs needs some time to notice it.
const maxTries = 100

// GiveBack gives a segment back. If the store does not take it, PayBack tries again.
func (f *Log) GiveBack(ctx context.Context, seg store.Segment) { f.pay(ctx, debt{seg: seg}) }

// Discard gives back a segment that is no longer one of the log, or keeps it for the next checkpoint or a pin: see
// retain.
func (f *Log) Discard(ctx context.Context, seg store.Segment) {
	f.mu.Lock()
	retained := f.retain(Kept{seg: seg})
	f.mu.Unlock()
	if !retained {
		f.GiveBack(ctx, seg)
	}
}

// pay gives the segment of d back, and reports whether the store has taken it. If not, the log owes it, and PayBack
// tries again; but after maxTries, pay gives it up instead.
func (f *Log) pay(ctx context.Context, d debt) (done, givenUp bool) {
	ctx, cancel := context.WithTimeout(ctx, store.Timeout)
	defer cancel()
	if d.seg.Free(ctx) == nil {
		return true, false
	}
	if d.tries++; d.tries == maxTries {
		return false, true
	}
	f.owe(d)
	return false, false
}

// PayBack offers the store again the segments that it would not take back, until it does not take one. It returns how
// many segments the store took, and how many it will not be offered any more.
func (f *Log) PayBack(ctx context.Context) (paid, unreturned int) {
	owed := f.takeOwed()
	for i, d := range owed {
		done, givenUp := f.pay(ctx, d)
		if givenUp {
			unreturned++
		}
		if !done {
			f.owe(owed[i+1:]...)
			break
		}
		paid++
	}
	return paid, unreturned
}

// GiveIdle gives back the segments that have been idle for long enough, and the spare ones that are too many.
func (f *Log) GiveIdle(ctx context.Context) {
	for ctx.Err() == nil {
		s := f.takeSurplus()
		if s == nil {
			s = f.takeIdle(true)
		}
		if s == nil {
			return
		}
		f.GiveBack(ctx, s)
	}
}

// Close gives back all borrowed segments, when nothing refers to them any more. If the store is a Keeper, it leaves
// the segments that outlive the heap.
func (f *Log) Close(ctx context.Context) error {
	var errs []error
	free := func(s store.Segment) { errs = append(errs, s.Free(ctx)) }
	for _, s := range f.paged {
		free(s)
	}
	for s := f.TakeSpare(false); s != nil; s = f.TakeSpare(false) {
		free(s)
	}
	for s := f.takeIdle(false); s != nil; s = f.takeIdle(false) {
		free(s)
	}
	for s := f.TakeReserved(0); s != nil; s = f.TakeReserved(0) {
		free(s)
	}
	for _, d := range f.takeOwed() {
		free(d.seg)
	}
	f.All(func(s *Segment) {
		if !s.Gone() && !f.Keeps() {
			free(s.Seg)
		}
	})
	return errors.Join(errs...)
}

func (f *Log) owe(debts ...debt) {
	f.mu.Lock()
	f.owed = append(f.owed, debts...)
	f.mu.Unlock()
}

// takeOwed returns the segments that are to be offered back again, without
// those that have been lost.
func (f *Log) takeOwed() []debt {
	f.mu.Lock()
	defer f.mu.Unlock()
	owed := f.owed
	f.owed = nil
	return slices.DeleteFunc(owed, func(d debt) bool { return store.Gone(d.seg) })
}

// idle is a segment in which nothing lives any more. It is kept for IdleFor, so that there is memory for new records
// that the store need not clear and hand over again. GiveIdle leaves at most half as many idle segments as are in
// use.
type idle struct {
	seg   store.Segment
	since time.Time
}

// IdleFor is how long a segment is idle before it is given back.
const IdleFor = 500 * time.Millisecond

// takeIdle returns the segment that became idle last, or nil. With old set, it returns the one that became idle
// first, if it has been idle for IdleFor or there are too many idle segments.
func (f *Log) takeIdle(old bool) store.Segment {
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
		if !store.Gone(s.seg) {
			return s.seg
		}
	}
	return nil
}

// takeSurplus returns a spare segment that is no longer needed, since fewer segments are in use or fewer are to be
// kept for pages; or nil.
func (f *Log) takeSurplus() store.Segment {
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
