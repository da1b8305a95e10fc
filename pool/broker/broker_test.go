package broker_test

import (
	"errors"
	"testing"

	"polder/pool/broker"
	"polder/pool/manager"
	"polder/pool/pooltest"
)

func TestConformance(t *testing.T) {
	t.Run("tcp", func(t *testing.T) { pooltest.Run(t, overBroker(pooltest.TCP)) })
	t.Run("inproc", func(t *testing.T) { pooltest.Run(t, overBroker(pooltest.Inproc)) })
}

func TestBlocksOfAllSizes(t *testing.T) {
	r := newRig(t, small, broker.Config{})
	c := r.dial()
	info := r.attach(c)
	var blocks []broker.Block
	var sum int64
	for class := range 10 {
		b := r.mustAlloc(c, info.Session, class)
		if b.Addr == 0 || len(b.Keys) == 0 || b.First%(1<<class) != 0 {
			t.Errorf("class %d: got %+v", class, b)
		}
		blocks = append(blocks, b)
		sum += 4096 << class
	}
	if _, err := c.Alloc(t.Context(), 0, info.Session, 9); !errors.Is(err, manager.ErrNoMemory) {
		t.Errorf("with no section left: got %v, want %v", err, manager.ErrNoMemory)
	}
	r.lent(sum)
	for _, b := range blocks {
		if err := c.Free(t.Context(), 0, info.Session, b); err != nil {
			t.Error(err)
		}
	}
	r.lent(0)
	two := r.mustAlloc(c, info.Session, 10)
	if len(two.Keys) != 2 {
		t.Errorf("4 MiB have %d keys, want 2", len(two.Keys))
	}
}

func TestWhatAnApplicationHadIsFreedWhenItLeaves(t *testing.T) {
	r := newRig(t, small, broker.Config{})
	c, other := r.dial(), r.dial()
	info, others := r.attach(c), r.attach(other)
	for range 20 {
		r.mustAlloc(c, info.Session, 1)
	}
	r.mustAlloc(other, others.Session, 0)
	r.lent(20*8192 + 4096)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	r.lent(4096)
	if _, err := c.Alloc(t.Context(), 0, info.Session, 0); !errors.Is(err, broker.ErrGone) {
		t.Errorf("after Close: got %v, want %v", err, broker.ErrGone)
	}
}

func TestWhatMakesNoSenseCostsNobodyTheConnection(t *testing.T) {
	node := small
	node.ChunkSize = 64 << 10
	r := newRig(t, node, broker.Config{})
	c := r.dial()
	info := r.attach(c)
	had := r.mustAlloc(c, info.Session, info.Least)
	for _, at := range []struct{ node, class int }{
		{0, -1}, {0, info.Least - 1}, {0, 19}, {0, 256 + info.Least}, {-1, info.Least}, {1, info.Least}, {1 << 16, info.Least},
	} {
		if _, err := c.Alloc(t.Context(), at.node, info.Session, at.class); err == nil {
			t.Errorf("class %d at node %d was allocated", at.class, at.node)
		}
		if err := c.Free(t.Context(), at.node, info.Session, broker.Block{First: had.First, Class: at.class}); err == nil {
			t.Errorf("class %d at node %d was freed", at.class, at.node)
		}
	}
	if _, err := c.Attach(t.Context(), 1<<16); err == nil {
		t.Errorf("node %d was attached to", 1<<16)
	}
	if err := c.Free(t.Context(), 0, info.Session, had); err != nil {
		t.Error(err)
	}
}
