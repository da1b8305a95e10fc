package memnode_test

import (
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"polder/internal/ratelog"
	"polder/memnode"
	"polder/memnode/wire"
	"polder/pool"
	"polder/pool/pooltest"
	"polder/verbs"
)

const chunk = 1 << 16

func node(chunks int) memnode.Config {
	return memnode.Config{Lend: int64(chunks) * chunk, ChunkSize: chunk, Grace: time.Minute}
}

// victim is an honest client that must notice nothing.
func victim(t *testing.T, c *pooltest.Cluster) (check func()) {
	t.Helper()
	k := c.Open(pool.Config{})
	ch := k.MustAlloc(t)
	if _, err := ch.WriteAt([]byte("untouched"), 0); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		got := make([]byte, 9)
		if _, err := ch.ReadAt(got, 0); err != nil || string(got) != "untouched" {
			t.Fatalf("the honest client reads %q, %v", got, err)
		}
		other := k.MustAlloc(t)
		if err := other.Free(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := k.Stats().Nodes[0].Reconnects; n != 0 {
			t.Fatalf("the honest client lost its connection %d times", n)
		}
	}
}

// Every one-sided access that is not to a chunk of the client's own, through
// its own queue pair, with its present key, must be refused.
func TestAccessOutsideOnesOwnChunks(t *testing.T) {
	type env struct {
		r         *raw
		mine      wire.Grant
		neighbour wire.Grant // another raw client's
		n         *pooltest.Node
	}
	for _, attack := range []struct {
		name string
		run  func(*testing.T, env) verbs.Status
	}{
		{"read with a key that has been freed", func(t *testing.T, e env) verbs.Status {
			if s := e.r.free(e.mine.Chunk); s != wire.StatusOK {
				t.Fatal(s)
			}
			return e.r.access1(verbs.OpRead, e.r.addr(e.mine.Chunk), e.mine.Key, 8)
		}},
		{"write with the key that the chunk had before", func(t *testing.T, e env) verbs.Status {
			if s := e.r.free(e.mine.Chunk); s != wire.StatusOK {
				t.Fatal(s)
			}
			pooltest.Eventually(t, "the chunk is free", func() bool { return e.n.Stats().Dirty == 0 })
			if again := e.r.alloc(1)[0]; again.Chunk != e.mine.Chunk || again.Key == e.mine.Key {
				t.Fatalf("granted %v, then %v", e.mine, again)
			}
			return e.r.access1(verbs.OpWrite, e.r.addr(e.mine.Chunk), e.mine.Key, 8)
		}},
		{"read a neighbour's chunk with its stolen key", func(t *testing.T, e env) verbs.Status {
			return e.r.access1(verbs.OpRead, e.r.addr(e.neighbour.Chunk), e.neighbour.Key, 8)
		}},
		{"write a neighbour's chunk with its stolen key", func(t *testing.T, e env) verbs.Status {
			return e.r.access1(verbs.OpWrite, e.r.addr(e.neighbour.Chunk), e.neighbour.Key, 8)
		}},
		{"add to a neighbour's chunk with its stolen key", func(t *testing.T, e env) verbs.Status {
			return e.r.access1(verbs.OpFetchAdd, e.r.addr(e.neighbour.Chunk), e.neighbour.Key, 8)
		}},
		{"read a neighbour's chunk with one's own key", func(t *testing.T, e env) verbs.Status {
			return e.r.access1(verbs.OpRead, e.r.addr(e.neighbour.Chunk), e.mine.Key, 8)
		}},
		{"read over the end of the window", func(t *testing.T, e env) verbs.Status {
			return e.r.access1(verbs.OpRead, e.r.addr(e.mine.Chunk)+chunk-4, e.mine.Key, 8)
		}},
		{"write before the beginning of the window", func(t *testing.T, e env) verbs.Status {
			return e.r.access1(verbs.OpWrite, e.r.addr(e.mine.Chunk)-4, e.mine.Key, 8)
		}},
		{"read at an address that wraps around", func(t *testing.T, e env) verbs.Status {
			return e.r.access1(verbs.OpRead, ^uint64(0)-3, e.mine.Key, 8)
		}},
	} {
		t.Run(attack.name, func(t *testing.T) {
			overDrivers(t, func(t *testing.T, s pooltest.Setup) {
				c := pooltest.NewCluster(t, s, node(8))
				check := victim(t, c)
				neighbour := openRaw(t, c, c.Nodes[0], wire.Session{})
				r := openRaw(t, c, c.Nodes[0], wire.Session{})
				e := env{r: r, neighbour: neighbour.alloc(1)[0], mine: r.alloc(1)[0], n: c.Nodes[0]}
				if got := r.access1(verbs.OpWrite, r.addr(e.mine.Chunk), e.mine.Key, 64); got != verbs.StatusSuccess {
					t.Fatalf("writing one's own chunk: %v", got)
				}
				if got := attack.run(t, e); got != verbs.StatusRemAccessErr {
					t.Fatalf("got %v, want %v", got, verbs.StatusRemAccessErr)
				}
				pooltest.Eventually(t, "the violation is counted", func() bool { return c.Nodes[0].Stats().Violations == 1 })
				if got := neighbour.access1(verbs.OpRead, neighbour.addr(e.neighbour.Chunk), e.neighbour.Key, 8); got != verbs.StatusSuccess {
					t.Fatalf("the neighbour reads its own chunk: %v", got)
				}
				check()
			})
		})
	}
}

