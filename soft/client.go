package soft

import (
	"context"
	"errors"
	"fmt"
	"time"

	"polder/internal/fdpass"
	"polder/soft/mrc"
	"polder/soft/wire"
)

// client keeps a heap registered with its host's coordinator: it connects,
// and connects again when the coordinator comes back, hands its memory over,
// reports once a second, and gives back what it is told to.
//
// While there is no coordinator the heap goes on with what it has.
type client struct {
	h     *Heap
	curve mrc.Curve // the last one; of run's goroutine
	alone bool      // no coordinator answers, and the log has said so; of run's goroutine
}

const (
	reportEvery  = time.Second
	retryFirst   = 20 * time.Millisecond
	retryMost    = 2 * time.Second
	sendTimeout  = 2 * time.Second
	releaseBatch = 16
)

func newClient(h *Heap) *client { return &client{h: h} }

func (c *client) run(ctx context.Context) {
	wait := retryFirst
	for ctx.Err() == nil {
		began := time.Now()
		err := c.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > time.Second {
			wait = retryFirst
		}
		if !c.alone {
			c.alone = true
			c.h.log.Warn("no coordinator answers; the cache keeps the memory that it has until one does",
				"socket", c.h.cfg.Coordinator, "bytes", c.h.Budget(), "err", err)
		}
		c.h.evac.notice()
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(wait*2, retryMost)
	}
}

// session is one connection, from hello to its end.
func (c *client) session(ctx context.Context) error {
	conn, err := fdpass.Dial(c.h.cfg.Coordinator)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	hello := wire.Hello{Version: wire.Version, Name: c.h.cfg.Name, Weight: c.h.cfg.Weight}
	if err := conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	if err := conn.SendFDs(wire.Encode(wire.KindHello, hello), c.h.files()...); err != nil {
		return fmt.Errorf("cannot register: %w", err)
	}
	type message struct {
		kind wire.Kind
		body []byte
	}
	inbox := make(chan message, 16)
	received := make(chan error, 1)
	gone := make(chan struct{})
	defer close(gone)
	c.h.done.Go(func() {
		received <- func() error {
			for {
				msg, err := conn.Recv()
				if err != nil {
					return err
				}
				kind, body, err := wire.Split(msg)
				body = append([]byte(nil), body...)
				conn.Done()
				if err != nil {
					return err
				}
				select {
				case inbox <- message{kind, body}:
				case <-gone:
					return nil
				}
			}
		}()
	})
	t := time.NewTicker(reportEvery)
	defer t.Stop()
	last := time.Now()
	for {
		select {
		case err := <-received:
			return err
		case now := <-t.C:
			if err := c.send(conn, wire.KindReport, c.report(now.Sub(last))); err != nil {
				return err
			}
			last = now
		case m := <-inbox:
			if err := c.handle(conn, m.kind, m.body); err != nil {
				return err
			}
		}
	}
}

func (c *client) handle(conn *fdpass.Conn, kind wire.Kind, body []byte) error {
	switch kind {
	case wire.KindWelcome:
		if c.alone {
			c.alone = false
			c.h.log.Info("registered with the coordinator, which says how much memory there is", "socket", c.h.cfg.Coordinator)
		}
		return c.send(conn, wire.KindReport, c.report(0))
	case wire.KindRefused:
		r, err := wire.DecodeRefused(body)
		if err == nil {
			err = fmt.Errorf("the coordinator refuses this heap: %s", r.Reason)
			c.h.log.Warn("cannot register with the coordinator", "err", err)
		}
		return err
	case wire.KindRevoked:
		c.h.evac.notice()
	case wire.KindBudget:
		b, err := wire.DecodeBudget(body)
		if err != nil {
			return err
		}
		c.h.evac.notice()
		return c.shrink(conn, b)
	}
	return nil
}

// shrink gives back what is above the budget, a few segments at a time, until the deadline, at which the coordinator
// takes the rest itself.
func (c *client) shrink(conn *fdpass.Conn, b wire.Budget) error {
	deadline := time.Now().Add(time.Duration(b.DeadlineMillis) * time.Millisecond)
	var batch []uint32
	var failed error
	flush := func() {
		if len(batch) == 0 {
			return
		}
		if failed = c.send(conn, wire.KindReleased, wire.Released{Segments: batch}); failed != nil {
			for _, seg := range batch { // then we must do it
				failed = errors.Join(failed, c.h.discard(seg))
			}
		}
		batch = batch[:0]
	}
	err := c.h.giveBack(b.Segments, func(seg uint32) bool {
		c.h.ctl.SetRank(seg, rankFree)
		if batch = append(batch, seg); len(batch) == releaseBatch {
			flush()
		}
		return failed == nil && time.Now().Before(deadline)
	})
	flush()
	if errors.Is(err, ErrNoMemory) {
		err = nil
	}
	return errors.Join(err, failed)
}

func (c *client) send(conn *fdpass.Conn, k wire.Kind, v any) error {
	if err := conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	return conn.Send(wire.Encode(k, v))
}

// report returns what the coordinator is told. If elapsed is 0, as for a coordinator that has just welcomed the heap,
// the report has the curve of the last one.
func (c *client) report(elapsed time.Duration) wire.Report {
	h := c.h
	s := h.Stats()
	r := wire.Report{
		Live: s.Live, Free: s.Free, Hits: s.Hits, Misses: s.Misses,
		RebuildSeconds: s.RebuildTime.Seconds(), Workers: h.cfg.Workers,
	}
	if elapsed > 0 {
		c.curve = h.needs(elapsed.Seconds(), s)
	}
	r.Curve, r.Assumed = c.curve, h.curve.assumed()
	if h.cfg.Utility != nil {
		u := h.cfg.Utility()
		r.Utility = &u
	}
	return r
}
