package copies

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"polder/far/store"
	"polder/internal/turns"
)

// place is what the store knows of a Place.
type place struct {
	Place
	store  *Store
	index  int
	joined time.Time // zero for one that was there from the start

	// silent: it did not answer in time, and has not answered since. Nobody waits for it.
	silent atomic.Bool
	// With Every: until when nothing is borrowed there, since it had no room or failed, in Unix nanoseconds.
	refusal atomic.Int64
	pace    atomic.Int64 // how long a read takes, smoothed, in nanoseconds
	heard   atomic.Int64 // when it last answered, in Unix nanoseconds
	copies  atomic.Int64
	late    atomic.Int64 // how often it was late
	givenUp atomic.Bool  // it has not been usable for Config.RepairAfter: its copies count as lost
	pinging atomic.Bool
	paying  atomic.Bool
	stale   atomic.Bool // it may have segments that an earlier process borrowed and nobody has reopened
	pruning atomic.Bool
	awaited atomic.Int64 // copies that could not be reached when their segments were reopened, and are waited for
	// It could not be reached when a segment was reopened, and somebody may reopen the segment by that name again.
	missed atomic.Bool

	mu      sync.Mutex
	useless time.Time       // since when it has not been usable, or zero; guarded by mu
	owed    []store.Segment // segments to be given back when it answers again; guarded by mu
	known   store.Segment   // a copy that it had when it fell silent; guarded by mu
}

func newPlace(s *Store, p Place, index int) *place {
	return &place{Place: p, store: s, index: index}
}

const (
	// refusalTime is how long nothing is borrowed at a place with Every after it has had no room or failed.
	refusalTime = 5 * time.Second
	// lateEvery is how long a write may take at such a place, if all other copies have been written.
	lateEvery = 250 * time.Millisecond
	// lateFull is how long a copy may be behind where the places have little room left: see Store.patience.
	lateFull = 500 * time.Millisecond
)

// refused notes that p has no room, or has failed.
func (p *place) refused() { p.refusal.Store(p.store.proc.Now().Add(refusalTime).UnixNano()) }

// isFull reports whether p has had no room, or has failed, within refusalTime.
func (p *place) isFull() bool {
	until := p.refusal.Load()
	return until != 0 && p.store.proc.Now().UnixNano() < until
}

// zone names what fails together with p: its Zone, or if it has none, p alone.
func (p *place) zone() string {
	if p.Zone != nil {
		if z := p.Zone(); z != "" {
			return "zone " + z
		}
	}
	return p.Name
}

// state is what p says of itself.
func (p *place) state() State {
	if p.State == nil {
		return State{Usable: true, Space: math.MaxInt64}
	}
	return p.State()
}

// stays reports whether p can keep what it has: it is neither given up nor leaving.
func (p *place) stays() bool { return !p.givenUp.Load() && !p.state().Leaving }

// usable reports whether there is a point in asking p for something.
func (p *place) usable() bool {
	return !p.silent.Load() && p.state().Usable
}

func (p *place) segments() int { return int(p.copies.Load()) }

// answered notes that p has answered: a read that took the time took or, if took is 0, something whose time says
// nothing of its pace.
func (p *place) answered(took time.Duration) {
	p.heard.Store(p.store.proc.Now().UnixNano())
	if took <= 0 {
		return
	}
	was := p.pace.Load()
	if was == 0 {
		p.pace.Store(int64(took))
		return
	}
	p.pace.Store(was + (int64(took)-was)/8)
}

// fallSilent notes that p has not answered a call that began at since; seg is the copy that was asked for, or nil. p
// becomes silent only if another place has answered since then: if none has, it is rather this process that was held
// up.
func (p *place) fallSilent(since time.Time, seg store.Segment) {
	p.late.Add(1)
	at := since.UnixNano()
	others := slices.ContainsFunc(p.store.all(), func(o *place) bool { return o != p && o.heard.Load() > at })
	if p.heard.Load() > at || !others || p.silent.Swap(true) {
		return // p is slow, but has answered another call; or no place has answered; or p is silent already
	}
	p.mu.Lock()
	p.known = seg
	p.mu.Unlock()
	p.store.log.Warn("a place does not answer", "place", p.Name)
	p.store.wake()
}

// A silent place is asked again and again whether it answers, for up to pingFor each time.
const pingFor = time.Second

