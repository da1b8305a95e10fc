package copies

import (
	"context"
	"errors"
	"sync"

	"polder/far/store"
	"polder/internal/offload"
	"polder/internal/turns"
)

var errNoComputer = errors.New("the place cannot look through what lies there")

// Scan implements store.Computer, at the copies that pick chooses.
func (s *Store) Scan(ctx context.Context, q *offload.Scan, o store.Objects, parts []store.ScanPart, a *offload.Aggregate) {
	at := make(map[*place][]int)
	subs := make([]store.ScanPart, len(parts))
	for i := range parts {
		c, _ := parts[i].Seg.(*segment).pick(0, counting)
		subs[i] = parts[i]
		subs[i].Seg = c.seg
		at[c.place] = append(at[c.place], i)
	}
	var mu sync.Mutex
	var wg turns.Group
	for p, of := range at {
		computer, ok := p.Store.(store.Computer)
		if !ok {
			for _, i := range of {
				parts[i].Err = errNoComputer
			}
			continue
		}
		wg.Go(s.proc, func() {
			mine := make([]store.ScanPart, len(of))
			for k, i := range of {
				mine[k] = subs[i]
			}
			var b offload.Aggregate
			s.watched(ctx, parts[of[0]].Seg.(*segment), p, mine[0].Seg, func(ctx context.Context) { computer.Scan(ctx, q, o, mine, &b) })
			for k, i := range of {
				parts[i].Err = mine[k].Err
			}
			mu.Lock()
			defer mu.Unlock()
			q.Merge(a, &b)
		})
	}
	wg.Wait(s.proc)
}

// Finds implements store.Finder.
func (s *Store) Finds(seg store.Segment) bool {
	c, ok := seg.(*segment).pick(0, counting)
	if !ok || !c.place.usable() {
		return false
	}
	f, ok := c.place.Store.(store.Finder)
	return ok && f.Finds(c.seg)
}

// Find implements store.Finder, at the copies that pick chooses.
func (s *Store) Find(ctx context.Context, l *store.Lookups) {
	at := make(map[*place][]int)
	segs := make([]store.Segment, len(l.Finds))
	for i := range l.Finds {
		c, _ := l.Finds[i].Seg.(*segment).pick(0, counting)
		segs[i] = c.seg
		at[c.place] = append(at[c.place], i)
	}
	var wg turns.Group
	for p, of := range at {
		f, ok := p.Store.(store.Finder)
		if !ok {
			continue
		}
		find := func() {
			mine := store.Lookups{Owner: l.Owner, Units: l.Units, Finds: make([]store.Lookup, len(of)), Segment: func(addr uint64) (store.Segment, uint32) {
				seg, seed := l.Segment(addr)
				if seg != nil {
					for _, c := range *seg.(*segment).copies.Load() {
						if c.place == p {
							return c.seg, seed
						}
					}
				}
				return nil, 0
			}}
			for k, i := range of {
				mine.Finds[k] = l.Finds[i]
				mine.Finds[k].Seg = segs[i]
			}
			s.watched(ctx, l.Finds[of[0]].Seg.(*segment), p, mine.Finds[0].Seg, func(ctx context.Context) { f.Find(ctx, &mine) })
			for k, i := range of {
				found := &mine.Finds[k]
				l.Finds[i].Entry, l.Finds[i].At, l.Finds[i].Leaf = found.Entry, found.At, found.Leaf
			}
		}
		if len(at) == 1 {
			find() // fast path
		} else {
			wg.Go(s.proc, find)
		}
	}
	wg.Wait(s.proc)
}

// watched runs fn, which asks p for something that may take long. Meanwhile it reads a little from seg, the copy of g
// at p, now and then. If p does not answer these reads either, it ends the ctx of fn.
func (s *Store) watched(ctx context.Context, g *segment, p *place, seg store.Segment, fn func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var probe func()
	var mu sync.Mutex
	var timer *turns.Timer
	probe = func() {
		op := [1]store.ReadOp{{Seg: g, Buf: make([]byte, 8)}}
		s.readAt(ctx, &readCall{from: []copyOf{{p, seg}}}, op[:], 0, true)
		if !p.usable() {
			cancel()
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() == nil {
			timer.Reset(s.cfg.Late)
		}
	}
	mu.Lock()
	timer = s.proc.AfterFunc(s.cfg.Late, probe)
	mu.Unlock()
	fn(ctx)
	timer.Stop()
}