// A type 2B window is out of reach whatever the key, so guessing does not help.
func TestGuessingKeysOfALentChunk(t *testing.T) {
	c := pooltest.NewCluster(t, messages(pooltest.Inproc), node(4))
	owner := openRaw(t, c, c.Nodes[0], wire.Session{})
	g := owner.alloc(1)[0]
	for key := range 256 {
		r := openRaw(t, c, c.Nodes[0], wire.Session{})
		if got := r.access1(verbs.OpRead, r.addr(g.Chunk), verbs.MakeRKey(g.Key.Index(), uint8(key)), 8); got != verbs.StatusRemAccessErr {
			t.Fatalf("key %#x: got %v, want %v", key, got, verbs.StatusRemAccessErr)
		}
		r.conn.Close()
	}
	// Nor is the registration underneath open to anybody.
	for index := range uint32(16) {
		for key := range 256 {
			k := verbs.MakeRKey(index, uint8(key))
			if k == g.Key || key > 8 && index > 4 {
				continue
			}
			r := openRaw(t, c, c.Nodes[0], wire.Session{})
			if got := r.access1(verbs.OpRead, r.addr(3), k, 8); got != verbs.StatusRemAccessErr {
				t.Fatalf("key %v: got %v, want %v", k, got, verbs.StatusRemAccessErr)
			}
			r.conn.Close()
		}
	}
}

func TestFreeingWhatIsNotOnesOwn(t *testing.T) {
	overDrivers(t, func(t *testing.T, s pooltest.Setup) {
		c := pooltest.NewCluster(t, s, node(8))
		check := victim(t, c)
		r := openRaw(t, c, c.Nodes[0], wire.Session{})
		mine := r.alloc(2)
		lent := c.Nodes[0].Stats().Lent
		for name, list := range map[string][]uint32{
			"another's":                {0},
			"nobody's":                 {7},
			"none that there is":       {8},
			"far off":                  {1<<32 - 1},
			"one twice":                {mine[0].Chunk, mine[0].Chunk},
			"one's own and another's":  {mine[0].Chunk, 0},
			"one's own and impossible": {mine[0].Chunk, mine[1].Chunk, 1 << 31},
		} {
			if got := r.free(list...); got != wire.StatusNotOwner {
				t.Errorf("freeing %s (%d): got %v, want %v", name, list, got, wire.StatusNotOwner)
			}
		}
		if got := c.Nodes[0].Stats().Lent; got != lent {
			t.Fatalf("%d chunks are lent, want %d", got, lent)
		}
		if got := r.access1(verbs.OpRead, r.addr(mine[0].Chunk), mine[0].Key, 8); got != verbs.StatusSuccess {
			t.Fatalf("reading one's own chunk: %v", got)
		}
		if got := r.free(mine[0].Chunk, mine[1].Chunk); got != wire.StatusOK {
			t.Fatalf("freeing one's own chunks: %v", got)
		}
		if got := r.free(mine[0].Chunk); got != wire.StatusNotOwner {
			t.Fatalf("freeing a chunk again: %v", got)
		}
		check()
	})
}