// ping asks p, if it is silent, for something small.
func (p *place) ping(ctx context.Context) {
	if !p.silent.Load() || p.pinging.Swap(true) {
		return
	}
	p.store.wg.Go(p.store.proc, func() {
		defer p.pinging.Store(false)
		ctx, cancel := p.store.proc.WithTimeout(ctx, pingFor)
		defer cancel()
		p.mu.Lock()
		seg := p.known
		p.mu.Unlock()
		if !p.state().Usable {
			return
		}
		if seg != nil && !(copyOf{p, seg}).lost() {
			op := [1]store.ReadOp{{Seg: seg, Buf: make([]byte, 8)}}
			if p.Store.Read(ctx, op[:]); op[0].Err == nil {
				p.speaks()
				return
			}
			if ctx.Err() != nil {
				return
			}
		}
		// There is no copy that could be read there any more.
		if seg, err := p.Store.Alloc(ctx); err == nil {
			p.copies.Add(1)
			p.giveBack(seg)
			p.speaks()
		} else if errors.Is(err, store.ErrStoreFull) {
			p.speaks()
		}
	})
}

func (p *place) speaks() {
	p.answered(0)
	if p.silent.Swap(false) {
		p.store.log.Info("a place answers again", "place", p.Name)
		p.store.wake()
	}
}

// patience is the least time that an allocation may take before its place counts as silent.
const patience = 100 * time.Millisecond

// alloc borrows a segment of p. If p takes too long, alloc calls fallSilent and cancels the call to p.
func (p *place) alloc(ctx context.Context) (store.Segment, error) {
	type answer struct {
		seg store.Segment
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	proc := p.store.proc
	began, answers := proc.Now(), make(chan answer, 1)
	proc.Go(func() {
		seg, err := p.Store.Alloc(ctx)
		answers <- answer{seg, err}
	})
	timer := proc.NewTimer(max(patience, p.store.cfg.Late))
	defer timer.Stop()
	a, ok := turns.Recv(proc, answers, timer)
	if !ok {
		p.fallSilent(began, nil)
		cancel()
		a, _ = turns.Recv(proc, answers, nil)
	}
	if a.err == nil {
		p.copies.Add(1)
		p.answered(0)
	}
	return a.seg, a.err
}

// giveBack gives a copy back, now or when p answers again.
func (p *place) giveBack(seg store.Segment) {
	p.copies.Add(-1)
	if (copyOf{p, seg}).lost() {
		return
	}
	if !p.usable() {
		p.owe(seg)
		return
	}
	done := make(chan struct{})
	p.store.wg.Go(p.store.proc, func() {
		defer close(done)
		if seg.Free(p.store.ctx) != nil {
			p.owe(seg)
		}
	})
	timer := p.store.proc.NewTimer(p.store.cfg.Late)
	defer timer.Stop()
	p.store.proc.Wait(timer, done) // there is no need to wait longer
}

// giveBackLater is giveBack for callers that cannot wait at all.
func (p *place) giveBackLater(seg store.Segment) {
	p.copies.Add(-1)
	p.owe(seg)
}

// owe notes segments that p is to be given back.
func (p *place) owe(segs ...store.Segment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.owed = append(p.owed, segs...)
}

// settleDebts gives back what p is owed, if it answers.
func (p *place) settleDebts(ctx context.Context) {
	p.mu.Lock()
	n := len(p.owed)
	p.mu.Unlock()
	if n == 0 || !p.usable() || p.paying.Swap(true) {
		return
	}
	p.store.wg.Go(p.store.proc, func() {
		defer p.paying.Store(false)
		p.payBack(ctx)
	})
}

func (p *place) payBack(ctx context.Context) {
	p.mu.Lock()
	owed := p.owed
	p.owed = nil
	p.mu.Unlock()
	for i, seg := range owed {
		if (copyOf{p, seg}).lost() {
			continue
		}
		if !p.usable() || seg.Free(ctx) != nil {
			p.owe(owed[i:]...)
			return
		}
	}
}

// given reports whether p has been unusable for at least after, so that its copies count as lost. It notes since when
// p has been unusable, so keep calls it again and again.
func (p *place) given(now time.Time, after time.Duration) bool {
	ok := p.usable()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case ok:
		p.useless = time.Time{}
	case p.useless.IsZero():
		p.useless = now
	}
	return !ok && now.Sub(p.useless) >= after
}
