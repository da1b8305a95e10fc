package copies

import (
	"context"
	"errors"
	"sync"
	"time"

	"polder/far/store"
	"polder/internal/turns"
)

// A read that is late is made again at another copy. Each read earns a part of such a second read.
const (
	tokenCost   = 100
	tokenEarned = 5 // one second read for 20 reads
	maxTokens   = 64 * tokenCost
	lateFactor  = 8                      // a read is late when it takes so many times what reads at its place take,
	leastLate   = 500 * time.Microsecond // but not before this
)

// pick chooses the copy of g to be read, which must have the bytes up to end. It leaves out places whose bits are set
// in tried. It prefers places that can be used, then those without Every, then the fastest; of places of similar
// speed, the segment's number decides which.
func (g *segment) pick(tried uint64, end int) (best copyOf, ok bool) {
	x := g.spare.Load() // before the copies: the spare copy may become one of them
	cs := *g.copies.Load()
	const useless, every = 1 << 62, 1 << 60
	var least int64
	n := uint64(len(cs))
	// A reader that does not know how long something is reads beyond the end.
	if end != counting && x.has(min(end, int(g.end.Load()))) {
		n++
	}
	for i := range n {
		var c copyOf
		if k := (i + g.number) % n; k < uint64(len(cs)) {
			c = cs[k]
		} else {
			c = x.copyOf
		}
		if tried&(1<<c.place.index) != 0 {
			continue
		}
		cost := c.place.pace.Load()
		if !c.place.usable() {
			cost += useless
		}
		if c.place.Every {
			cost += every
		}
		if !ok || cost < least-least/2 {
			best, least, ok = c, cost, true
		}
	}
	return best, ok
}

// readCall is what a call of Read needs, to be reused.
type readCall struct {
	batch []store.ReadOp // what a place is to read
	of    []int          // the index of each of these in the ops of the call
	from  []copyOf       // for each op, the copy that is read
}

var readCalls = sync.Pool{New: func() any { return new(readCall) }}

// Read implements store.Store.
func (s *Store) Read(ctx context.Context, ops []store.ReadOp) {
	s.used.Store(s.proc.Now().UnixNano())
	s.read(ctx, ops)
}

// read is Read without noting that the store is in use: repairs call it, too.
func (s *Store) read(ctx context.Context, ops []store.ReadOp) {
	if s.tokens.Load() < maxTokens {
		s.tokens.Add(tokenEarned)
	}
	c := readCalls.Get().(*readCall)
	defer readCalls.Put(c)
	if s.readRound(ctx, c, ops, nil, true) {
		return // fast path
	}
	// The ops that failed are read from other copies, as long as there are any.
	tried := make([]uint64, len(ops))
	for ctx.Err() == nil {
		var todo []store.ReadOp
		var masks []uint64
		var of []int
		for i := range ops {
			if ops[i].Err == nil {
				continue
			}
			g := ops[i].Seg.(*segment)
			g.look()
			if p := c.from[i].place; p != nil {
				tried[i] |= 1 << p.index
			}
			if _, ok := g.pick(tried[i], countOf(&ops[i])); ok {
				todo, masks, of = append(todo, ops[i]), append(masks, tried[i]), append(of, i)
			}
		}
		if len(todo) == 0 {
			return
		}
		again := new(readCall)
		s.readRound(ctx, again, todo, masks, false)
		for k, i := range of {
			if again.from[k].place != nil { // otherwise the error of the copy before says more
				ops[i].Err, c.from[i] = todo[k].Err, again.from[k]
			}
		}
	}
}

// errNoCopy: there is no other copy that could be read.
var errNoCopy = errors.New("no copy is left to be read")

