package heap

import (
	"cmp"
	"context"
	"errors"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"polder/internal/failpoint"
)

// While memory is scarce, scopes are let in by turns: enough segments are set aside for all scopes that are in to
// take what they may, and the others queue.

// reserveForScopes sets aside as many segments as all scopes may take at the same time. Where that is too much, it
// sets aside fewer, and has scopes admitted: only as many are in as those segments are enough for.
func (h *Heap) reserveForScopes() {
	sc, l := &h.Scopes, &h.Logs
	sc.Mu.Lock()
	l.Mu.Lock()
	want := 0
	n := len(sc.all)
	if h.scoped.Load() {
		n = max(n, 1) // so that what is far can be read when all else is full
	}
	if n > 0 {
		want = l.edges() + (n*sc.most+l.SegSize-1)/l.SegSize
		l.apart = 1
	}
	limit := max(int(l.budget)/l.SegSize/8, 1+l.edges())
	if want > limit && !sc.Counted {
		sc.early = true
	}
	sc.Counted = want > limit
	l.scoped = min(want, limit)
	sc.limit = (limit - l.edges()) * l.SegSize
	sc.most = min(sc.most, sc.limit)
	sc.target = int64(sc.most)
	l.aim()
	l.assess()
	sc.Flag()
	l.Mu.Unlock()
	sc.Mu.Unlock()
	l.Wake()
}

// UseScopes has some memory kept in reserve for scopes although there may be no scope yet: from now on there is
// something that only scopes can read.
func (h *Heap) UseScopes() {
	h.scoped.Store(true)
	h.reserveForScopes()
}

// crowd hears from the logs whether memory is scarce. Logs.Mu must be held.
func (sc *scopes) crowd(scarce bool) {
	sc.scarce = scarce
	sc.Flag()
}

// Flag sets or clears epochScarce, and sets allowance to target if the reserve is enough for that. Logs.Mu must be
// held.
func (sc *scopes) Flag() {
	if sc.target > 0 && (sc.target < sc.allowance.Load() || !sc.scarce && !sc.Counted) {
		sc.allowance.Store(sc.target)
	}
	if sc.scarce || sc.Counted || !sc.Fenced {
		atomic.OrInt64(&sc.epoch, epochScarce)
	} else {
		atomic.AndInt64(&sc.epoch, ^epochScarce)
	}
}

// admitFor bounds how long Enter waits for the evacuator.
const admitFor = 5 * time.Second

// admit returns when there is memory for one more scope, or when there will be none soon. Then s is entered all the
// same: it can use what is local, but takes nothing of what is kept in reserve for other scopes.
func (h *Heap) admit(s *Scope) {
	if !failpoint.Without("far.admission") && !h.admitted(s) {
		s.setExtra(scopeUnadmitted)
	}
}

func (h *Heap) admitted(s *Scope) bool {
	ok, t := h.TryAdmit(s, nil)
	if ok {
		return true
	}
	if h.isEvacuator() {
		h.Scopes.giveUp(t)
		return false
	}
	ctx, cancel := context.WithTimeout(s.held.Ctx, admitFor)
	defer cancel()
	defer context.AfterFunc(h.Ctx, cancel)() // nobody waits for a closed heap
	wait := patience                         // then look whether this goroutine holds a scope that is waited for
	self := time.NewTimer(wait)
	defer self.Stop()
	for try := 0; !ok && h.Logs.Why() == nil; try++ {
		if t.queued {
			select {
			case <-t.Called:
				ok, t = h.TryAdmit(s, t)
				continue
			case <-self.C:
				if !h.isHeldUpHere() {
					wait = min(2*wait, mostPatience)
					self.Reset(wait)
					continue
				}
			case <-ctx.Done():
			}
			break
		}
		err := h.WaitRoom(ctx)
		if try < fullTries && errors.Is(err, ErrFull) {
			h.Logs.retry() // the reserve may be whole all the same
		} else if err != nil {
			break
		}
		if ok, t = h.TryAdmit(s, t); ok || t.queued {
			continue
		}
		// Scopes that were entered earlier have to be left; nobody tells when they are.
		select {
		case <-time.After(minPoll):
			continue
		case <-ctx.Done():
		}
		break
	}
	if !ok {
		h.Scopes.giveUp(t)
	}
	return ok
}

// Ticket is the place of somebody who waits to enter a scope. A queued ticket waits in the queue for another scope to
// be left. A ticket whose turn has come is before everybody who is in the queue, and waits for the evacuator.
type Ticket struct {
	number uint64
	Called chan struct{} // is sent to when the turn has come
	queued bool          // as TryAdmit left it; the waiter's
}

