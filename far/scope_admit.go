package far

import (
	"cmp"
	"context"
	"errors"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"
)

// While memory is scarce, scopes are let in by turns: enough segments are set aside
// for all that are in to take what they may, and the others queue.

// reserveForScopes sets aside as many segments as all scopes may take at the
// same time, or, where that is too much, lets only so many in.
func (h *core) reserveForScopes() {
	sc, l := &h.scopes, &h.logs
	sc.mu.Lock()
	l.mu.Lock()
	want := 0
	n := len(sc.all)
	if h.scoped.Load() {
		n = max(n, 1) // so that what is far can be read when all else is full
	}
	if n > 0 {
		want = l.edges() + (n*sc.most+l.segSize-1)/l.segSize
		l.back = reserved + 1
	}
	limit := max(int(l.budget)/l.segSize/8, 1+l.edges())
	if want > limit && !sc.counted {
		sc.early = true
	}
	sc.counted = want > limit
	l.scoped = min(want, limit)
	sc.limit = (limit - l.edges()) * l.segSize
	sc.most = min(sc.most, sc.limit)
	sc.target = int64(sc.most)
	l.aim()
	l.assess()
	sc.flag()
	l.mu.Unlock()
	sc.mu.Unlock()
	l.wake()
}

// useScopes has some memory kept in reserve although there is no scope yet: there is now something
// that only scopes can read.
func (h *core) useScopes() {
	h.scoped.Store(true)
	h.reserveForScopes()
}

// crowd hears from the logs whether memory is scarce. logs.mu must be held.
func (sc *scopes) crowd(scarce bool) {
	sc.scarce = scarce
	sc.flag()
}

// flag sets or clears epochScarce, and sets allowance if the reserve is enough
// for target. logs.mu must be held.
func (sc *scopes) flag() {
	if sc.target > 0 && (sc.target < sc.allowance.Load() || !sc.scarce && !sc.counted) {
		sc.allowance.Store(sc.target)
	}
	if sc.scarce || sc.counted || !sc.fenced {
		atomic.OrInt64(&sc.epoch, epochScarce)
	} else {
		atomic.AndInt64(&sc.epoch, ^epochScarce)
	}
}

// admitFor bounds how long Enter waits for the evacuator.
const admitFor = 5 * time.Second

// admit returns when there is memory for one more scope, or when there will
// be none soon: what is local can be used all the same, but what is kept for
// others is theirs.
func (h *core) admit(s *Scope) {
	if !h.admitted(s) {
		s.setExtra(scopeUnadmitted)
	}
}

func (h *core) admitted(s *Scope) bool {
	ok, t := h.tryAdmit(s, nil)
	if ok {
		return true
	}
	ctx, cancel := context.WithTimeout(s.ctx, admitFor)
	defer cancel()
	defer context.AfterFunc(h.ctx, cancel)() // nobody waits for a closed heap
	self := time.NewTimer(patience)          // then look whether a scope of one's own is waited for
	defer self.Stop()
	for try := 0; !ok && h.logs.why() == nil; try++ {
		if t.queued {
			select {
			case <-t.called:
				ok, t = h.tryAdmit(s, t)
				continue
			case <-self.C:
				if !h.isHeldUpHere() {
					self.Reset(patience)
					continue
				}
			case <-ctx.Done():
			}
			break
		}
		err := h.waitRoom(ctx)
		if try < fullTries && errors.Is(err, ErrFull) {
			h.logs.stir() // the reserve may be whole all the same
		} else if err != nil {
			break
		}
		if ok, t = h.tryAdmit(s, t); ok || t.queued {
			continue
		}
		// Scopes that were entered earlier have to be left, of which nobody
		// tells.
		select {
		case <-time.After(minPoll):
			continue
		case <-ctx.Done():
		}
		break
	}
	if !ok {
		h.scopes.giveUp(t)
	}
	return ok
}

// ticket is the place of one who waits to enter a scope: in the queue, for
// another one to be left, or, when its turn has come, before everybody who is in
// the queue, for the evacuator.
type ticket struct {
	number uint64
	called chan struct{} // is sent to when the turn has come
	queued bool          // as tryAdmit left it; the waiter's
}