// readRound reads each op from one copy, and reports whether all reads have succeeded. It leaves out the places in
// tried[i] for ops[i]; tried may be nil. It sets c.from to the copies that were read, without a place where there was
// none left: a copy may go at any time, also after pick has found one.
func (s *Store) readRound(ctx context.Context, c *readCall, ops []store.ReadOp, tried []uint64, hedged bool) bool {
	c.from = c.from[:0]
	same := true
	for i := range ops {
		var mask uint64
		if tried != nil {
			mask = tried[i]
		}
		from, ok := ops[i].Seg.(*segment).pick(mask, countOf(&ops[i]))
		if !ok {
			ops[i].Err = errNoCopy
		}
		c.from = append(c.from, from)
		same = same && ok && from.place == c.from[0].place
	}
	if same {
		return s.readAt(ctx, c, ops, 0, hedged)
	}
	var wg turns.Group
	var done uint64
	for i := range ops {
		p := c.from[i].place
		if p == nil || done&(1<<p.index) != 0 {
			continue
		}
		done |= 1 << p.index
		wg.Go(s.proc, func() { s.readAt(ctx, &readCall{from: c.from}, ops, i, hedged) })
	}
	wg.Wait(s.proc)
	for i := range ops {
		if ops[i].Err != nil {
			return false
		}
	}
	return true
}

// readAt reads the ops whose copies in c.from are at the same place as that of ops[first], which is the first of
// these ops. If hedged is set and they are late, it reads other copies as well. It reports whether all reads have
// succeeded.
func (s *Store) readAt(ctx context.Context, c *readCall, ops []store.ReadOp, first int, hedged bool) bool {
	p := c.from[first].place
	c.batch, c.of = c.batch[:0], c.of[:0]
	for i := first; i < len(ops); i++ {
		if c.from[i].place == p {
			op := ops[i]
			op.Seg, op.Err = c.from[i].seg, nil
			c.batch, c.of = append(c.batch, op), append(c.of, i)
		}
	}
	began := s.proc.Now()
	var h *second
	if hedged {
		var cancel context.CancelFunc
		outer := ctx
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		h = &second{store: s, place: p, seg: c.from[first].seg, ctx: outer, ops: ops, of: c.of, began: began, cancelFirst: cancel}
		h.begin()
	}
	p.Store.Read(ctx, c.batch)
	ok := true
	for k, i := range c.of {
		err := c.batch[k].Err
		ops[i].Err = err
		ok = ok && err == nil
	}
	if ok && !c.batch[0].Bulk {
		p.answered(s.proc.Since(began))
	} else if ok {
		p.answered(0)
	}
	if h != nil {
		ok = h.end(ok)
	}
	clear(c.batch)
	return ok
}

// second watches a read at one place, and makes it at other copies as well if it is late.
type second struct {
	store       *Store
	place       *place        // where the first read is made
	seg         store.Segment // a copy at that place
	ctx         context.Context
	ops         []store.ReadOp
	of          []int // indices of the read's ops in ops
	began       time.Time
	cancelFirst context.CancelFunc

	mu     sync.Mutex
	timer  *turns.Timer
	over   bool               // the first read has come back; guarded by mu
	cancel context.CancelFunc // of the second read, if it is under way; guarded by mu
	done   chan struct{}      // closed when the second read has ended
	got    []store.ReadOp     // set before done is closed: what the second read has brought, or nil
}