func TestMalformedRequests(t *testing.T) {
	overDrivers(t, func(t *testing.T, s pooltest.Setup) {
		c := pooltest.NewCluster(t, s, node(8))
		check := victim(t, c)
		r := openRaw(t, c, c.Nodes[0], wire.Session{})
		alloc := wire.AppendRequest(nil, wire.OpAlloc, 5, 1, 0)
		bad := [][]byte{
			append([]byte{99}, alloc[1:]...),
			append([]byte{0xff}, alloc[1:]...),
			wire.AppendRequest(nil, wire.OpAlloc, 5, 0, 0),
			wire.AppendRequest(nil, wire.OpAlloc, 5, 65535, 0),
			wire.AppendRequest(nil, wire.OpFree, 5, 3, 0),
			append(alloc[:len(alloc):len(alloc)], 1, 2, 3),
			make([]byte, wire.MaxMessage),
		}
		for i, b := range bad {
			if reply := r.call(b); reply.Status != wire.StatusBad {
				t.Errorf("request %d: got %v, want %v", i, reply.Status, wire.StatusBad)
			}
		}
		if reply := r.call(wire.AppendRequest(nil, wire.OpOwned, 5, 1, 1000)); reply.Status != wire.StatusBad {
			t.Errorf("listing from beyond the end: got %v, want %v", reply.Status, wire.StatusBad)
		}
		if got := c.Nodes[0].Stats().Malformed; got != int64(len(bad)) {
			t.Errorf("%d malformed requests are counted, want %d", got, len(bad))
		}
		if len(r.alloc(1)) != 1 {
			t.Error("a client that had sent nonsense gets no chunk")
		}
		r.send([]byte("short"))
		<-r.conn.Done()
		check()
	})
}

func TestAClientThatTakesNoReplies(t *testing.T) {
	overDrivers(t, func(t *testing.T, s pooltest.Setup) {
		c := pooltest.NewCluster(t, s, node(8))
		check := victim(t, c)
		r := openRaw(t, c, c.Nodes[0], wire.Session{})
		if err := r.sendOnly(wire.AppendRequest(nil, wire.OpAlloc, 1, 1, 0)); err != nil {
			t.Fatal(err)
		}
		<-r.conn.Done()
		check()
	})
}

func TestAClientThatFloods(t *testing.T) {
	overDrivers(t, func(t *testing.T, s pooltest.Setup) {
		c := pooltest.NewCluster(t, s, node(8))
		check := victim(t, c)
		r := openRaw(t, c, c.Nodes[0], wire.Session{})
		msg := wire.AppendRequest(nil, wire.OpOwned, 1, 1, 0)
		var wrs []verbs.SendWR
		n := copy(r.mem, msg)
		for range 100 {
			wrs = append(wrs, verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{{Addr: r.mr.Addr(), Length: uint32(n), LKey: r.mr.LKey()}}})
		}
		if err := r.mgmt.PostSend(wrs...); err != nil {
			t.Fatal(err)
		}
		<-r.conn.Done()
		check()
	})
}