// tryAdmit lets s in if memory suffices for all scopes that may be open and s.
// If not, it returns a ticket, with which s has to try again, when it is called if
// it is queued, or to give up. T is the ticket of one who tries again.
func (h *core) tryAdmit(s *Scope, t *ticket) (ok bool, wait *ticket) {
	sc, l := &h.scopes, &h.logs
	sc.mu.Lock()
	defer sc.mu.Unlock()
	overtakes := t == nil && sc.called+len(sc.queue) > 0 && sc.called+sc.admitted > 0
	if t != nil {
		sc.called--
	}
	l.mu.Lock()
	counted, whole := sc.counted, l.available() >= l.keep(forMutator)
	free := (l.available() - l.keep(forScope) - l.edges()) * l.segSize
	l.mu.Unlock()
	if counted {
		free -= sc.earlier()
	}
	switch {
	case !counted:
		sc.next()
		if whole {
			return true, nil
		}
	case !overtakes && free >= (sc.admitted+1)*sc.most:
		sc.admitted++
		s.share = sc.most
		s.setExtra(scopeCounted)
		sc.next() // there may be room for another one
		return true, nil
	}
	if t == nil {
		sc.tickets++
		t = &ticket{number: sc.tickets, called: make(chan struct{}, 1)}
	}
	if t.queued = counted && (overtakes || sc.admitted > 0); t.queued {
		i, _ := slices.BinarySearchFunc(sc.queue, t.number, func(t *ticket, n uint64) int { return cmp.Compare(t.number, n) })
		sc.queue = slices.Insert(sc.queue, i, t)
	} else {
		sc.called++
	}
	return false, t
}

// earlier is what scopes may take that were entered before they had to be
// admitted. sc.mu must be held.
func (sc *scopes) earlier() int {
	if !sc.early {
		return 0
	}
	n := 0
	for _, s := range sc.all {
		if atomic.LoadInt64(&s.open) != 0 && atomic.LoadUint32(&s.extra)&(scopeCounted|scopeUnadmitted) == 0 {
			n++
		}
	}
	sc.early = n > 0
	return n * int(sc.allowance.Load())
}

// entitled reports whether what s has taken is its own share of the reserve.
func (s *Scope) entitled() bool {
	switch x := atomic.LoadUint32(&s.extra); {
	case s.last || x&scopeUnadmitted != 0:
		return false
	case x&scopeCounted != 0:
		return s.used <= s.share
	}
	return int64(s.used) <= s.h.scopes.allowance.Load()
}

// wanted is how much those in the queue are going to take.
func (sc *scopes) wanted() int {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	return len(sc.queue) * sc.most
}

// roomMade lets those in the queue try, since there is more room.
func (sc *scopes) roomMade() {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	sc.next()
}

// next calls the first in the queue. sc.mu must be held.
func (sc *scopes) next() {
	if len(sc.queue) > 0 {
		sc.called++
		sc.queue[0].called <- struct{}{}
		sc.queue = slices.Delete(sc.queue, 0, 1)
	}
}

// giveUp forgets t. If its turn has come, it passes that on.
func (sc *scopes) giveUp(t *ticket) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	if i := slices.Index(sc.queue, t); i >= 0 {
		sc.queue = slices.Delete(sc.queue, i, i+1)
	} else {
		sc.called--
		sc.next()
	}
}

// dismiss accounts for the leaving of a scope that was admitted.
func (sc *scopes) dismiss() {
	sc.mu.Lock()
	sc.admitted--
	sc.next()
	sc.mu.Unlock()
}

// learn takes note of how much a scope took, so that more is reserved if scopes
// take more than was thought.
func (h *core) learn(used int) {
	sc := &h.scopes
	sc.mu.Lock()
	sc.peak = max(sc.peak, used)
	more := used > sc.most && sc.most < sc.limit
	if more {
		// Powers of two, so that it does not change all the time.
		sc.most = min(1<<bits.Len(uint(used-1)), sc.limit)
	}
	sc.mu.Unlock()
	if more {
		h.reserveForScopes()
	}
}

// decay lets go of what is kept for scopes if they no longer take it.
func (h *core) decay() {
	sc := &h.scopes
	sc.mu.Lock()
	want := max(sc.least, sc.peak, sc.most/2)
	less := want < sc.most
	if less {
		sc.most = want
	}
	sc.peak = 0
	sc.mu.Unlock()
	if less {
		h.reserveForScopes()
	}
}
