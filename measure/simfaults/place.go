package simfaults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"polder/far/copies"
	"polder/far/store"
	"polder/internal/turns"
)

var (
	errDown   = errors.New("the node cannot be reached")
	errFenced = errors.New("the node has been opened with a higher epoch")
	errLost   = errors.New("the node has lost its memory")
	errFull   = store.ErrStoreFull
)

// segmentSize is the size of segments at all nodes, in bytes.
const segmentSize = store.MinSegmentSize

const (
	pingEvery   = 300 * time.Millisecond
	pingTimeout = 1500 * time.Millisecond
	helloEvery  = 200 * time.Millisecond
)

// place is a node as a server reaches it: a copies.Reopener.
type place struct {
	c     *cluster
	n     *node
	p     *turns.Process
	host  string
	epoch uint64
	link  *link // nil while there is none
	lent  map[int]*lent
	life  int
	space int
	over  bool // the node has been opened with a higher epoch
	gone  bool // the server has forgotten it
}

// link is a connection.
type link struct {
	place       *place
	epoch       uint64
	there, back *pipe
	reads       *pipe         // to the node as well: reads may overtake other requests
	abandoned   int           // unless this is above 0: other requests, still to be done, that nobody waits for
	gone        chan struct{} // closed when the client knows that it has ended
}

// lent is a chunk that a server has borrowed: a store.Segment.
type lent struct {
	pl       *place
	life, id int
	lost     chan struct{}
	done     bool // it was given back, and this process knows
	vanish   int  // what its node may do with it
}

const (
	stays    = iota // the node must keep the chunk
	vanishes        // the node may drop it
	vanished        // the node has dropped it, or may have
)

func (c *cluster) newPlace(n *node, p *turns.Process, host string, epoch uint64) *place {
	pl := &place{c: c, n: n, p: p, host: host, epoch: epoch, lent: map[int]*lent{}}
	p.Go(pl.stay)
	return pl
}

func (pl *place) asPlace() copies.Place {
	return copies.Place{Name: pl.n.name, Store: pl, Zone: func() string { return pl.n.zone }, State: func() copies.State {
		return copies.State{Usable: pl.link != nil && !pl.over, Leaving: pl.n.leaving || pl.n.pressed, Idle: pl.n.idle, Space: int64(pl.space) * segmentSize}
	}}
}

// stay keeps the place connected.
func (pl *place) stay() {
	for !pl.over && !pl.gone {
		if pl.link == nil {
			pl.connect()
			pl.p.Sleep(helloEvery)
			continue
		}
		l := pl.link
		ctx, cancel := pl.p.WithTimeout(context.Background(), pingTimeout)
		err := pl.call(ctx, func(n *node) error { pl.space = n.capacity - n.used(); return nil }, nil)
		cancel()
		if err != nil {
			pl.broken(l)
			continue
		}
		pl.p.Sleep(pingEvery)
	}
}

func (pl *place) connect() {
	c, n := pl.c, pl.n
	l := &link{place: pl, epoch: pl.epoch, gone: make(chan struct{})}
	l.there = &pipe{c: c, to: n.proc, cut: func() bool { return c.severed(pl.host, n.name) }, lag: n.lag}
	l.reads = &pipe{c: c, to: n.proc, cut: l.there.cut, lag: n.lag}
	l.back = &pipe{c: c, to: pl.p, cut: func() bool { return c.severed(n.name, pl.host) }}
	answers := make(chan error, 1)
	var life int
	l.there.send(func() {
		err := n.connect(l, func(id int) bool { return pl.lent[id] != nil })
		life = n.life
		l.back.send(func() { answers <- err })
	})
	timer := pl.p.NewTimer(pingTimeout)
	err, ok := turns.Recv(pl.p, answers, timer)
	timer.Stop()
	switch {
	case !ok:
		l.there.ended = true
	case errors.Is(err, errFenced):
		pl.over = true
	case err == nil && !l.there.ended:
		if life != pl.life {
			for _, g := range pl.all() {
				if g.life != life {
					delete(pl.lent, g.id)
					close(g.lost)
				}
			}
		}
		pl.link, pl.life = l, life
	}
}

