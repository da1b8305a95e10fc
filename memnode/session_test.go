package memnode_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"polder/memnode"
	"polder/memnode/wire"
	"polder/pool/pooltest"
	"polder/verbs"
)

func TestASessionIsResumedWithItsSecret(t *testing.T) {
	overDrivers(t, func(t *testing.T, s pooltest.Setup) {
		c := pooltest.NewCluster(t, s, node(8))
		a := openRaw(t, c, c.Nodes[0], wire.Session{})
		old := a.alloc(3)
		copy(a.mem[4096:], "mine")
		if got := a.access1(verbs.OpWrite, a.addr(old[1].Chunk), old[1].Key, 4); got != verbs.StatusSuccess {
			t.Fatal(got)
		}

		thief := a.w.Session
		thief.Secret[31] ^= 1
		b := openRaw(t, c, c.Nodes[0], thief)
		if b.w.Resumed || b.w.Session.ID == a.w.Session.ID {
			t.Fatal("a session was resumed without its secret")
		}
		if reply := b.call(wire.AppendRequest(nil, wire.OpOwned, 1, wire.MaxBatch, 0)); reply.N != 0 {
			t.Fatalf("a new client owns %d chunks", reply.N)
		}

		// The true client takes over, though its connection still lives.
		d := openRaw(t, c, c.Nodes[0], a.w.Session)
		if !d.w.Resumed {
			t.Fatal("the session was not resumed")
		}
		<-a.conn.Done()
		reply := d.call(wire.AppendRequest(nil, wire.OpOwned, 1, wire.MaxBatch, 0))
		if reply.Status != wire.StatusOK || reply.N != 3 {
			t.Fatalf("owned: %v, %d chunks, want 3", reply.Status, reply.N)
		}
		for i := range 3 {
			g := reply.Grant(i)
			if g.Chunk != old[i].Chunk || g.Key == old[i].Key {
				t.Fatalf("chunk %d came back as %v, was %v: want the same under another key", i, g, old[i])
			}
		}
		g := reply.Grant(1)
		if got := d.access1(verbs.OpRead, d.addr(g.Chunk), g.Key, 4); got != verbs.StatusSuccess || string(d.mem[4096:4100]) != "mine" {
			t.Fatalf("got %v, %q, want what was written", got, d.mem[4096:4100])
		}
		if got := d.access1(verbs.OpRead, d.addr(old[1].Chunk), old[1].Key, 4); got != verbs.StatusRemAccessErr {
			t.Fatalf("the old key: got %v, want %v", got, verbs.StatusRemAccessErr)
		}
	})
}

func TestChunksOfAClientThatIsGone(t *testing.T) {
	overDrivers(t, func(t *testing.T, s pooltest.Setup) {
		cfg := node(4)
		cfg.Grace = 20 * time.Millisecond
		c := pooltest.NewCluster(t, s, cfg)
		n := c.Nodes[0]
		a := openRaw(t, c, n, wire.Session{})
		a.alloc(4)
		idle := openRaw(t, c, n, wire.Session{})
		if infos := n.Memnode().Clients(); len(infos) != 2 || infos[0].Chunks+infos[1].Chunks != 4 {
			t.Fatalf("clients: %+v, want two with 4 chunks in all", infos)
		}
		a.conn.Close()
		idle.conn.Close()
		pooltest.Eventually(t, "everything is reclaimed", func() bool {
			st := n.Stats()
			return st.Lent == 0 && st.Sessions == 0 && st.Clients == 0 && st.Reclaimed == 4 && st.Dirty == 0
		})
		b := openRaw(t, c, n, a.w.Session)
		if b.w.Resumed {
			t.Fatal("a session was resumed after its grace period")
		}
		if got := len(b.alloc(4)); got != 4 {
			t.Fatalf("got %d chunks, want all 4", got)
		}
	})
}

func TestANodeServesSoManyClients(t *testing.T) {
	cfg := node(4)
	cfg.MaxClients = 2
	c := pooltest.NewCluster(t, messages(pooltest.Inproc), cfg)
	a := openRaw(t, c, c.Nodes[0], wire.Session{})
	a.alloc(1)
	b := openRaw(t, c, c.Nodes[0], wire.Session{})
	r := dialRaw(t, c, c.Nodes[0])
	var rejected *verbs.RejectError
	_, err := r.hello(r.mgmt, wire.Hello{Kind: wire.KindManagement, Manager: "rpcmw"})
	if !errors.As(err, &rejected) {
		t.Fatalf("a third client of two: got %v, want a rejection", err)
	}
	b.conn.Close() // it owns nothing, and makes room at once
	pooltest.Eventually(t, "the second is forgotten", func() bool { return c.Nodes[0].Stats().Sessions == 1 })
	openRaw(t, c, c.Nodes[0], wire.Session{})
	a.conn.Close() // it owns something, and keeps its place
	pooltest.Eventually(t, "the first is missed, and keeps its place", func() bool {
		return slices.ContainsFunc(c.Nodes[0].Memnode().Clients(), func(i memnode.ClientInfo) bool {
			return i.Peer == "" && i.Expires.After(time.Now().Add(memnode.DefaultGrace/2))
		})
	})
	if again := openRaw(t, c, c.Nodes[0], a.w.Session); !again.w.Resumed {
		t.Error("a session was not resumed within its grace period")
	}
}
