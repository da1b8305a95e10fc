package simfaults

import (
	"context"
	"slices"
	"time"

	"polder/holder"
	"polder/internal/turns"
)

// register holds the manifest. It does in one place what witnesses or etcd promise. Messages to it are lost, late and
// repeated.
type register struct {
	c       *cluster
	proc    *turns.Process
	value   []byte
	version uint64
	last    uint64            // the id of the request that made the last change
	settled map[uint64]uint64 // for each client, the request below which its requests change nothing any more
	lossy   time.Duration     // until when one message in four is lost
}

const holderName = "holder"

// session is a process's use of the register: a holder.Register.
type session struct {
	g    *register
	p    *turns.Process
	host string
	id   uint64
}

const (
	askAgain = 300 * time.Millisecond
	giveUp   = 900 * time.Millisecond
)

// deliver sends a message from a to b, which runs f in process to: never, once, or several times.
func (g *register) deliver(to *turns.Process, a, b string, f func()) {
	for {
		lost := g.c.severed(a, b) || g.c.w.Rand.IntN(100) == 0 || g.c.w.Now() < g.lossy && g.c.w.Rand.IntN(4) == 0
		if !lost {
			d := g.c.hop()
			if g.c.cfg.lag > 0 {
				d += time.Duration(g.c.w.Rand.Int64N(int64(g.c.cfg.lag)))
			}
			if g.c.w.Rand.IntN(50) == 0 || g.c.w.Now() < g.lossy && g.c.w.Rand.IntN(3) == 0 { // it takes a longer way
				d += time.Duration(g.c.w.Rand.Int64N(int64(2 * time.Second)))
			}
			to.After(d, f)
		}
		if g.c.w.Rand.IntN(50) != 0 {
			return
		}
	}
}

// ask sends a request again and again until it is answered, ctx ends, or, unless long is 0, long has passed. It
// reports whether it was answered. at runs at the register, each time that the request arrives; answer runs in the
// session's process, once.
func (s *session) ask(ctx context.Context, long time.Duration, at func(g *register), answer func()) bool {
	answered, is := make(chan struct{}), false
	for {
		s.g.deliver(s.g.proc, s.host, holderName, func() {
			at(s.g)
			s.g.deliver(s.p, holderName, s.host, func() {
				if !is {
					is = true
					answer()
					close(answered)
				}
			})
		})
		again := s.p.NewTimer(askAgain)
		which := s.p.Wait(again, answered, ctx.Done())
		again.Stop()
		switch which {
		case 0:
			return true
		case 1:
			return false
		}
		if long > 0 {
			if long -= askAgain; long <= 0 {
				return false
			}
		}
	}
}

func (s *session) Read(ctx context.Context) (value []byte, version uint64, err error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, context.Cause(ctx)
	}
	s.id++
	id := s.id
	var b []byte
	var v uint64
	ok := s.ask(ctx, 0, func(g *register) {
		g.settled[s.client()] = max(g.settled[s.client()], id)
		b, v = slices.Clone(g.value), g.version
	}, func() { value, version = b, v })
	if !ok {
		return nil, 0, context.Cause(ctx)
	}
	return value, version, nil
}

func (s *session) client() uint64 { return s.id >> 32 }

func (s *session) Swap(ctx context.Context, version uint64, value []byte) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, context.Cause(ctx)
	}
	if len(value) > holder.MaxValue {
		return 0, holder.ErrTooLarge
	}
	s.id++
	id, value := s.id, slices.Clone(value)
	var won uint64
	var got bool
	var v uint64
	ok := s.ask(ctx, giveUp, func(g *register) {
		switch {
		case g.last == id:
			won, got = g.version, true
		case g.settled[id>>32] > id:
			return // the client has read since, and takes this request for settled
		case g.version == version && won == 0:
			g.value, g.version, g.last = value, g.version+1, id
			won, got = g.version, true
		}
	}, func() { v = won })
	switch {
	case !ok:
		return 0, holder.ErrUnknown
	case !got:
		return 0, holder.ErrChanged
	}
	return v, nil
}

func (s *session) Close() error { return nil }
