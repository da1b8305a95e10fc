package farlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"polder/far/store"
)

// What dies is given back to the store, unless something is to be gained by keeping it: see Drop.

// Drop forgets a dead segment and gives it back to the store, or keeps it as
// a spare one or as an idle one. It fails if the store did not take it back.
func (f *Log) Drop(ctx context.Context, s *Segment) error {
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
	again := !gone && !s.Worn.Load()
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
	return f.GiveBack(ctx, s.Seg)
}

// Forsake takes a segment for lost that the store still has: all was moved that could be found
// in it, and yet something counts as live. Either owners have lost sight of that
// (as the heap's Host.Leaks says), or whoever lends the memory has hidden it, and a word of an owner's still
// refers to it. So the memory can be given back, but not the id, which the next segment
// would be found by: what the word stands for would be counted as dead there, and with it
// another's records, from another lender. It is free when nothing counts as live.
// No more segments are kept like this than there were when owners lost sight of something.
func (s *Segment) Forsake() {
	s.forsaken.Store(true)
	s.lost.Store(true)
}

// MayGo reports whether the memory of s is to be given back now, which it says once: s is
// forsaken, and nobody reads it any more. Since it counts as lost, nobody begins to.
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
	tries int // that failed
}

// maxTries is how often a segment is offered back, a tenth of a second apart:
// a store that hangs needs some time to notice it.
const maxTries = 100

// GiveBack gives a segment back, or else leaves it to PayBack. It fails if it
// has been tried too often.
func (f *Log) GiveBack(ctx context.Context, seg store.Segment) error {
	_, err := f.pay(ctx, debt{seg: seg})
	return err
}

// Discard gives back a segment that is none of the log's any more, or keeps it until the next
// checkpoint if the last one may refer to it.
func (f *Log) Discard(ctx context.Context, seg store.Segment) error {
	f.mu.Lock()
	retained := f.retain(seg)
	f.mu.Unlock()
	if retained {
		return nil
	}
	return f.GiveBack(ctx, seg)
}

// pay is GiveBack of d, and reports whether the store has taken it.
func (f *Log) pay(ctx context.Context, d debt) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, store.Timeout)
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

// PayBack offers the store again what it would not take back, up to the first
// that it still does not take. It returns how many it took, and how many it is not offered any more.
func (f *Log) PayBack(ctx context.Context) (paid, unreturned int) {
	owed := f.takeOwed()
	for i, d := range owed {
		done, err := f.pay(ctx, d)
		if err != nil {
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

// GiveIdle gives back the segments that have been idle for long enough, and spare
// ones that are too many. It returns how many the store did not take.
func (f *Log) GiveIdle(ctx context.Context) (unreturned int) {
	for ctx.Err() == nil {
		s := f.takeSurplus()
		if s == nil {
			s = f.takeIdle(true)
		}
		if s == nil {
			break
		}
		if err := f.GiveBack(ctx, s); err != nil {
			unreturned++
		}
	}
	return unreturned
}

// Close gives back all that is borrowed when nothing refers to it any more; without what outlives the heap,
// if the store is a Keeper.
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

// idle is a segment in which nothing lives any more. It is kept for IdleFor, and
// no more than half as many as are in use: what is written anew finds memory that
// the store need not clear and hand over again.
type idle struct {
	seg   store.Segment
	since time.Time
}

// IdleFor is how long a segment is idle before it is given back.
const IdleFor = 500 * time.Millisecond

// takeIdle returns an idle segment, or nil. With old set it must have been one for
// IdleFor, or one too many.
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

// takeSurplus returns a spare segment of which there is one too many now that
// fewer segments are in use, or nil.
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
