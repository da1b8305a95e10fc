package simcrash

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"polder/far/copies"
	"polder/far/store"
	"polder/holder"
)

// do asks for a change and waits until it is done. For how long depends on the seed, so that several are under way at a time.
func (rec *recorder) do(c *change, ready func() error) error {
	rec.mu.Lock()
	rec.add(c, false)
	pause := rec.r.IntN(8)
	slow := time.Duration(0)
	if rec.slow && c.kind == swap {
		slow = time.Duration(rec.r.IntN(4)) * time.Millisecond // a checkpoint takes a while, during which the cleaner goes on
	} else if rec.slow && rec.r.IntN(6) == 0 {
		slow = 50 * time.Microsecond
	}
	rec.mu.Unlock()
	time.Sleep(slow)
	for range pause {
		runtime.Gosched()
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if ready != nil {
		if err := ready(); err != nil {
			return err
		}
	}
	if !rec.now.apply(c) {
		if c.kind == swap {
			return holder.ErrChanged
		}
		rec.wrong = fmt.Errorf("asked for what cannot be done: %v", c)
		return rec.wrong
	}
	rec.add(c, true)
	return nil
}

// register is a holder.Register.
type register struct{ *recorder }

func (g register) Read(context.Context) ([]byte, uint64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now.value, g.now.version, nil
}

func (g register) Swap(ctx context.Context, version uint64, value []byte) (uint64, error) {
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case len(value) > holder.MaxValue:
		return 0, holder.ErrTooLarge
	}
	if err := g.do(&change{kind: swap, was: version, b: append([]byte{}, value...)}, nil); err != nil {
		return 0, err
	}
	return version + 1, nil
}

func (g register) Close() error { return nil }

// place is a node as a process sees it: a copies.Reopener.
type place struct {
	*recorder
	node int
	open map[int]*lent // what the process has borrowed; guarded by recorder.mu
}

// lent is a chunk that a process has borrowed.
type lent struct {
	p      *place
	id     int
	serial uint64
	name   string
	lost   chan struct{} // never closed
}

func (rec *recorder) place(i int) copies.Place {
	p := &place{recorder: rec, node: i, open: map[int]*lent{}}
	return copies.Place{Name: fmt.Sprintf("node %d", i), Store: p, State: func() copies.State {
		rec.mu.Lock()
		defer rec.mu.Unlock()
		return copies.State{Usable: true, Space: int64(mostChunks - len(rec.now.nodes[i].chunks))}
	}}
}

func (p *place) SegmentSize() int { return chunkSize }

func (p *place) lend(id int, serial uint64) *lent {
	l := &lent{p, id, serial, fmt.Sprintf("node %d/chunk %d.%d", p.node, p.now.nodes[p.node].life, id), make(chan struct{})}
	p.open[id] = l
	return l
}

func (p *place) Alloc(context.Context) (store.Segment, error) {
	c := &change{kind: lend, node: p.node}
	var l *lent
	err := p.do(c, func() error {
		var ok bool
		if c.id, ok = p.now.nodes[p.node].free(); !ok {
			return store.ErrStoreFull
		}
		p.now.serial++
		c.serial = p.now.serial
		l = p.lend(c.id, c.serial)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

func (p *place) Reopen(_ context.Context, name string) (store.Segment, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var life, id int
	if n, err := fmt.Sscanf(name, "chunk %d.%d", &life, &id); n != 2 || err != nil {
		return nil, fmt.Errorf("%q is no name", name)
	}
	n := p.now.nodes[p.node]
	if life != n.life {
		return nil, &store.LostError{Segment: name}
	}
	ch, ok := n.chunks[id]
	switch {
	case !ok:
		p.wrong = fmt.Errorf("%s of node %d is reopened, and was given back", name, p.node)
		return nil, p.wrong
	case p.open[id] != nil:
		p.wrong = fmt.Errorf("%s of node %d is reopened, and is open", name, p.node)
		return nil, p.wrong
	}
	return p.lend(id, ch.serial), nil
}

func (p *place) Prune(context.Context) error {
	p.mu.Lock()
	var stale []*change
	for id, ch := range p.now.nodes[p.node].chunks {
		if p.open[id] == nil {
			stale = append(stale, &change{kind: giveBack, node: p.node, id: id, serial: ch.serial})
		}
	}
	p.mu.Unlock()
	for _, c := range stale {
		if err := p.do(c, nil); err != nil {
			return err
		}
	}
	return nil
}

func (p *place) Read(_ context.Context, ops []store.ReadOp) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range ops {
		op := &ops[i]
		l := op.Seg.(*lent)
		if ch, ok := p.now.nodes[p.node].chunks[l.id]; ok { // if it was given back meanwhile it is somebody else's, who reads it finds out
			copy(op.Buf, ch.b[op.Off:])
		}
	}
}

func (l *lent) Write(_ context.Context, b []byte, off int) error {
	return l.p.do(&change{kind: write, node: l.p.node, id: l.id, serial: l.serial, off: off, b: append([]byte(nil), b...)}, nil)
}

func (l *lent) Free(context.Context) error {
	return l.p.do(&change{kind: giveBack, node: l.p.node, id: l.id, serial: l.serial}, func() error {
		if l.p.open[l.id] == l {
			delete(l.p.open, l.id)
		}
		return nil
	})
}

func (l *lent) Lost() <-chan struct{} { return l.lost }
func (l *lent) Name() string          { return l.name }
