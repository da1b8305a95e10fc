package broker_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"polder/internal/failpoint"
	"polder/memnode"
	"polder/memnode/wire"
	"polder/pool"
	"polder/pool/broker"
	"polder/pool/manager"
	"polder/pool/pooltest"
	"polder/verbs"
)

func TestConformance(t *testing.T) {
	t.Run("tcp", func(t *testing.T) { pooltest.Run(t, overBroker(pooltest.TCP)) })
	t.Run("inproc", func(t *testing.T) { pooltest.Run(t, overBroker(pooltest.Inproc)) })
}

func TestConformanceWithGroups(t *testing.T) {
	s := overBroker(pooltest.Inproc)
	s.Groups = 3
	pooltest.Run(t, s)
}

// TestBlocksAreDealtOutToGroups: an application has as many groups of queue pairs as the node says,
// and uses all of them alike, as well when its connection to the node was lost and there are fewer.
func TestBlocksAreDealtOutToGroups(t *testing.T) {
	r := newRig(t, memnode.Config{Lend: 8 << 20, ChunkSize: 4096, MaxGroups: 3}, broker.Config{})
	d := broker.NewDialer(r.path)
	defer d.Close()
	dev, err := r.Fabric.NewDevice()
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := dev.CreateCQ(verbs.CQInit{Depth: 1})
	if err != nil {
		t.Fatal(err)
	}
	attach := func(groups int, resume wire.Session) (manager.Session, int) {
		t.Helper()
		addr := r.Nodes[0].Addr
		conn, err := d.Dial(t.Context(), addr, func(ctx context.Context) (verbs.Conn, error) { return r.Fabric.Dial(ctx, dev, addr) })
		if err != nil {
			t.Fatal(err)
		}
		qps := 0
		s, err := broker.Manager{}.Attach(t.Context(), manager.Link{
			Device: dev, PD: pd, Conn: conn, Resume: resume, Groups: groups, NextGroup: func() error { return nil },
			Access: func() (verbs.QP, error) {
				qps++
				return pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SendDepth: 1, RecvDepth: 1})
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			s.Close()
			conn.Close()
		})
		return s, qps
	}
	s, qps := attach(8, wire.Session{})
	if qps != 3 {
		t.Errorf("it has %d queue pairs for access, want 3", qps)
	}
	var of [3]int
	for range 30 {
		var g [1]manager.Grant
		if _, err := s.Alloc(t.Context(), g[:]); err != nil {
			t.Fatal(err)
		}
		of[g[0].Group]++
	}
	if of != [3]int{10, 10, 10} {
		t.Errorf("30 chunks are dealt out %v to groups, want 10 to each", of)
	}
	s.Close()
	again, qps := attach(2, s.Info().Session)
	if qps != 2 || !again.Info().Resumed {
		t.Fatalf("it has %d queue pairs for access, want 2, and is resumed: %v", qps, again.Info().Resumed)
	}
	owned, err := again.Owned(t.Context())
	if err != nil || len(owned) != 30 {
		t.Fatalf("got %d chunks, %v, want the 30 that it has", len(owned), err)
	}
	for _, g := range owned {
		if g.Group >= 2 {
			t.Fatalf("chunk %d is reached over group %d of 2", g.Chunk, g.Group)
		}
	}
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

// TestManyChunksAreFewRequests: a pool asks for runs of chunks, in the largest blocks that
// there are, and gives them back as it got them.
func TestManyChunksAreFewRequests(t *testing.T) {
	r := newRig(t, small, broker.Config{})
	d := broker.NewDialer(r.path)
	defer d.Close()
	dev, err := r.Fabric.NewDevice()
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	addr := r.Nodes[0].Addr
	p, err := pool.Open(t.Context(), pool.Config{Device: dev, Manager: broker.Manager{}, Nodes: []pool.NodeConfig{{
		Name: addr,
		Dial: func(ctx context.Context) (verbs.Conn, error) {
			return d.Dial(ctx, addr, func(ctx context.Context) (verbs.Conn, error) { return r.Fabric.Dial(ctx, dev, addr) })
		},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	const chunks = 512 + 16 + 3 // a section, half a span, and two blocks
	c, err := p.Alloc(t.Context(), chunks*4096)
	if err != nil {
		t.Fatal(err)
	}
	if n := r.broker.Stats().Nodes[0].Allocs; n != 4 {
		t.Errorf("%d chunks took %d requests, want 4", chunks, n)
	}
	r.lent(chunks * 4096)
	want := bytes.Repeat([]byte("polder "), chunks*4096/7)
	got := make([]byte, len(want))
	if _, err := c.WriteAt(want, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("what was read is not what was written (%v)", err)
	}
	// Little by little, what is left is smaller than what is asked for.
	left, err := p.Alloc(t.Context(), (1024-chunks)*4096)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*pool.Chunk{c, left} {
		if err := c.Free(t.Context()); err != nil {
			t.Error(err)
		}
	}
	r.lent(0)
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

// TestABlockWhoseTurnDoesNotComeInTimeIsFreedOverTheSameLink: that others use the allocator for long says nothing
// against the link to the node.
func TestABlockWhoseTurnDoesNotComeInTimeIsFreedOverTheSameLink(t *testing.T) {
	for name, giveBack := range map[string]func(r *rig, c *broker.Client, session uint64, blocks []broker.Block){
		"frees": func(r *rig, c *broker.Client, session uint64, blocks []broker.Block) {
			if err := c.Free(t.Context(), 0, session, blocks[0]); err != nil {
				t.Error(err)
			}
		},
		"leaves": func(r *rig, c *broker.Client, _ uint64, blocks []broker.Block) {
			c.Close()
			pooltest.Eventually(t, "the application has gone", func() bool { return r.broker.Stats().Apps == 1 })
		},
	} {
		t.Run(name, func(t *testing.T) {
			hasTurn, goOn := make(chan struct{}), make(chan struct{})
			var once sync.Once
			failpoint.Set(func(at string) {
				if at == broker.StepFree {
					once.Do(func() {
						close(hasTurn)
						<-goOn
					})
				}
			})
			t.Cleanup(func() { failpoint.Set(nil) }) // when the rig has ended
			// The keeper of the link does not need the allocator meanwhile.
			r := newRig(t, small, broker.Config{Timeout: time.Second, Heartbeat: time.Hour})
			first, second := r.dial(), r.dial()
			session := r.attach(first).Session
			own := r.mustAlloc(first, session, 0)
			other := r.attach(second).Session
			blocks := []broker.Block{r.mustAlloc(second, other, 0), r.mustAlloc(second, other, 0)}
			var freed sync.WaitGroup
			freed.Go(func() {
				if err := first.Free(t.Context(), 0, session, own); err != nil {
					t.Error(err)
				}
			})
			<-hasTurn
			giveBack(r, second, other, blocks)
			close(goOn)
			freed.Wait()
			pooltest.Eventually(t, "what was given back is freed", func() bool {
				n := r.broker.Stats().Nodes[0]
				return n.Owed == 0 && int64(n.Blocks) == r.Nodes[0].Stats().Lent
			})
			if n := r.broker.Stats().Nodes[0].Resumes; n != 0 {
				t.Errorf("the broker has given its link up and made %d others", n)
			}
		})
	}
}
