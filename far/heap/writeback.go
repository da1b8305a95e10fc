package heap

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"

	"polder/far/object"
	"polder/far/record"
)

// backing is a request to write back what is local and has no far copy.
type backing struct {
	scoped bool // records that scopes keep in place, too
	done   chan error
	err    error // why some could not be written

	segs    []int // segments of locked records that are left
	objects []int // segments of scoped records that are left
	new     bool  // neither segs nor objects is known yet

	writing  bool // a segment is being written just now
	reserved bool // what is written goes to the reserve
}

// failed notes that writing has failed, unless err is nil.
func (b *backing) failed(err error) { b.err = cmp.Or(b.err, err) }

// saves reports whether something is being written back, before a checkpoint, in a store that is full. The room that
// the store has is for that: nothing else is evacuated until it has been done.
func (h *Heap) saves() bool {
	return h.backing != nil && (h.backing.reserved || h.limited.Load() || errors.Is(h.Far.err, ErrStoreFull))
}

// WriteBack writes the locked records that have no far copy, and with scoped set also the records that scopes keep in
// place. They stay local, except scoped records for which there is no room to be moved. A record that changes
// meanwhile may be written or not; a record that a scope has in use is not.
func (h *Heap) WriteBack(ctx context.Context, scoped bool) error {
	b := &backing{done: make(chan error, 1), new: true, scoped: scoped}
	return ask(ctx, h, h.backs, b, b.done)
}

// ask sends what to the evacuator, and waits for the answer.
func ask[T any](ctx context.Context, h *Heap, to chan<- T, what T, answer <-chan error) error {
	for {
		select {
		case to <- what:
			to = nil
		case err := <-answer:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-h.Ctx.Done():
			return ErrClosed
		}
	}
}

// pause asks the evacuator to do nothing: it closes began when it has stopped, and goes on when over is closed.
type pause struct {
	began chan error
	over  chan struct{}
}

// Pause stops the evacuator until resume is called. It returns when the evacuator has stopped: then no record moves,
// and no write to the store is begun or settled. Nobody can wait for local memory until resume; above all, the caller
// must not.
func (h *Heap) Pause(ctx context.Context) (resume func(), err error) {
	p := &pause{make(chan error), make(chan struct{})}
	resume = func() { close(p.over) }
	if err := ask(ctx, h, h.pauses, p, p.began); err != nil {
		resume()
		return nil, err
	}
	return resume, nil
}

// Dirty is how many bytes of locked records in local memory have no far copy. It is the least that there were of late.
func (h *Heap) Dirty() (n int64) {
	l := &h.Logs
	l.Mu.Lock()
	defer l.Mu.Unlock()
	for i := range l.Segs[:l.top] {
		if s := &l.Segs[i]; s.Kind == Locked {
			n += max(s.Live.Load()-s.Clean.Load(), 0)
		}
	}
	return n
}

// sealAll hands the open segments to the evacuator: those of locked records, and with scoped set all. It reports
// whether there were any.
func (l *Logs) sealAll(scoped bool) (some bool) {
	seal := func(ol *OpenLog) {
		ol.Mu.Lock()
		some = some || ol.Seg >= 0
		l.Seal(ol)
		ol.Mu.Unlock()
	}
	for _, ols := range [][]OpenLog{l.Open, l.Objects, l.Streams} {
		for i := range ols {
			if scoped || ols[i].Kind == Locked {
				seal(&ols[i])
			}
		}
	}
	seal(&l.Shrunk)
	seal(&l.kept[0])
	if scoped {
		seal(&l.kept[1])
	}
	return some
}

// allOpen reports whether no segment in which something lives is sealed: with little memory, all that could go may lie
// in open ones.
func (l *Logs) allOpen() bool {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	for i := range l.Segs[:l.top] {
		if l.Segs[i].sealed {
			return false
		}
	}
	return true
}