// begin sets the timer that makes the second read when the first is late.
func (h *second) begin() {
	late := h.store.cfg.Late
	if pace := time.Duration(h.place.pace.Load()); pace > 0 && !h.ops[h.of[0]].Bulk {
		late = min(late, max(leastLate, lateFactor*pace))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timer = h.store.proc.AfterFunc(late, h.fire)
}

// end is called when the first read has come back; ok is whether it has succeeded. If it has failed and the second
// read is under way, end waits for that and uses its bytes. It reports whether the ops have what they should.
func (h *second) end(ok bool) bool {
	h.mu.Lock()
	h.over = true
	h.timer.Stop()
	if h.cancel == nil { // fast path
		h.mu.Unlock()
		return ok
	}
	if ok {
		h.cancel()
		h.mu.Unlock()
		return true
	}
	h.mu.Unlock()
	h.store.proc.Wait(nil, h.done)
	if h.got == nil {
		return false
	}
	h.store.counts.secondsUsed.Add(1)
	for k, i := range h.of {
		op := &h.ops[i]
		if op.Err != nil {
			copy(op.Buf, h.got[k].Buf)
			op.Err = nil
		}
	}
	return true
}

// fire is called when the first read is late.
func (h *second) fire() {
	s, took := h.store, h.store.proc.Since(h.began)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		return
	}
	// A place that has answered nobody since the read began may be gone. It counts as gone if the second read, at
	// other places, succeeds.
	gone := took >= s.cfg.Late && h.place.heard.Load() < h.began.UnixNano()
	got := make([]store.ReadOp, len(h.of))
	tried := make([]uint64, len(h.of))
	for k, i := range h.of {
		op := &h.ops[i]
		tried[k] = 1 << h.place.index
		if c, ok := op.Seg.(*segment).pick(tried[k], countOf(op)); !ok || !c.place.usable() {
			h.again(took)
			return
		}
		got[k] = store.ReadOp{Seg: op.Seg, Off: op.Off, Buf: make([]byte, len(op.Buf)), Bulk: op.Bulk}
	}
	if !gone && !s.takeToken() {
		h.again(took)
		return
	}
	s.counts.seconds.Add(1)
	ctx, cancel := context.WithCancel(h.ctx)
	h.cancel, h.done = cancel, make(chan struct{})
	s.wg.Go(s.proc, func() {
		defer close(h.done)
		defer cancel()
		if s.readRound(ctx, new(readCall), got, tried, false) {
			h.got = got
			if gone {
				h.place.fallSilent(h.began, h.seg)
			}
			h.cancelFirst()
		}
	})
}

// again sets the timer so that fire is called once more. h.mu must be held.
func (h *second) again(took time.Duration) {
	h.timer.Reset(max(took, h.store.cfg.Late-took, leastLate))
}

func (s *Store) takeToken() bool {
	if s.tokens.Add(-tokenCost) >= 0 {
		return true
	}
	s.tokens.Add(tokenCost)
	return false
}

// Reread implements store.Mirror. It looks at all copies, since it does not know which one was read.
func (s *Store) Reread(ctx context.Context, op store.ReadOp, good func() bool) bool {
	g := op.Seg.(*segment)
	r := g.reread(ctx, *g.copies.Load(), op, good)
	if len(r.bad) > 0 && (r.right != nil || len(r.unreadable) > 0 || g.isAway()) {
		g.suspect() // the others may be bad elsewhere, or those that cannot be read now may be needed
	}
	if r.right == nil {
		return false
	}
	copy(op.Buf, r.right)
	return good() // good may change op.Buf: the caller gets what good makes of it
}

// reread is what was found out about some bytes of a segment.
type reread struct {
	right      []byte   // the bytes, if some copy is good
	bad        []copyOf // copies that have other bytes
	unreadable []copyOf
}

// reread reads the copies cs of g, and its spare copy, one after the other into op.Buf, and calls good after each. It
// lets go of a spare copy that is bad if there is a good copy.
func (g *segment) reread(ctx context.Context, cs []copyOf, op store.ReadOp, good func() bool) (r reread) {
	got := make([]byte, len(op.Buf)) // good may change what it looks at
	looks := func(c copyOf) (read, ok bool) {
		one := [1]store.ReadOp{{Seg: c.seg, Off: op.Off, Buf: got}}
		if c.place.Store.Read(ctx, one[:]); one[0].Err != nil {
			return false, false
		}
		copy(op.Buf, got)
		if ok = good(); ok {
			r.right = append(r.right[:0], got...)
		}
		return true, ok
	}
	for _, c := range cs {
		switch read, ok := looks(c); {
		case !read:
			r.unreadable = append(r.unreadable, c)
		case !ok:
			r.bad = append(r.bad, c)
		}
	}
	if x := g.spare.Load(); x.has(min(op.Off+len(op.Buf), int(g.end.Load()))) {
		if read, ok := looks(x.copyOf); read && !ok && r.right != nil && g.take(x) {
			g.store.counts.vanished.Add(1) // the place has not said so yet
			x.place.giveBackLater(x.seg)
		}
	}
	return r
}