// TryAdmit lets s in if memory suffices for s beside all scopes that may be open. If not, it returns a ticket, with
// which the caller has to try again or give up. If the ticket is queued, the caller tries again when it is called. t
// is the ticket of an earlier try, or nil.
func (h *Heap) TryAdmit(s *Scope, t *Ticket) (ok bool, wait *Ticket) {
	sc, l := &h.Scopes, &h.Logs
	sc.Mu.Lock()
	defer sc.Mu.Unlock()
	overtakes := t == nil && sc.called+len(sc.Queue) > 0 && sc.called+sc.admitted > 0
	if t != nil {
		sc.called--
	}
	l.Mu.Lock()
	counted, whole := sc.Counted, l.available() >= l.keep(ForMutator)
	free := (l.available() - l.keep(ForScope) - l.edges()) * l.SegSize
	l.Mu.Unlock()
	if counted {
		free -= sc.earlier()
	}
	switch {
	case !counted:
		sc.next()
		if whole {
			return true, nil
		}
	// What is free beyond the limit is anybody's.
	case !overtakes && min(free, sc.limit-sc.earlier()) >= (sc.admitted+1)*sc.most:
		sc.admitted++
		s.share = sc.most
		s.setExtra(ScopeCounted)
		sc.next() // there may be room for another one
		return true, nil
	}
	if t == nil {
		sc.tickets++
		t = &Ticket{number: sc.tickets, Called: make(chan struct{}, 1)}
	}
	if t.queued = counted && (overtakes || sc.admitted > 0); t.queued {
		i, _ := slices.BinarySearchFunc(sc.Queue, t.number, func(t *Ticket, n uint64) int { return cmp.Compare(t.number, n) })
		sc.Queue = slices.Insert(sc.Queue, i, t)
	} else {
		sc.called++
	}
	return false, t
}

// earlier is how many bytes of the reserve the open scopes may take that were entered before scopes had to be
// admitted. sc.Mu must be held.
func (sc *scopes) earlier() int {
	if !sc.early {
		return 0
	}
	n := 0
	for _, s := range sc.all {
		if atomic.LoadInt64(&s.open) != 0 && atomic.LoadUint32(&s.extra)&(ScopeCounted|scopeUnadmitted) == 0 {
			n++
		}
	}
	sc.early = n > 0
	return n * int(sc.allowance.Load())
}

// promised is how many bytes of the reserve the scopes that were let in may take; 0 unless scopes have to be
// admitted. sc.Mu must be held.
func (sc *scopes) promised() int {
	if !sc.Counted {
		return 0
	}
	return sc.admitted*sc.most + sc.earlier()
}

// entitled reports whether what s has taken is its own share of the reserve.
func (s *Scope) entitled() bool {
	switch x := atomic.LoadUint32(&s.extra); {
	case s.held.Last || x&scopeUnadmitted != 0:
		return false
	case x&ScopeCounted != 0:
		return s.used <= s.share
	}
	return int64(s.used) <= s.H.Scopes.allowance.Load()
}

// wanted is how many bytes those in the queue are going to take.
func (sc *scopes) wanted() int {
	sc.Mu.Lock()
	defer sc.Mu.Unlock()
	return len(sc.Queue) * sc.most
}

// RoomMade lets those in the queue try, since there is more room.
func (sc *scopes) RoomMade() {
	sc.Mu.Lock()
	defer sc.Mu.Unlock()
	sc.next()
}

// next calls the first in the queue. sc.Mu must be held.
func (sc *scopes) next() {
	if len(sc.Queue) > 0 {
		sc.called++
		sc.Queue[0].Called <- struct{}{}
		sc.Queue = slices.Delete(sc.Queue, 0, 1)
	}
}

// giveUp forgets t. If its turn has come, the turn passes to the next in the queue.
func (sc *scopes) giveUp(t *Ticket) {
	sc.Mu.Lock()
	defer sc.Mu.Unlock()
	if i := slices.Index(sc.Queue, t); i >= 0 {
		sc.Queue = slices.Delete(sc.Queue, i, i+1)
	} else {
		sc.called--
		sc.next()
	}
}

// Dismiss accounts for the leaving of a scope that was admitted.
func (sc *scopes) Dismiss() {
	sc.Mu.Lock()
	sc.admitted--
	sc.next()
	sc.Mu.Unlock()
}

// learn takes note of how many bytes a scope took, so that more is reserved if scopes take more than was thought.
func (h *Heap) learn(used int) {
	sc := &h.Scopes
	sc.Mu.Lock()
	sc.peak = max(sc.peak, used)
	more := used > sc.most && sc.most < sc.limit
	if more {
		// Powers of two, so that it does not change all the time.
		sc.most = min(1<<bits.Len(uint(used-1)), sc.limit)
	}
	sc.Mu.Unlock()
	if more {
		h.reserveForScopes()
	}
}

// decay reduces the reserve for scopes if they no longer take as much.
func (h *Heap) decay() {
	sc := &h.Scopes
	sc.Mu.Lock()
	want := max(sc.least, sc.peak, sc.most/2)
	less := want < sc.most
	if less {
		sc.most = want
	}
	sc.peak = 0
	sc.Mu.Unlock()
	if less {
		h.reserveForScopes()
	}
}
