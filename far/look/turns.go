package look

import (
	"context"

	"polder/far/ahead"
	"polder/far/farlog"
	"polder/far/heap"
	"polder/far/objects"
	"polder/far/store"
	"polder/internal/offload"
)

// looking is a part of a structure that is being looked at: its far objects by the store, while the next part is
// looked at here.
type looking struct {
	e     *ahead.Engine
	st    *ahead.Structure
	q     offload.Scan
	store store.Computer // nil if it does not compute
	pins  *farlog.Pins
	parts []store.ScanPart // for the store to look at
	bytes int              // of the records of parts

	done chan error  // receives what there (see begin) has returned
	then func() bool // called after that; reports whether to go on
}

// newLooking makes a part of st for which the store is asked q.
func newLooking(e *ahead.Engine, st *ahead.Structure, q *offload.Scan) looking {
	l := looking{e: e, st: st, q: *q, pins: e.Core.Far.NewPins(), done: make(chan error, 1)}
	l.store, _ = e.Core.Far.Store.(store.Computer)
	return l
}

// begin calls here, and then there in a goroutine of its own: one looks at what can be looked at here, the other has
// the store look at the rest. Close waits for both. Unless begin fails, l.done receives what there returns.
func (l *looking) begin(here func() error, there func() error) error {
	core := l.e.Core
	if err := core.Begin(); err != nil {
		return err
	}
	if err := here(); err != nil {
		l.pins.Release()
		core.End()
		return err
	}
	go func() {
		defer core.End()
		l.done <- there()
	}()
	return nil
}

// hold pins the segment of the far object whose word p was w, and returns the object as a part for the store. If it
// returns false, the object is to be read.
func (l *looking) hold(p *uint64, w objects.Word) (store.ScanPart, bool) {
	if l.store == nil || w.FarClass() != l.st.Class.ID {
		return store.ScanPart{}, false
	}
	seg := l.pins.Hold(w.FarAddr(), func() bool { return objects.Load(p) == w })
	if seg == nil {
		return store.ScanPart{}, false
	}
	return store.ScanPart{Seg: seg.Seg, Seed: seg.Seed, Off: l.e.Core.Far.Offset(w.FarAddr()), Number: l.e.Space.Number(p), N: 1}, true
}

// scan has the store look at the parts.
func (l *looking) scan(ctx context.Context, a *offload.Aggregate) {
	c := l.st.Class
	limited, cancel := context.WithTimeout(ctx, heap.StoreTimeout)
	defer cancel()
	l.store.Scan(limited, &l.q, store.Objects{Owner: c.Owner(), Born: c.Born, Size: c.Size}, l.parts, a)
	l.pins.Release()
	for k := range l.parts {
		if p := &l.parts[k]; p.Err == nil {
			c.Computed.Add(uint64(p.N))
		}
	}
}

// inTurns has the parts of a structure looked at. It calls begin for one part after the other, until begin returns
// nil, and the then of each part, in order, until one reports false. While the store looks at a part, begin looks at
// the next part here; while the then of a part is called, the store looks at the next part.
func inTurns(ctx context.Context, begin func(ctx context.Context) (*looking, error)) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	var next *looking
	defer func() { // then may run a loop of the program, which may end early, or panic
		cancel()
		if next != nil {
			<-next.done
		}
	}()
	for more := true; more || next != nil; {
		l := next
		next = nil
		if more {
			next, err = begin(ctx)
			more = next != nil
		}
		if l == nil {
			continue
		}
		if failed := <-l.done; failed != nil {
			return failed
		}
		if !l.then() {
			return nil
		}
	}
	return err
}
