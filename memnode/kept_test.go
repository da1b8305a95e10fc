package memnode_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"polder/memnode"
	"polder/memnode/wire"
	"polder/pool/finemem"
	"polder/pool/pooltest"
	"polder/verbs"
)

var orders = wire.Keep{Epoch: 4, Heap: "orders"}

// keep is openRaw for a session that is to be kept so, or not at all. An error is the node's.
func keep(t *testing.T, c *pooltest.Cluster, k wire.Keep, resume wire.Session) (*raw, error) {
	t.Helper()
	r := dialRaw(t, c, c.Nodes[0])
	h := wire.Hello{Kind: wire.KindManagement, Manager: memnode.RPCMW, Session: resume, Keep: k}
	private, err := r.hello(r.mgmt, h)
	if err != nil {
		return nil, err
	}
	if err := r.w.Decode(private); err != nil {
		return nil, err
	}
	_, err = r.hello(r.access, wire.Hello{Kind: wire.KindAccess, Manager: memnode.RPCMW})
	return r, err
}

func mustKeep(t *testing.T, c *pooltest.Cluster, k wire.Keep, resume wire.Session) *raw {
	t.Helper()
	r, err := keep(t, c, k, resume)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// owned is what r has, by a request that binds it to r's queue pair.
func (r *raw) owned() (grants []wire.Grant) {
	r.t.Helper()
	reply := r.call(wire.AppendRequest(nil, wire.OpOwned, 1, wire.MaxBatch, 0))
	if reply.Status != wire.StatusOK {
		r.t.Fatalf("owned: %v", reply.Status)
	}
	for i := range reply.N {
		grants = append(grants, reply.Grant(i))
	}
	return grants
}

func TestAKeptSessionOutlivesItsClient(t *testing.T) {
	overDrivers(t, func(t *testing.T, s pooltest.Setup) {
		cfg := node(8)
		cfg.Grace = 10 * time.Millisecond
		c := pooltest.NewCluster(t, s, cfg)
		n := c.Nodes[0]
		a := mustKeep(t, c, orders, wire.Session{})
		grants := a.alloc(3)
		copy(a.mem[4096:], "mine")
		if got := a.access1(verbs.OpWrite, a.addr(grants[1].Chunk), grants[1].Key, 4); got != verbs.StatusSuccess {
			t.Fatal(got)
		}
		if st := n.Stats(); st.Kept != 1 || st.KeptAway != 0 {
			t.Errorf("%d sessions and %d chunks of clients that are away are kept, want 1 and 0", st.Kept, st.KeptAway)
		}
		a.conn.Close()
		pooltest.Eventually(t, "the client is missed", func() bool { return n.Stats().Clients == 0 })
		// Whoever comes and goes after it is reclaimed, and it is not.
		other := openRaw(t, c, n, wire.Session{})
		other.alloc(1)
		other.conn.Close()
		pooltest.Eventually(t, "a session that is not kept is reclaimed", func() bool { return n.Stats().Reclaimed == 1 })
		infos := n.Memnode().Clients()
		if len(infos) != 1 || infos[0].Heap != "orders" || infos[0].Epoch != 4 || infos[0].Chunks != 3 || !infos[0].Expires.IsZero() {
			t.Fatalf("the sessions are %+v, want one of heap orders, epoch 4, with 3 chunks, that does not expire", infos)
		}
		if st := n.Stats(); st.Kept != 1 || st.KeptAway != 3 {
			t.Errorf("%d sessions and %d chunks of clients that are away are kept, want 1 and 3", st.Kept, st.KeptAway)
		}

		b := mustKeep(t, c, orders, a.w.Session)
		if !b.w.Resumed || b.w.Session != a.w.Session {
			t.Fatal("the session was not resumed")
		}
		again := b.owned()
		if len(again) != 3 || again[1].Chunk != grants[1].Chunk {
			t.Fatalf("it has %v, want %v under other keys", again, grants)
		}
		clear(b.mem)
		if got := b.access1(verbs.OpRead, b.addr(again[1].Chunk), again[1].Key, 4); got != verbs.StatusSuccess || string(b.mem[4096:4100]) != "mine" {
			t.Fatalf("got %v, %q, want what was written", got, b.mem[4096:4100])
		}
		// With nothing left there is nothing to keep.
		if got := b.free(again[0].Chunk, again[1].Chunk, again[2].Chunk); got != wire.StatusOK {
			t.Fatal(got)
		}
		b.conn.Close()
		pooltest.Eventually(t, "the session is forgotten", func() bool { st := n.Stats(); return st.Sessions == 0 && st.Kept == 0 })
		if again := mustKeep(t, c, orders, a.w.Session); again.w.Resumed || again.w.Session.ID == a.w.Session.ID {
			t.Error("a session that had ended was resumed")
		}
	})
}

func TestWhoMayResumeAKeptSession(t *testing.T) {
	overDrivers(t, func(t *testing.T, s pooltest.Setup) {
		c := pooltest.NewCluster(t, s, node(8))
		a := mustKeep(t, c, orders, wire.Session{})
		g := a.alloc(1)[0]
		plain := openRaw(t, c, c.Nodes[0], wire.Session{})
		plain.alloc(1)
		wrong := a.w.Session
		wrong.Secret[7] ^= 1
		wrongPlain := plain.w.Session
		wrongPlain.Secret[7] ^= 1
		later, earlier := orders, orders
		later.Epoch, earlier.Epoch = 9, 3
		for what, try := range map[string]struct {
			keep    wire.Keep
			session wire.Session
			want    wire.Refusal
		}{
			"a lower epoch":                              {earlier, a.w.Session, wire.Superseded},
			"a wrong secret":                             {later, wrong, wire.Denied},
			"a wrong secret and a lower epoch":           {earlier, wrong, wire.Denied},
			"a wrong secret and no epoch":                {wire.Keep{}, wrong, wire.Denied},
			"no epoch":                                   {wire.Keep{}, a.w.Session, wire.Denied},
			"a session that is not kept":                 {later, plain.w.Session, wire.Denied},
			"another's that is not kept, a wrong secret": {later, wrongPlain, wire.Denied},
		} {
			_, err := keep(t, c, try.keep, try.session)
			if !try.want.Is(err) {
				t.Errorf("%s: got %v, want it %s", what, err, try.want)
			}
			if err != nil && strings.Contains(err.Error(), "epoch 4") != (try.want == wire.Superseded) {
				t.Errorf("%s: %q: a stranger is not told the epoch, and who was superseded is", what, err)
			}
		}
		// Nobody who was refused has disturbed those who are in.
		if got := a.access1(verbs.OpWrite, a.addr(g.Chunk), g.Key, 4); got != verbs.StatusSuccess {
			t.Errorf("the owner's write: %v", got)
		}
		for _, epoch := range []uint64{4, 9} {
			k := orders
			k.Epoch = epoch
			b := mustKeep(t, c, k, a.w.Session)
			if !b.w.Resumed || len(b.owned()) != 1 {
				t.Errorf("epoch %d: resumed %v, want its chunk", epoch, b.w.Resumed)
			}
			select {
			case <-a.conn.Done():
			case <-time.After(pooltest.Patience):
				t.Errorf("epoch %d: the connection before it still stands", epoch)
			}
			a = b
		}
		if _, err := keep(t, c, orders, a.w.Session); !wire.Superseded.Is(err) {
			t.Errorf("the epoch before: got %v, want it %s", err, wire.Superseded)
		}
		// What the node does not know it has lost: the client is told by a new session.
		if b := mustKeep(t, c, orders, wire.Session{ID: 77}); b.w.Resumed || b.w.Session.ID == 77 {
			t.Error("a session that the node does not know was resumed")
		}
	})
}

// What an earlier client has posted, and goes on posting, lands no more once the node has answered the one that takes
// over.
func TestASupersededClientWritesNoMore(t *testing.T) {
	for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.TCP, pooltest.SHM} {
		t.Run(s.Name, func(t *testing.T) {
			const size = 16 << 10
			cfg := node(4)
			cfg.ChunkSize, cfg.Lend = size, 4*size
			c := pooltest.NewCluster(t, messages(s), cfg)
			k, session := orders, wire.Session{}
			for range 8 {
				old := mustKeep(t, c, k, session)
				session = old.w.Session
				var g wire.Grant
				if all := old.owned(); len(all) > 0 {
					g = all[0]
				} else {
					g = old.alloc(1)[0]
				}
				begun, ended := make(chan struct{}), make(chan error, 1)
				go func() { ended <- old.flood(g, size, begun) }()
				select {
				case <-begun:
				case err := <-ended:
					t.Fatal(err)
				}
				next := dialRaw(t, c, c.Nodes[0])
				k.Epoch++
				if _, err := next.hello(next.mgmt, wire.Hello{Kind: wire.KindManagement, Manager: memnode.RPCMW, Session: session, Keep: k}); err != nil {
					t.Fatal(err)
				}
				chunk := c.Nodes[0].Memnode().Memory()[int(g.Chunk)*size:][:size]
				then := bytes.Clone(chunk)
				if err := <-ended; err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(chunk, then) {
					t.Fatal("a superseded client has written")
				}
				next.conn.Close()
			}
		})
	}
}