// A client that asks for much and reads nothing holds up nobody but itself,
// not even by asking for chunks meanwhile.
func TestAClientThatReadsNothing(t *testing.T) {
	const size = 1 << 20
	c := pooltest.NewCluster(t, messages(pooltest.TCP), memnode.Config{Lend: 16 * size, ChunkSize: size, Grace: time.Minute})
	x := pooltest.NewProxy(t, c.Nodes[0].Addr)
	r := openRawAt(t, c, x.Addr(), wire.Session{})
	g := r.alloc(1)[0]
	x.FreezeBack()
	big, err := r.pd.RegMR(make([]byte, size), verbs.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	for range 60 { // more than all buffers on the way hold
		err := r.access.PostSend(verbs.SendWR{
			Op: verbs.OpRead, RemoteAddr: r.addr(g.Chunk), RKey: g.Key,
			SGL: []verbs.SGE{{Addr: big.Addr(), Length: size, LKey: big.LKey()}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	before := c.Nodes[0].Stats().Lent
	r.send(wire.AppendRequest(nil, wire.OpAlloc, 9, 3, 0))
	pooltest.Eventually(t, "its request is served", func() bool { return c.Nodes[0].Stats().Lent == before+3 })
	victim(t, c)()
}

func TestASendOnTheAccessQueuePair(t *testing.T) {
	c := pooltest.NewCluster(t, messages(pooltest.Inproc), node(8))
	check := victim(t, c)
	r := openRaw(t, c, c.Nodes[0], wire.Session{})
	if got := r.access1(verbs.OpSend, 0, 0, 64); got == verbs.StatusSuccess {
		t.Fatal("the node took a message on an access queue pair")
	}
	g := r.alloc(1)[0]
	if got := r.access1(verbs.OpRead, r.addr(g.Chunk), g.Key, 8); got == verbs.StatusSuccess {
		t.Fatal("a dead access queue pair reads")
	}
	check()
}

func TestConnectionsThatAreRefused(t *testing.T) {
	overDrivers(t, func(t *testing.T, s pooltest.Setup) {
		c := pooltest.NewCluster(t, s, node(8))
		check := victim(t, c)
		mgmt := wire.Hello{Kind: wire.KindManagement, Manager: memnode.RPCMW}
		access := wire.Hello{Kind: wire.KindAccess, Manager: memnode.RPCMW}
		rejected := func(what, why string, err error) {
			t.Helper()
			var r *verbs.RejectError
			if !errors.As(err, &r) || !strings.Contains(r.Reason, why) {
				t.Errorf("%s: got %v, want a rejection that says %q", what, err, why)
			}
		}
		r := dialRaw(t, c, c.Nodes[0])
		_, err := r.conn.Connect(t.Context(), r.mgmt, []byte("GET / HTTP/1.1"))
		rejected("another protocol", "malformed", err)
		_, err = r.conn.Connect(t.Context(), r.mgmt, nil)
		rejected("nothing", "malformed", err)
		_, err = r.hello(r.mgmt, wire.Hello{Kind: wire.KindManagement, Manager: "magic"})
		rejected("an unknown manager", "rpcmw", err)
		_, err = r.hello(r.access, access)
		rejected("access first", "management", err)
		if _, err = r.hello(r.mgmt, mgmt); err != nil {
			t.Fatal(err)
		}
		if got := r.call(wire.AppendRequest(nil, wire.OpAlloc, 1, 1, 0)).Status; got != wire.StatusNoAccess {
			t.Errorf("allocating without an access queue pair: got %v, want %v", got, wire.StatusNoAccess)
		}
		if _, err = r.hello(r.access, access); err != nil {
			t.Fatal(err)
		}
		second, err := r.pd.CreateQP(verbs.QPInit{SendCQ: r.cq, RecvCQ: r.cq, SendDepth: 8, RecvDepth: 8})
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.hello(second, mgmt)
		rejected("a second management queue pair", "one management", err)
		_, err = r.hello(second, access)
		rejected("a second access queue pair", "one access", err)
		if got := c.Nodes[0].Stats().Refused; got != 6 {
			t.Errorf("%d refusals are counted, want 6", got)
		}
		check()
	})
}

// lines counts lines of a log.
type lines struct{ n atomic.Int64 }

func (l *lines) Write(p []byte) (int, error) {
	l.n.Add(1)
	return len(p), nil
}

func TestNonsenseDoesNotFillTheLog(t *testing.T) {
	var log lines
	cfg := node(4)
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	c := pooltest.NewCluster(t, messages(pooltest.Inproc), cfg)
	r := openRaw(t, c, c.Nodes[0], wire.Session{})
	start := time.Now()
	const n = 2000
	for range n {
		if got := r.free(1); got != wire.StatusNotOwner {
			t.Fatal(got)
		}
	}
	// Beside that a client has connected, there is one message.
	allowed := int64(1 + ratelog.Burst + time.Since(start)/ratelog.Every)
	if got := log.n.Load(); got == 0 || got > allowed {
		t.Fatalf("%d offences gave %d log lines, want 1 to %d", n, got, allowed)
	}
	if got := c.Nodes[0].Stats().NotOwner; got != n {
		t.Fatalf("%d offences are counted, want %d", got, n)
	}
}

// TestEachChunkIsOpenToItsGroupAlone: a client has as many groups of queue pairs as the node
// says, and no others, and a chunk's number says which of them reaches it, also when its session
// is resumed. Who connects fewer than it may reaches everything over those.
func TestEachChunkIsOpenToItsGroupAlone(t *testing.T) {
	const groups = 3
	cfg := node(24)
	cfg.MaxGroups = groups
	c := pooltest.NewCluster(t, messages(pooltest.Inproc), cfg)
	check := victim(t, c)
	// open asks for more groups than there may be, and connects n.
	open := func(n int, resume wire.Session) (*raw, []verbs.QP) {
		t.Helper()
		r := dialRaw(t, c, c.Nodes[0])
		private, err := r.hello(r.mgmt, wire.Hello{Kind: wire.KindManagement, Manager: memnode.RPCMW, Session: resume, Groups: wire.MaxGroups})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.w.Decode(private); err != nil || r.w.Groups != groups {
			t.Fatalf("got %d groups, %v, want %d", r.w.Groups, err, groups)
		}
		var qps []verbs.QP
		for i := range groups + 1 {
			qp, err := r.pd.CreateQP(verbs.QPInit{SendCQ: r.acq, RecvCQ: r.acq, SendDepth: 8, RecvDepth: 1})
			if err != nil {
				t.Fatal(err)
			}
			access := wire.Hello{Kind: wire.KindAccess, Manager: memnode.RPCMW, Index: uint8(i)}
			if i == 0 {
				ahead := access
				ahead.Index = 1
				if _, err := r.hello(qp, ahead); err == nil {
					t.Error("the second queue pair was connected before the first")
				}
			}
			if i == n && n < groups {
				break
			}
			_, err = r.hello(qp, access)
			if connected := err == nil; connected != (i < groups) {
				t.Fatalf("access queue pair %d of %d: %v", i, groups, err)
			}
			if err == nil {
				qps = append(qps, qp)
			}
		}
		return r, qps
	}
	reaches := func(r *raw, qp verbs.QP, g wire.Grant) bool {
		t.Helper()
		r.access = qp
		return r.access1(verbs.OpRead, r.addr(g.Chunk), g.Key, 8) == verbs.StatusSuccess
	}
	r, qps := open(groups, wire.Session{})
	grants := r.alloc(7)
	reply := r.call(wire.AppendRequest(nil, wire.OpOwned, 1, wire.MaxBatch, 0))
	for i, g := range grants {
		if group := wire.GroupOf(g.Chunk, groups); reply.Grant(i) != g || !reaches(r, qps[group], g) {
			t.Errorf("chunk %d, listed as %+v, is not open to group %d", g.Chunk, reply.Grant(i), group)
		}
	}
	if other := (wire.GroupOf(grants[0].Chunk, groups) + 1) % groups; reaches(r, qps[other], grants[0]) {
		t.Errorf("chunk %d is open to group %d as well", grants[0].Chunk, other)
	}
	session := r.w.Session
	r.conn.Close()
	r, qps = open(groups, session)
	reply = r.call(wire.AppendRequest(nil, wire.OpOwned, 1, wire.MaxBatch, 0))
	if reply.N != len(grants) {
		t.Fatalf("%d chunks are listed after the session was resumed, want %d", reply.N, len(grants))
	}
	for i := range reply.N {
		if g := reply.Grant(i); !reaches(r, qps[wire.GroupOf(g.Chunk, groups)], g) {
			t.Errorf("chunk %d is not open to its group after the session was resumed", g.Chunk)
		}
	}
	r, qps = open(1, wire.Session{})
	for _, g := range r.alloc(7) {
		if !reaches(r, qps[0], g) {
			t.Errorf("chunk %d is not open to the only queue pair that was connected", g.Chunk)
		}
	}
	check()
}
