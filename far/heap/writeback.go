package heap

import (
	"context"
	"errors"

	"polder/far/record"
)

// backing is a request to write back what is local and has no far copy.
type backing struct {
	segs []int // that are left
	done chan error
	new  bool // segs is not known yet

	writing  bool // it is being done just now
	reserved bool // what is written goes to the reserve
}

// saves reports whether the store is full, so that what room it has is for what is written back before a checkpoint: nothing else is evacuated
// until that has been done.
func (h *Heap) saves() bool {
	return h.backing != nil && (h.backing.reserved || h.limited.Load() || errors.Is(h.Far.err, ErrStoreFull))
}

// WriteBack writes the locked records that have no far copy, and leaves them where they are. What changes
// meanwhile may be written or not.
func (h *Heap) WriteBack(ctx context.Context) error {
	b := &backing{done: make(chan error, 1), new: true}
	select {
	case h.backs <- b:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-h.Ctx.Done():
		return ErrClosed
	}
	select {
	case err := <-b.done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-h.Ctx.Done():
		return ErrClosed
	}
}

// Dirty is the bytes of the local records of owners that have no far copy. It is the least that there were of late.
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

// sealAll hands what mutators have open to the evacuator, of locked records.
func (l *Logs) sealAll() {
	seal := func(ol *OpenLog) {
		ol.Mu.Lock()
		l.Seal(ol)
		ol.Mu.Unlock()
	}
	for i := range l.Open {
		seal(&l.Open[i])
	}
	seal(&l.Shrunk)
	seal(&l.kept[0])
}

// writeSome does some of what WriteBack asks for, and has the evacuator come back for the rest.
func (h *Heap) writeSome() {
	b, l := h.backing, &h.Logs
	if b == nil {
		return
	}
	if b.new {
		b.new = false
		l.Mu.Lock()
		for i := range l.Segs[:l.top] {
			if s := &l.Segs[i]; s.sealed && s.Kind == Locked && s.Live.Load() > s.Clean.Load() {
				b.segs = append(b.segs, i)
			}
		}
		l.Mu.Unlock()
	}
	n := len(b.segs) - 1
	if n < 0 {
		h.closeFar() // so that there is nothing behind what counts
		h.Drain()
		l.Stir() // what has a far copy now may go
		b.done <- nil
		h.backing = nil
		l.Wake() // who waited meanwhile
		return
	}
	s := b.segs[n]
	b.segs = b.segs[:n]
	b.writing = true
	err := h.writeBack(s)
	b.writing = false
	if err != nil {
		b.done <- err
		h.backing = nil
		l.Wake()
		return
	}
	l.Wake()
}

// writeBack writes what has no far copy in segment s.
func (h *Heap) writeBack(s int) error {
	l := &h.Logs
	seg := &l.Segs[s]
	l.Mu.Lock()
	ok := seg.sealed && seg.Kind == Locked
	l.Mu.Unlock()
	if !ok {
		return nil // it is being emptied, or was
	}
	ev := &h.entries
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
