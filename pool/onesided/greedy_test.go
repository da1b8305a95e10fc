package onesided_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"polder/memnode"
	"polder/pool"
	"polder/pool/mech"
	"polder/pool/onesided"
	"polder/pool/pooltest"
	"polder/verbs"
)

// bare is a session without a pool around it.
type bare struct {
	mech.Session
	t   *testing.T
	mr  verbs.MR
	cq  verbs.CQ
	qps []verbs.QP
}

func attach(t *testing.T, cl *pooltest.Cluster, m onesided.Mechanism) *bare {
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
	b := &bare{t: t}
	b.mr, err = pd.RegMR(make([]byte, 4096), verbs.AccessLocalWrite)
	must(err)
	b.cq, err = dev.CreateCQ(verbs.CQInit{Depth: 16})
	must(err)
	conn, err := cl.Fabric.Dial(t.Context(), dev, cl.Nodes[0].Addr)
	must(err)
	b.Session, err = m.Attach(t.Context(), mech.Link{
		Device: dev, PD: pd, Conn: conn,
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

// read reads a chunk over a path.
func (b *bare) read(g mech.Grant, path int) verbs.Status {
	b.t.Helper()
	err := b.qps[path].PostSend(verbs.SendWR{
		Op: verbs.OpRead, Flags: verbs.SendSignaled, RemoteAddr: g.Addr, RKey: g.Keys[path],
		SGL: []verbs.SGE{{Addr: b.mr.Addr(), Length: 64, LKey: b.mr.LKey()}},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.t.Context(), 10*time.Second)
	defer cancel()
	var wc [1]verbs.WC
	for b.cq.Poll(wc[:]) == 0 {
		if err := b.cq.Wait(ctx); err != nil {
			b.t.Fatal(err)
		}
	}
	return wc[0].Status
}

// TestBudget: a client that allocates more than it may loses the means to
// allocate, and what it has stays within its reach.
func TestBudget(t *testing.T) {
	both(t, func(t *testing.T, m onesided.Mechanism) {
		const size, budget = 4096, 3
		cl := pooltest.NewCluster(t, setup(pooltest.Inproc, m),
			memnode.Config{Lend: 1 << 12 * size, ChunkSize: size, ClientBudget: budget * size, Grace: time.Minute})
		thief := attach(t, cl, m)
		onesided.Greedy(thief.Session)
		var got []mech.Grant
		pooltest.Eventually(t, "the thief is cut off", func() bool {
			var g [1]mech.Grant
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := thief.Alloc(ctx, g[:]); err != nil {
				return true
			}
			got = append(got, g[0])
			return false
		})
		if m.Native && len(got) != budget {
			t.Errorf("it got %d chunks, want %d: the NIC counts them itself", len(got), budget)
		}
		if len(got) < budget {
			t.Fatalf("it got %d chunks only, want at least %d", len(got), budget)
		}
		for path := range thief.qps {
			for _, g := range []mech.Grant{got[0], got[len(got)-1]} {
				if s := thief.read(g, path); s != verbs.StatusSuccess {
					t.Errorf("access to chunk %d over path %d after that: %v", g.Chunk, path, s)
				}
			}
		}
		honest := cl.Open(pool.Config{})
		for range budget {
			honest.MustAlloc(t)
		}
		if _, err := honest.Alloc(t.Context()); !errors.Is(err, mech.ErrBudget) {
			t.Errorf("an honest client's fourth chunk: got %v, want %v", err, mech.ErrBudget)
		}
	})
}

// TestFreeingWhatIsNotOnesOwn is turned down without asking the node.
func TestFreeingWhatIsNotOnesOwn(t *testing.T) {
	both(t, func(t *testing.T, m onesided.Mechanism) {
		cl := pooltest.NewCluster(t, setup(pooltest.Inproc, m), memnode.Config{Lend: 8 * 4096, ChunkSize: 4096})
		b := attach(t, cl, m)
		g := make([]mech.Grant, 3)
		n, err := b.Alloc(t.Context(), g)
		if err != nil || n != 3 {
			t.Fatalf("got %d chunks, %v, want 3", n, err)
		}
		for _, chunks := range [][]uint32{{7}, {g[0].Chunk, 7}, {g[1].Chunk, g[1].Chunk}} {
			if err := b.Free(t.Context(), chunks); !errors.Is(err, mech.ErrRefused) {
				t.Errorf("freeing %v: got %v, want %v", chunks, err, mech.ErrRefused)
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
