package onesided_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"polder/memnode"
	"polder/memnode/wire"
	"polder/pool"
	"polder/pool/manager"
	"polder/pool/onesided"
	"polder/pool/pooltest"
	"polder/verbs"
)

// bare is a session without a pool around it.
type bare struct {
	manager.Session
	t   *testing.T
	mr  verbs.MR
	cq  verbs.CQ
	qps []verbs.QP

	pd   verbs.PD
	conn verbs.Conn
}

func attach(t *testing.T, cl *pooltest.Cluster, m onesided.Manager) *bare {
	t.Helper()
	return attachWith(t, cl, m, 1, 1)
}

// attachWith is attach with so many groups and pairs of queue pairs.
func attachWith(t *testing.T, cl *pooltest.Cluster, m onesided.Manager, groups, pairs int) *bare {
	t.Helper()
	return dial(t, cl, m, groups, pairs, wire.Session{})
}

// resume has a session go on over another connection, once the node has missed the old one.
func resume(t *testing.T, cl *pooltest.Cluster, m onesided.Manager, old *bare, groups, pairs int) *bare {
	t.Helper()
	return dial(t, cl, m, groups, pairs, old.Info().Session)
}

func dial(t *testing.T, cl *pooltest.Cluster, m onesided.Manager, groups, pairs int, resume wire.Session) *bare {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dev, err := cl.Fabric.NewDevice()
	must(err)
	pd, err := dev.AllocPD()
	must(err)
	b := &bare{t: t, pd: pd}
	b.mr, err = pd.RegMR(make([]byte, 4096), verbs.AccessLocalWrite)
	must(err)
	b.cq, err = dev.CreateCQ(verbs.CQInit{Depth: 16})
	must(err)
	b.conn, err = cl.Fabric.Dial(t.Context(), dev, cl.Nodes[0].Addr)
	must(err)
	b.Session, err = m.Attach(t.Context(), manager.Link{
		Device: dev, PD: pd, Conn: b.conn, Resume: resume, Groups: groups, Pairs: pairs, NextGroup: func() error { return nil },
		Access: func() (verbs.QP, error) {
			qp, err := pd.CreateQP(verbs.QPInit{SendCQ: b.cq, RecvCQ: b.cq, SendDepth: 4, RecvDepth: 1})
			b.qps = append(b.qps, qp)
			return qp, err
		},
	})
	must(err)
	t.Cleanup(func() {
		b.Close()
		dev.Close()
	})
	return b
}