// all returns the chunks that the place has lent, by id.
func (pl *place) all() (all []*lent) {
	for _, g := range pl.lent {
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b *lent) int { return a.id - b.id })
	return all
}

// broken notes that l has ended.
func (pl *place) broken(l *link) {
	if pl.link == l {
		pl.link = nil
		for _, g := range pl.lent {
			if g.vanish == vanishes {
				g.vanish = vanished
			}
		}
		l.back.ended = true
		l.there.ended, l.reads.ended = true, true
		close(l.gone)
	}
}

func (n *node) lag() time.Duration {
	if n.slow == 0 {
		return 0
	}
	return time.Duration(n.c.w.Rand.Int64N(int64(n.slow)))
}

// call has the node do op, and returns op's error. If ctx ends or the connection breaks before the answer comes, it
// returns an error, and does not know whether op was done. If the answer comes after ctx has ended, late is called
// with op's error, unless late is nil.
func (pl *place) call(ctx context.Context, op func(n *node) error, late func(err error)) error {
	return pl.callOver(ctx, false, op, late)
}

func (pl *place) callOver(ctx context.Context, reads bool, op func(n *node) error, late func(err error)) error {
	l := pl.link
	if l == nil {
		return errDown
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	answered, gaveUp := make(chan struct{}), false
	var answer error
	there := l.there
	if reads && l.abandoned == 0 {
		there = l.reads
	}
	there.send(func() {
		if gaveUp && !reads {
			l.abandoned--
		}
		if !pl.n.up {
			return
		}
		err := op(pl.n)
		l.back.send(func() {
			if gaveUp && late != nil {
				late(err)
			}
			answer = err
			close(answered)
		})
	})
	switch pl.p.Wait(nil, answered, ctx.Done(), l.gone) {
	case 0:
		return answer
	case 1:
		gaveUp = true
		if !reads {
			l.abandoned++
		}
		return context.Cause(ctx)
	default:
		return errDown
	}
}

func (pl *place) SegmentSize() int { return segmentSize }

func (pl *place) Alloc(ctx context.Context) (store.Segment, error) {
	var id, life int
	err := pl.call(ctx, func(n *node) (err error) {
		id, err = n.lend(pl.epoch)
		life = n.life
		return err
	}, func(err error) {
		if err == nil { // nobody waits for the chunk any more
			pl.p.Go(func() {
				_ = pl.call(context.Background(), func(n *node) error { n.drop(id); return nil }, nil)
			})
		}
	})
	if err != nil {
		return nil, err
	}
	return pl.hold(life, id), nil
}

func (pl *place) hold(life, id int) *lent {
	g := &lent{pl: pl, life: life, id: id, lost: make(chan struct{})}
	pl.lent[id] = g
	return g
}

func (pl *place) Reopen(ctx context.Context, name string) (store.Segment, error) {
	var life, id int
	if n, err := fmt.Sscanf(name, "chunk %d.%d", &life, &id); n != 2 || err != nil {
		return nil, fmt.Errorf("%q is no name", name)
	}
	if g := pl.lent[id]; g != nil && g.life == life {
		return nil, fmt.Errorf("%s is open", name)
	}
	err := pl.call(ctx, func(n *node) error { _, err := n.find(life, id, "reopened"); return err }, nil)
	switch {
	case errors.Is(err, errLost):
		return nil, &store.LostError{Segment: name}
	case err != nil:
		return nil, err
	}
	return pl.hold(life, id), nil
}

func (pl *place) Prune(ctx context.Context) error {
	has := map[int]bool{}
	for id := range pl.lent {
		has[id] = true
	}
	return pl.call(ctx, func(n *node) error {
		for id, ch := range n.chunks {
			if !has[id] && ch.epoch < pl.epoch {
				n.drop(id)
			}
		}
		return nil
	}, nil)
}

func (pl *place) Read(ctx context.Context, ops []store.ReadOp) {
	asked := slices.Clone(ops) // ops are the caller's again when Read stops waiting
	bufs := make([][]byte, len(ops))
	errs := make([]error, len(ops))
	for i := range ops {
		bufs[i] = make([]byte, len(ops[i].Buf))
	}
	err := pl.callOver(ctx, true, func(n *node) error {
		for i := range asked {
			g := asked[i].Seg.(*lent)
			if g.vanish == vanished {
				errs[i] = errLost
				continue
			}
			ch, err := n.find(g.life, g.id, "read")
			if errs[i] = err; err == nil {
				ch.read(bufs[i], asked[i].Off)
			} else if !errors.Is(err, errLost) { // the chunk was given back, and may be somebody else's by now
				for k := range bufs[i] {
					bufs[i][k] = byte(k) ^ 0x5a
				}
				errs[i] = nil
			}
		}
		return nil
	}, nil)
	for i := range ops {
		if ops[i].Err = err; err == nil {
			if ops[i].Err = errs[i]; errs[i] == nil {
				copy(ops[i].Buf, bufs[i])
			}
		}
	}
}

func (g *lent) Write(ctx context.Context, p []byte, off int) error {
	if g.done {
		g.pl.c.wrong("%s is written to after it was given back", g.Name())
	}
	b := slices.Clone(p)
	return g.pl.call(ctx, func(n *node) error {
		ch, err := n.find(g.life, g.id, "written to")
		if err == nil {
			ch.write(b, off)
		}
		return err
	}, nil)
}

// Start implements store.Starter.
func (g *lent) Start(ctx context.Context, p []byte, off int, landed func()) store.Flight {
	f := &flight{p: g.pl.p, ended: make(chan struct{})}
	f.p.Go(func() {
		f.err = g.Write(ctx, p, off)
		close(f.ended)
		landed()
	})
	return f
}

// flight is a write under way.
type flight struct {
	p     *turns.Process
	ended chan struct{} // closed when err is set
	err   error
}

// Landed implements store.Flight.
func (f *flight) Landed() bool {
	select {
	case <-f.ended:
		return f.err == nil
	default:
		return false
	}
}

// End implements store.Flight. The write itself ends with the ctx of Start, which is this one or derived from it.
func (f *flight) End(context.Context) error {
	f.p.Wait(nil, f.ended)
	return f.err
}

func (g *lent) Free(ctx context.Context) error {
	if g.done {
		g.pl.c.wrong("%s is given back twice", g.Name())
	}
	err := g.pl.call(ctx, func(n *node) error {
		if n.life != g.life {
			return errLost
		}
		n.drop(g.id)
		return nil
	}, nil)
	if err == nil || errors.Is(err, errLost) {
		g.done = true
		delete(g.pl.lent, g.id)
		return nil
	}
	return err
}

// MayVanish implements copies.Vanisher.
func (g *lent) MayVanish(ctx context.Context) error {
	g.vanish = vanishes // the node may drop the chunk before its answer arrives
	return g.pl.call(ctx, func(n *node) error {
		ch, err := n.find(g.life, g.id, "let vanish")
		if err == nil {
			ch.may = true
		}
		return err
	}, nil)
}

// MustStay implements copies.Vanisher.
func (g *lent) MustStay(ctx context.Context) (ok bool, err error) {
	if g.vanish != vanishes {
		return g.vanish == stays, nil
	}
	err = g.pl.call(ctx, func(n *node) error {
		ch, err := n.find(g.life, g.id, "kept")
		if err == nil {
			ok = ch.may
			ch.may = false
		}
		return err
	}, nil)
	switch {
	case errors.Is(err, errLost):
		return false, nil
	case err != nil:
		return false, err
	}
	if ok = ok && g.vanish == vanishes; ok {
		g.vanish = stays
	} else {
		g.vanish = vanished
	}
	return ok, nil
}

// Vanished implements copies.Vanisher.
func (g *lent) Vanished() bool { return g.vanish == vanished }

func (g *lent) Lost() <-chan struct{} { return g.lost }
func (g *lent) Name() string          { return fmt.Sprintf("%s/chunk %d.%d", g.pl.n.name, g.life, g.id) }