// writeSome does some of what WriteBack asks for, and has the evacuator come back for the rest.
func (h *Heap) writeSome() {
	b, l := h.backing, &h.Logs
	if b == nil {
		return
	}
	if b.new {
		b.new = false
		h.listDirty(b)
	}
	switch n := len(b.segs) - 1; {
	case b.err != nil:
	case n >= 0:
		s := b.segs[n]
		b.segs = b.segs[:n]
		b.failed(h.writeBack(s, &h.entries))
		l.Wake()
		return
	case h.writeObjects():
		return
	}
	if b.err == nil {
		h.closeFar() // so that there is nothing behind what counts
		h.Drain()
		l.Stir() // what has a far copy now may go
	}
	b.done <- b.err
	h.backing = nil
	l.Wake() // for those who waited meanwhile
}

// listDirty finds the segments in which something has no far copy.
func (h *Heap) listDirty(b *backing) {
	l := &h.Logs
	l.Mu.Lock()
	defer l.Mu.Unlock()
	for i := range l.Segs[:l.top] {
		switch s := &l.Segs[i]; {
		case !s.sealed:
		case s.Kind == Locked && s.Live.Load() > s.Clean.Load():
			b.segs = append(b.segs, i)
		case s.Kind.scoped() && b.scoped && s.Live.Load() > 0:
			b.objects = append(b.objects, i)
		}
	}
}

// hasDirty reports whether an object in segment s has no far copy.
func (l *Logs) hasDirty(s int) (some bool) {
	l.walk(s, func(r Local, _ uint16) bool {
		some = object.TailFar(atomic.LoadUint64(object.Object(r.Mem).Tail())) == 0
		return !some
	})
	return some
}

// writeObjects does some of what WriteBack asks for, with the records that scopes keep in place: it marks objects,
// and writes them when the scopes that were open then have been left. It reports whether the evacuator has to come
// back for the rest.
func (h *Heap) writeObjects() bool {
	ps, l := &h.Pass, &h.Logs
	if ps.active() {
		if !h.passReady() {
			return true // see RetryIn
		}
		h.finishPass()
	}
	b := h.backing
	ps.segs = ps.segs[:0]
	for len(b.objects) > 0 && len(ps.segs) < passSegments && b.err == nil {
		n := len(b.objects) - 1
		s := b.objects[n]
		b.objects = b.objects[:n]
		l.Mu.Lock()
		ok := l.Segs[s].sealed && l.Segs[s].Kind.scoped()
		l.Mu.Unlock()
		if ok && l.hasDirty(s) { // it has not been emptied meanwhile
			ps.segs = append(ps.segs, s)
		}
	}
	if len(ps.segs) == 0 {
		return false
	}
	h.mark(writeBack)
	l.Wake()
	return true
}

// writeBack writes the records of segment s that have no far copy.
func (h *Heap) writeBack(s int, ev *Evacuation) error {
	l := &h.Logs
	seg := &l.Segs[s]
	l.Mu.Lock()
	ok := seg.sealed && seg.Kind.scoped() == (ev == &h.Pass.Ev)
	l.Mu.Unlock()
	if !ok {
		return nil // it is being emptied, or was
	}
	h.backing.writing = true
	defer func() { h.backing.writing = false }()
	ev.what, ev.seg = writeBack, seg
	fails := h.Far.fails
	var err error
	l.beginEmptying(seg)
	l.walk(s, func(r Local, id uint16) bool {
		o := h.host.Owner(id)
		for {
			ev.fate, ev.from = fateNone, r.Addr
			o.Evacuate(ev, r)
			switch ev.fate {
			case FateStaged:
				record.Record(ev.to).SetVersion(h.Far.NextVersion())
			case fateFull:
				if h.makeFit(ev.far) {
					continue
				}
				if err = h.Far.err; err == nil {
					err = ErrStoreFull
				}
				return false
			}
			return true
		}
	})
	h.Drain()
	seg.emptying = false
	h.emptied(seg)
	if err == nil && h.Far.fails != fails {
		err = errors.Join(h.Far.failed)
	}
	return err
}