// read reads a chunk over a path of its group, which has two.
func (b *bare) read(g manager.Grant, path int) verbs.Status {
	b.t.Helper()
	err := b.qps[2*g.Group+path].PostSend(verbs.SendWR{
		Op: verbs.OpRead, Flags: verbs.SendSignaled, RemoteAddr: g.Addr, RKey: g.Keys[path],
		SGL: []verbs.SGE{{Addr: b.mr.Addr(), Length: 64, LKey: b.mr.LKey()}},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.t.Context(), pooltest.Patience)
	defer cancel()
	var wc [1]verbs.WC
	for b.cq.Poll(wc[:]) == 0 {
		if err := b.cq.Wait(ctx); err != nil {
			b.t.Fatal(err)
		}
	}
	return wc[0].Status
}

// TestBudget: a client that asks for more than it may gets its budget and not a
// chunk more, whoever looks. With chains it has then lost the means to allocate,
// and what it has stays within its reach. Nobody else has less for it.
func TestBudget(t *testing.T) {
	both(t, func(t *testing.T, m onesided.Manager) {
		const size, budget = 4096, 3
		cl := pooltest.NewCluster(t, setup(pooltest.Inproc, m),
			memnode.Config{Lend: 2 * budget * size, ChunkSize: size, ClientBudget: budget * size, Grace: time.Minute})
		thief := attach(t, cl, m)
		onesided.Greedy(thief.Session)
		var got []manager.Grant
		for {
			var g [1]manager.Grant
			if _, err := thief.Alloc(t.Context(), g[:]); err != nil {
				break
			}
			got = append(got, g[0])
		}
		if len(got) != budget {
			t.Errorf("it got %d chunks, want %d", len(got), budget)
		}
		st := cl.Nodes[0].Stats()
		if st.Lent != budget {
			t.Errorf("%d chunks are lent, want %d", st.Lent, budget)
		}
		if want := int64(1); !m.Native && st.CutOff != want {
			t.Errorf("%d clients were cut off, want %d", st.CutOff, want)
		}
		access := func(when string) {
			t.Helper()
			for path := range thief.qps {
				for _, g := range got {
					if s := thief.read(g, path); s != verbs.StatusSuccess {
						t.Errorf("%s, access to chunk %d over path %d: %v", when, g.Chunk, path, s)
					}
				}
			}
		}
		access("after that")
		honest := cl.Open(pool.Config{})
		var chunks []*pool.Chunk
		for range budget {
			chunks = append(chunks, honest.MustAlloc(t))
		}
		if _, err := honest.AllocOne(t.Context()); !errors.Is(err, manager.ErrBudget) {
			t.Errorf("an honest client's fourth chunk: got %v, want %v", err, manager.ErrBudget)
		}
		if err := chunks[0].Free(t.Context()); err != nil {
			t.Error(err)
		}
		honest.MustAlloc(t)
		access("when another has the rest")
	})
}

// TestNoPairExceedsTheBudget: every pair that a client allocates with has its part of the
// budget, so that a client that uses all of them at once and asks for more than it may does
// not get more. Where the node has cut it off it may have got less.
func TestNoPairExceedsTheBudget(t *testing.T) {
	both(t, func(t *testing.T, m onesided.Manager) {
		const size, budget = 4096, 5
		cl := pooltest.NewCluster(t, setup(pooltest.Inproc, m),
			memnode.Config{Lend: 4 * budget * size, ChunkSize: size, ClientBudget: budget * size, Grace: time.Minute})
		thief := attachWith(t, cl, m, 2, 2)
		onesided.Greedy(thief.Session)
		got := 0
		for range 4 * budget {
			var g [1]manager.Grant
			if n, err := thief.Alloc(t.Context(), g[:]); err == nil {
				got += n
			}
		}
		if got > budget || m.Native && got < budget {
			t.Errorf("it got %d chunks, want %d", got, budget)
		}
		if st := cl.Nodes[0].Stats(); st.Lent != int64(got) || !m.Native && st.CutOff != 1 {
			t.Errorf("%d chunks are lent, want %d; %d clients were cut off", st.Lent, got, st.CutOff)
		}
	})
}

// TestAllOfTheBudget: an honest client gets all that it may have, in whatever part of the
// budget, before and after it has come back with other numbers of queue pairs.
func TestAllOfTheBudget(t *testing.T) {
	both(t, func(t *testing.T, m onesided.Manager) {
		const size, budget = 4096, 7
		cl := pooltest.NewCluster(t, setup(pooltest.Inproc, m),
			memnode.Config{Lend: 4 * budget * size, ChunkSize: size, ClientBudget: budget * size, Grace: time.Minute})
		fill := func(s *bare, held int) (all []manager.Grant) {
			t.Helper()
			for {
				g := make([]manager.Grant, budget)
				n, err := s.Alloc(t.Context(), g)
				if err != nil {
					if !errors.Is(err, manager.ErrBudget) || held+len(all) != budget {
						t.Fatalf("with %d chunks: got %v, want %v with %d", held+len(all), err, manager.ErrBudget, budget)
					}
					return all
				}
				all = append(all, g[:n]...)
			}
		}
		first := attachWith(t, cl, m, 3, 2)
		all := fill(first, 0)
		if err := first.Free(t.Context(), []uint32{all[0].Chunk, all[5].Chunk}); err != nil {
			t.Fatal(err)
		}
		second := resume(t, cl, m, first, 2, 1)
		owned, err := second.Owned(t.Context())
		if err != nil || len(owned) != budget-2 {
			t.Fatalf("it has %d chunks, %v, want %d", len(owned), err, budget-2)
		}
		owned = append(owned, fill(second, len(owned))...)
		for _, g := range owned {
			for path := range 2 {
				if s := second.read(g, path); s != verbs.StatusSuccess {
					t.Errorf("chunk %d of group %d over path %d: %v", g.Chunk, g.Group, path, s)
				}
			}
			if err := second.Free(t.Context(), []uint32{g.Chunk}); err != nil {
				t.Errorf("chunk %d: %v", g.Chunk, err)
			}
		}
		if len(fill(second, 0)) != budget {
			t.Error("what was freed cannot be had again")
		}
	})
}

// TestNoMoreQueuePairsThanGranted: a node says how many queue pairs a client may have, and
// connects no others.
func TestNoMoreQueuePairsThanGranted(t *testing.T) {
	both(t, func(t *testing.T, m onesided.Manager) {
		cl := pooltest.NewCluster(t, setup(pooltest.Inproc, m), memnode.Config{Lend: 8 * 4096, ChunkSize: 4096, MaxGroups: 2, MaxPairs: 1})
		b := attachWith(t, cl, m, wire.MaxGroups, wire.MaxPairs)
		if len(b.qps) != 2*2 {
			t.Errorf("it has %d access queue pairs, want 2 groups of 2", len(b.qps))
		}
		for _, h := range []wire.Hello{
			{Kind: wire.KindAccess, Index: 3}, {Kind: wire.KindAccess, Index: 4}, {Kind: wire.KindAccess, Index: 255},
			{Kind: wire.KindAlloc}, {Kind: wire.KindAlloc, Index: 2}, {Kind: wire.KindFree, Index: 1}, {Kind: wire.KindAlloc, Index: 255},
		} {
			h.Manager = m.Name()
			qp, err := b.pd.CreateQP(verbs.QPInit{SendCQ: b.cq, RecvCQ: b.cq, SendDepth: 1, RecvDepth: 1})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := b.conn.Connect(t.Context(), qp, h.Append(nil)); err == nil {
				t.Errorf("another queue pair of kind %d, %d, was connected", h.Kind, h.Index)
			}
		}
		var g [1]manager.Grant
		if _, err := b.Alloc(t.Context(), g[:]); err != nil {
			t.Errorf("after that it cannot allocate: %v", err)
		}
	})
}

// TestOverBudgetWaits: the request that is one too many is not lost. It is served
// when the client gives something back in time.
func TestOverBudgetWaits(t *testing.T) {
	const size, budget = 4096, 2
	m := onesided.Manager{}
	cl := pooltest.NewCluster(t, setup(pooltest.Inproc, m), memnode.Config{Lend: 8 * size, ChunkSize: size, ClientBudget: budget * size})
	pooltest.Eventually(t, "the node looks too late for once", func() bool {
		b := attach(t, cl, m)
		onesided.Greedy(b.Session)
		var g [budget]manager.Grant
		if n, err := b.Alloc(t.Context(), g[:]); err != nil || n != budget {
			t.Fatalf("got %d chunks, %v, want %d", n, err, budget)
		}
		third := make(chan error, 1)
		go func() {
			var g [1]manager.Grant
			_, err := b.Alloc(t.Context(), g[:])
			third <- err
		}()
		freed := b.Free(t.Context(), []uint32{g[0].Chunk})
		return <-third == nil && freed == nil
	})
}

// TestGivingUpCostsNoBudget: calls that give up while the NIC is at work leave no
// chunk behind, and never make an honest client ask for more than it may.
func TestGivingUpCostsNoBudget(t *testing.T) {
	both(t, func(t *testing.T, m onesided.Manager) {
		const size, budget = 512, 3
		cl := pooltest.NewCluster(t, setup(pooltest.TCP, m), memnode.Config{Lend: 8 * size, ChunkSize: size, ClientBudget: budget * size})
		b := attach(t, cl, m)
		take := func(ctx context.Context) []uint32 {
			var g [1]manager.Grant
			n, err := b.Alloc(ctx, g[:])
			switch {
			case n == 1:
				return []uint32{g[0].Chunk}
			case ctx.Err() == nil && !errors.Is(err, manager.ErrBudget):
				t.Fatal(err)
			}
			return nil
		}
		held := append(take(t.Context()), take(t.Context())...)
		for i := range 500 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Microsecond)
			got := append(take(ctx), take(t.Context())...)
			if len(got) > 1 {
				t.Fatalf("it has %d chunks of %d", len(held)+len(got), budget)
			}
			if err := b.Free(t.Context(), got); err != nil {
				t.Fatal(err)
			}
			cancel()
		}
		pooltest.Eventually(t, "it can have its budget", func() bool {
			held = append(held, take(t.Context())...)
			return len(held) == budget
		})
		if st := cl.Nodes[0].Stats(); st.Lent != budget || st.CutOff != 0 {
			t.Errorf("%d chunks are lent, want %d; %d clients cut off, want none", st.Lent, budget, st.CutOff)
		}
	})
}