// flood writes to g until that fails, after which it returns nil. It closes begun when the first WRITE is done.
func (r *raw) flood(g wire.Grant, size int, begun chan<- struct{}) error {
	ctx, cancel := context.WithTimeout(context.Background(), pooltest.Patience)
	defer cancel()
	for k := range 2 { // two halves of r.mem's end that differ
		copy(r.mem[(1+k)*size:][:size], bytes.Repeat([]byte{byte(1 + k)}, size))
	}
	var wc [1]verbs.WC
	for posted, done := 0, 0; ; {
		for ; posted < done+16; posted++ {
			if err := r.access.PostSend(verbs.SendWR{
				Op: verbs.OpWrite, Flags: verbs.SendSignaled, RemoteAddr: g.Addr, RKey: g.Key,
				SGL: []verbs.SGE{{Addr: r.mr.Addr() + uint64((1+posted%2)*size), Length: uint32(size), LKey: r.mr.LKey()}},
			}); err != nil {
				return fmt.Errorf("cannot post: %w", err)
			}
		}
		for r.acq.Poll(wc[:]) == 0 {
			if err := r.acq.Wait(ctx); err != nil {
				return err
			}
		}
		if wc[0].Err() != nil {
			return nil
		}
		if done++; done == 1 {
			close(begun)
		}
	}
}

