package named_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"polder/far"
	"polder/far/copies"
	"polder/far/store"
	"polder/holder"
)

// register is a holder.Register in this process, whose answers may get lost.
type register struct {
	mu      sync.Mutex
	value   []byte
	version uint64
	r       *rand.Rand // if it is set, one Swap of eight is not answered
}

var errDown = errors.New("down")

func (g *register) Read(ctx context.Context) ([]byte, uint64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]byte(nil), g.value...), g.version, ctx.Err()
}

func (g *register) Swap(ctx context.Context, version uint64, value []byte) (uint64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case len(value) > holder.MaxValue:
		return 0, holder.ErrTooLarge
	}
	unheard := g.r != nil && g.r.IntN(8) == 0
	if unheard && g.r.IntN(2) == 0 {
		return 0, holder.ErrUnknown
	}
	if version != g.version {
		return 0, holder.ErrChanged
	}
	g.value, g.version = append([]byte{}, value...), g.version+1
	if unheard {
		return 0, holder.ErrUnknown
	}
	return g.version, nil
}

func (g *register) Close() error { return nil }

// wire is how a process reaches the register. It can be cut.
type wire struct {
	*register
	cut atomic.Bool
}

func (w *wire) Read(ctx context.Context) ([]byte, uint64, error) {
	if w.cut.Load() {
		return nil, 0, errDown
	}
	return w.register.Read(ctx)
}

func (w *wire) Swap(ctx context.Context, version uint64, value []byte) (uint64, error) {
	if w.cut.Load() {
		return 0, errDown
	}
	return w.register.Swap(ctx, version, value)
}

// silent is a register that answers nobody until answers is closed.
type silent struct {
	*register
	answers chan struct{}
}

func (s *silent) Read(ctx context.Context) ([]byte, uint64, error) {
	select {
	case <-s.answers:
		return s.register.Read(ctx)
	case <-ctx.Done():
		return nil, 0, fmt.Errorf("%w: %w", context.Cause(ctx), errDown)
	}
}

// place is a place that keeps what it lent, for one process at a time: the last one that has opened it.
type place struct {
	name string

	mu    sync.Mutex
	now   *view // may use it
	life  int   // how often it has lost all
	down  bool
	segs  map[int][]byte
	wrong error
}

func newPlace(name string) *place { return &place{name: name, segs: map[int][]byte{}} }

// view is a process's.
type view struct {
	p     *place
	open_ map[int]*lent
}

// lent is a segment that a process has borrowed.
type lent struct {
	v    *view
	life int
	id   int
	lost chan struct{}
}

// open is the place for a process, before which there was another one that can do nothing any more.
func (p *place) open() copies.Place {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := &view{p: p, open_: map[int]*lent{}}
	p.now = v
	return copies.Place{Name: p.name, Store: v, State: func() copies.State {
		p.mu.Lock()
		defer p.mu.Unlock()
		return copies.State{Usable: !p.down && p.now == v, Space: int64(1000 - len(p.segs))}
	}}
}

var errFenced = errors.New("another process has the place")

func (v *view) err() error {
	switch {
	case v.p.now != v:
		return errFenced
	case v.p.down:
		return errDown
	}
	return nil
}

// kill has the place lose all.
func (p *place) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.life++
	p.segs = map[int][]byte{}
	for _, g := range p.now.open_ {
		close(g.lost)
	}
	p.now.open_ = map[int]*lent{}
}

func (p *place) setDown(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

func (v *view) SegmentSize() int { return far.MinSegmentSize }

func (v *view) lend(id int) *lent {
	g := &lent{v, v.p.life, id, make(chan struct{})}
	v.open_[id] = g
	return g
}

func (v *view) Alloc(context.Context) (store.Segment, error) {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	if err := v.err(); err != nil {
		return nil, err
	}
	id := 0 // those that were given back last are used again first
	for v.p.segs[id] != nil {
		id++
	}
	if id >= 1000 {
		return nil, store.ErrStoreFull
	}
	v.p.segs[id] = make([]byte, far.MinSegmentSize)
	return v.lend(id), nil
}

func (v *view) Reopen(_ context.Context, name string) (store.Segment, error) {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	if err := v.err(); err != nil {
		return nil, err
	}
	var life, id int
	if n, err := fmt.Sscanf(name, "chunk %d.%d", &life, &id); n != 2 || err != nil {
		return nil, fmt.Errorf("%q is no name", name)
	}
	if life != v.p.life {
		return nil, &store.LostError{Segment: name}
	}
	if v.p.segs[id] == nil {
		v.p.wrong = fmt.Errorf("%s of %s was given back, and is reopened", name, v.p.name)
		return nil, v.p.wrong
	}
	if v.open_[id] != nil {
		return nil, fmt.Errorf("%s is open", name)
	}
	return v.lend(id), nil
}

func (v *view) Prune(context.Context) error {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	if err := v.err(); err != nil {
		return err
	}
	for id := range v.p.segs {
		if v.open_[id] == nil {
			delete(v.p.segs, id)
		}
	}
	return nil
}

func (v *view) Read(_ context.Context, ops []store.ReadOp) {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	for i := range ops {
		op := &ops[i]
		g := op.Seg.(*lent)
		if v.open_[g.id] != g && g.life == v.p.life { // it has been given back meanwhile, and is somebody else's
			for k := range op.Buf {
				op.Buf[k] = 0x5a
			}
			op.Err = v.err()
		} else if op.Err = g.check(); op.Err == nil {
			copy(op.Buf, v.p.segs[g.id][op.Off:])
		}
	}
}

func (g *lent) check() error {
	if err := g.v.err(); err != nil {
		return err
	}
	if g.life != g.v.p.life {
		return &store.LostError{Segment: g.Name()}
	}
	if g.v.open_[g.id] != g {
		g.v.p.wrong = fmt.Errorf("%s is used after it was given back", g.Name())
		return g.v.p.wrong
	}
	return nil
}

func (g *lent) Write(_ context.Context, p []byte, off int) error {
	g.v.p.mu.Lock()
	defer g.v.p.mu.Unlock()
	if err := g.check(); err != nil {
		return err
	}
	copy(g.v.p.segs[g.id][off:], p)
	return nil
}

func (g *lent) Free(context.Context) error {
	g.v.p.mu.Lock()
	defer g.v.p.mu.Unlock()
	if err := g.check(); err != nil {
		return err
	}
	delete(g.v.p.segs, g.id)
	delete(g.v.open_, g.id)
	return nil
}

func (g *lent) Lost() <-chan struct{} { return g.lost }
func (g *lent) Name() string          { return fmt.Sprintf("%s/chunk %d.%d", g.v.p.name, g.life, g.id) }