// TestFreeingWhatIsNotOnesOwn is turned down without asking the node.
func TestFreeingWhatIsNotOnesOwn(t *testing.T) {
	both(t, func(t *testing.T, m onesided.Manager) {
		cl := pooltest.NewCluster(t, setup(pooltest.Inproc, m), memnode.Config{Lend: 8 * 4096, ChunkSize: 4096})
		b := attach(t, cl, m)
		g := make([]manager.Grant, 3)
		n, err := b.Alloc(t.Context(), g)
		if err != nil || n != 3 {
			t.Fatalf("got %d chunks, %v, want 3", n, err)
		}
		for _, chunks := range [][]uint32{{7}, {g[0].Chunk, 7}, {g[1].Chunk, g[1].Chunk}} {
			if err := b.Free(t.Context(), chunks); !errors.Is(err, manager.ErrRefused) {
				t.Errorf("freeing %v: got %v, want %v", chunks, err, manager.ErrRefused)
			}
		}
		if err := b.Free(t.Context(), []uint32{g[0].Chunk, g[1].Chunk, g[2].Chunk}); err != nil {
			t.Error(err)
		}
		if lent := cl.Nodes[0].Stats().Lent; lent != 0 {
			t.Errorf("%d chunks are lent, want none", lent)
		}
	})
}