func TestANodeKeepsSoManySessions(t *testing.T) {
	cfg := node(4)
	cfg.MaxKept = 1
	c := pooltest.NewCluster(t, messages(pooltest.Inproc), cfg)
	a := mustKeep(t, c, orders, wire.Session{})
	a.alloc(1)
	if _, err := keep(t, c, orders, wire.Session{}); !errors.As(err, new(*verbs.RejectError)) || !strings.Contains(err.Error(), "no more than 1") {
		t.Errorf("a second kept session of one: got %v, want a rejection that says how many", err)
	}
	mustKeep(t, c, orders, a.w.Session)
	openRaw(t, c, c.Nodes[0], wire.Session{})
}

func TestANodeThatCannotFenceKeepsNothing(t *testing.T) {
	for _, s := range []pooltest.Setup{{Name: memnode.FineMem, Fabric: pooltest.Inproc.Fabric, Manager: finemem.Manager{}}, pooltest.SHM} {
		c := pooltest.NewCluster(t, s, node(4))
		r := dialRaw(t, c, c.Nodes[0])
		_, err := r.hello(r.mgmt, wire.Hello{Kind: wire.KindManagement, Manager: s.Manager.Name(), Keep: orders})
		if !errors.As(err, new(*verbs.RejectError)) || !strings.Contains(err.Error(), s.Manager.Name()) {
			t.Errorf("%s: got %v, want a rejection that names the manager", s.Manager.Name(), err)
		}
	}
}

func TestAnOperatorGivesUpWhatIsKept(t *testing.T) {
	c := pooltest.NewCluster(t, messages(pooltest.Inproc), node(4))
	n := c.Nodes[0].Memnode()
	a := mustKeep(t, c, orders, wire.Session{})
	a.alloc(3)
	plain := openRaw(t, c, c.Nodes[0], wire.Session{})
	plain.alloc(1)
	id := a.w.Session.ID
	if _, err := n.GiveUp(id); !errors.Is(err, memnode.ErrConnected) {
		t.Errorf("a session in use: got %v, want %v", err, memnode.ErrConnected)
	}
	for _, id := range []uint64{id + 1, plain.w.Session.ID} {
		if _, err := n.GiveUp(id); !errors.Is(err, memnode.ErrNoSession) {
			t.Errorf("no kept session: got %v, want %v", err, memnode.ErrNoSession)
		}
	}
	a.conn.Close()
	pooltest.Eventually(t, "the client is missed", func() bool { return n.Stats().Clients == 1 })
	if chunks, err := n.GiveUp(id); err != nil || chunks != 3 {
		t.Errorf("got %d chunks, %v, want 3", chunks, err)
	}
	if st := n.Stats(); st.Kept != 0 || st.KeptAway != 0 || st.Lent != 1 || st.Reclaimed != 3 {
		t.Errorf("afterwards %d sessions and %d chunks are kept, %d lent, %d reclaimed, want 0, 0, 1 and 3", st.Kept, st.KeptAway, st.Lent, st.Reclaimed)
	}
	if b := mustKeep(t, c, orders, a.w.Session); b.w.Resumed {
		t.Error("a session that was given up was resumed")
	}
}

// A node that is drained waits for what is kept, and says for whom.
func TestADrainNamesTheHeapThatIsKept(t *testing.T) {
	c := pooltest.NewCluster(t, messages(pooltest.Inproc), node(4))
	n := c.Nodes[0].Memnode()
	a := mustKeep(t, c, orders, wire.Session{})
	a.alloc(1)
	a.conn.Close()
	pooltest.Eventually(t, "the client is missed", func() bool { return n.Stats().Clients == 0 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var held *memnode.HeldError
	if err := memnode.Drain(ctx, n); !errors.As(err, &held) || !strings.Contains(err.Error(), "heap orders") {
		t.Errorf("got %v, want that heap orders has something", err)
	}
}
