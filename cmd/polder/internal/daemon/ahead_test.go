package daemon

import (
	"context"
	"errors"
	"testing"
	"time"

	"polder/pool"
	"polder/verbs"
)

// aheadConn is a connection that is only made and ended.
type aheadConn struct {
	verbs.Conn
	done   chan struct{}
	closed bool
}

func (c *aheadConn) Done() <-chan struct{} { return c.done }
func (c *aheadConn) Close() error          { c.closed = true; return nil }

// TestConnectionsAreMadeAhead: a pool takes those that were made before, dials again what has ended or failed meanwhile, and what it has not taken is closed.
func TestConnectionsAreMadeAhead(t *testing.T) {
	ctx := t.Context()
	errDown := errors.New("down")
	dials := map[string]chan *aheadConn{}
	node := func(name string, conns ...*aheadConn) pool.NodeConfig {
		ch := make(chan *aheadConn, len(conns))
		for _, c := range conns {
			ch <- c
		}
		dials[name] = ch
		return pool.NodeConfig{Name: name, Dial: func(ctx context.Context) (verbs.Conn, error) {
			select {
			case c := <-ch:
				if c == nil {
					return nil, errDown
				}
				return c, nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}}
	}
	conn := func() *aheadConn { return &aheadConn{done: make(chan struct{})} }
	first, second := conn(), conn()
	ended, again := conn(), conn()
	close(ended.done)
	late := conn()
	unused := conn()
	ready, end := dialAhead(ctx, []pool.NodeConfig{node("used", first, second), node("ended", ended, again), node("failed", nil, late), node("unused", unused), node("silent")})
	for i, want := range []*aheadConn{first, again, late} {
		if got, err := ready[i].Dial(ctx); err != nil || got != verbs.Conn(want) {
			t.Errorf("%s: got %p, %v, want %p", ready[i].Name, got, err, want)
		}
	}
	if got, err := ready[0].Dial(ctx); err != nil || got != verbs.Conn(second) {
		t.Errorf("a connection after the first one: got %p, %v, want %p", got, err, second)
	}
	if !ended.closed {
		t.Error("a connection that had ended is not closed")
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := ready[4].Dial(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("a node that does not answer: %v, want that the call ends with its context", err)
	}
	for len(dials["unused"]) > 0 { // or it would not be made at all
		time.Sleep(time.Millisecond)
	}
	end()
	if !unused.closed {
		t.Error("a connection that was not used is not closed")
	}
	if first.closed || second.closed || again.closed || late.closed {
		t.Error("a connection that is used is closed")
	}
}
