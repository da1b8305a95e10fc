package pool_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"polder/internal/child/childtest"
	"polder/memnode"
	"polder/memnode/wire"
	"polder/pool"
	"polder/pool/finemem"
	"polder/pool/onesided"
	"polder/pool/pooltest"
	"polder/pool/rpcmw"
	"polder/verbs"
	"polder/verbs/shm"
	"polder/verbs/tcp"
)

const keptUnit = 16 << 10

// overKeepers runs f over every manager that can keep, over inproc and TCP, also with nodes that are read in place, of 64 units.
func overKeepers(t *testing.T, nodes int, f func(t *testing.T, c *pooltest.Cluster)) {
	for _, m := range []pool.Manager{onesided.Manager{Native: true}, onesided.Manager{}, rpcmw.Manager{}} {
		for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.TCP, pooltest.InPlace} {
			t.Run(m.Name()+" over "+s.Name, func(t *testing.T) {
				s.Manager, s.Groups, s.Pairs = m, 2, 2
				cfg := memnode.Config{Lend: 64 * keptUnit, ChunkSize: keptUnit, Grace: 1}
				f(t, pooltest.NewCluster(t, s, slices.Repeat([]memnode.Config{cfg}, nodes)...))
			})
		}
	}
}

// notes is what a caller stores of a kept pool's sessions.
type notes struct {
	mu       sync.Mutex
	sessions map[string]pool.Session
}

func (n *notes) changed(node string, s pool.Session) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.sessions == nil {
		n.sessions = make(map[string]pool.Session)
	}
	n.sessions[node] = s
}

func (n *notes) all() map[string]pool.Session {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.sessions)
}

// orders is a Keep in an epoch, with what n has noted so far.
func (n *notes) orders(epoch uint64) *pool.Keep {
	return &pool.Keep{Name: "orders", Epoch: epoch, Sessions: n.all(), Changed: n.changed}
}

// filled borrows size bytes of node0 and fills them with b.
func filled(t *testing.T, k *pooltest.Client, size int64, b byte) (*pool.Chunk, pool.Place) {
	t.Helper()
	c, err := k.AllocAt(t.Context(), "node0", size)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.WriteAt(bytes.Repeat([]byte{b}, int(size)), 0); err != nil {
		t.Fatal(err)
	}
	at, ok := c.Place()
	if !ok || at.Node != "node0" || len(at.Units) != int((size-1)/keptUnit+1) {
		t.Fatalf("%d bytes are at %+v, %v", size, at, ok)
	}
	return c, at
}

// wantFilled checks that a chunk has only b.
func wantFilled(t *testing.T, c *pool.Chunk, b byte) {
	t.Helper()
	got := make([]byte, c.Size())
	if _, err := c.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(got, func(g byte) bool { return g != b }); i >= 0 {
		t.Fatalf("byte %d of %s is %#x, want %#x", i, c.Name(), got[i], b)
	}
}

func mustReopen(t *testing.T, p *pool.Pool, at pool.Place, size int64) *pool.Chunk {
	t.Helper()
	c, err := p.Reopen(t.Context(), at, size)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestWhatAKeptPoolHadIsThereForTheNext(t *testing.T) {
	overKeepers(t, 2, func(t *testing.T, c *pooltest.Cluster) {
		const long = 5*keptUnit/2 + 1
		node := c.Nodes[0]
		var n notes
		first := c.Open(pool.Config{Keep: n.orders(1)})
		if got := n.all(); len(got) != 2 || !maps.Equal(got, first.Sessions()) {
			t.Fatalf("it was told of the sessions %v, and has %v", got, first.Sessions())
		}
		_, small := filled(t, first, keptUnit, 1)
		_, large := filled(t, first, long, 2)
		_, lost := filled(t, first, 2*keptUnit, 3) // of which nobody takes note
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		pooltest.Eventually(t, "the pool is missed", func() bool { return node.Stats().Clients == 0 })
		if st := node.Stats(); st.Lent != 6 || st.KeptAway != 6 {
			t.Fatalf("%d units are lent, and %d are kept, want 6 of 6", st.Lent, st.KeptAway)
		}

		// The other node had lent nothing, and has forgotten the session.
		noted := n.all()
		second := c.Open(pool.Config{Keep: n.orders(2)})
		if got := second.Sessions(); got["node0"] != noted["node0"] || got["node1"] == noted["node1"] || !maps.Equal(n.all(), got) {
			t.Fatalf("it has the sessions %v, had %v, and was told of %v", got, noted, n.all())
		}
		second.Cut(node) // what nobody has opened yet survives that, too
		a := mustReopen(t, second.Pool, small, keptUnit)
		b := mustReopen(t, second.Pool, large, long)
		wantFilled(t, a, 1)
		wantFilled(t, b, 2)
		if at, ok := b.Place(); !ok || at.Session != large.Session || !slices.Equal(at.Units, large.Units) {
			t.Errorf("it was reopened at %+v, want %+v", at, large)
		}
		other := small
		other.Session++
		for what, try := range map[string]struct {
			at   pool.Place
			size int64
			want error
		}{
			"what is open":              {small, keptUnit, pool.ErrInUse},
			"another session's":         {other, keptUnit, pool.ErrLost},
			"a unit that nobody has":    {pool.Place{Node: "node0", Session: small.Session, Units: []uint32{63}}, keptUnit, pool.ErrLost},
			"a unit that there is not":  {pool.Place{Node: "node0", Session: small.Session, Units: []uint32{math.MaxUint32}}, keptUnit, pool.ErrLost},
			"the same unit twice":       {pool.Place{Node: "node0", Session: lost.Session, Units: []uint32{lost.Units[0], lost.Units[0]}}, 2 * keptUnit, pool.ErrInUse},
			"less than there is":        {lost, keptUnit, nil},
			"more than there is":        {lost, 2*keptUnit + 1, nil},
			"nothing":                   {pool.Place{Node: "node0", Session: lost.Session}, 0, nil},
			"a node that there is not":  {pool.Place{Node: "node7", Session: small.Session, Units: small.Units}, keptUnit, nil},
			"what a node does not have": {pool.Place{Node: "node1", Session: small.Session, Units: small.Units}, keptUnit, pool.ErrLost},
		} {
			c, err := second.Reopen(t.Context(), try.at, try.size)
			if c != nil || err == nil || try.want != nil && !errors.Is(err, try.want) {
				t.Errorf("%s: got %v, %v, want %v", what, c, err, cmpErr(try.want))
			}
		}
		for _, name := range second.Nodes() {
			if err := second.Prune(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		pooltest.Eventually(t, "what nobody reopened is freed", func() bool { return node.Stats().Lent == 4 })
		if c, err := second.Reopen(t.Context(), lost, 2*keptUnit); !errors.Is(err, pool.ErrLost) {
			t.Errorf("what was pruned: got %v, %v, want %v", c, err, pool.ErrLost)
		}
		wantFilled(t, a, 1)
		filled(t, second, keptUnit, 4)
		if err := b.Free(t.Context()); err != nil {
			t.Fatal(err)
		}
		pooltest.Eventually(t, "what was reopened can be freed", func() bool { return node.Stats().Lent == 2 })
	})
}

func cmpErr(err error) any {
	if err == nil {
		return "an error"
	}
	return err
}

func TestASupersededPoolSaysSo(t *testing.T) {
	overKeepers(t, 2, func(t *testing.T, c *pooltest.Cluster) {
		var n notes
		old := c.Open(pool.Config{Keep: n.orders(1)})
		chunk, at := filled(t, old, 2*keptUnit, 1)
		next := c.Open(pool.Config{Keep: n.orders(2)})
		again := mustReopen(t, next.Pool, at, 2*keptUnit)
		wantFilled(t, again, 1)
		if _, err := again.WriteAt(bytes.Repeat([]byte{2}, 2*keptUnit), 0); err != nil {
			t.Fatal(err)
		}
		for what, op := range map[string]func() error{
			"write":  func() error { _, err := chunk.WriteAt([]byte{9}, 5); return err },
			"read":   func() error { _, err := chunk.ReadAt(make([]byte, 8), 0); return err },
			"add":    func() error { _, err := chunk.FetchAdd(t.Context(), 0, 1); return err },
			"alloc":  func() error { _, err := old.Alloc(t.Context(), 1); return err },
			"at":     func() error { _, err := old.AllocAt(t.Context(), "node1", 1); return err },
			"reopen": func() error { _, err := old.Reopen(t.Context(), at, 2*keptUnit); return err },
			"prune":  func() error { return old.Prune(t.Context(), "node1") },
			"again":  func() error { _, err := chunk.WriteAt([]byte{9}, 5); return err },
		} {
			// Until it has learnt it, what it does may fail for the connection's end, but never succeed.
			pooltest.Eventually(t, "the pool finds out", func() bool {
				err := op()
				if err == nil && what != "alloc" && what != "at" && what != "prune" {
					t.Fatalf("%s of a superseded pool succeeded", what)
				}
				return errors.Is(err, pool.ErrSuperseded)
			})
		}
		if err := chunk.Free(t.Context()); !errors.Is(err, pool.ErrSuperseded) {
			t.Errorf("free: got %v, want %v", err, pool.ErrSuperseded)
		}
		pooltest.Eventually(t, "it connects no more", func() bool {
			return stateOf(old, "node0") == "closed" && stateOf(old, "node1") == "closed"
		})
		wantFilled(t, again, 2)
		if p, err := c.TryOpen(pool.Config{Keep: n.orders(1)}); !errors.Is(err, pool.ErrSuperseded) {
			t.Errorf("opening in the epoch before: got %v, %v, want %v", p, err, pool.ErrSuperseded)
		}
		stolen := n.orders(3)
		for name, s := range stolen.Sessions {
			s.Secret[0] ^= 1
			stolen.Sessions[name] = s
		}
		if p, err := c.TryOpen(pool.Config{Keep: stolen}); !wire.Denied.Is(err) {
			t.Errorf("opening with another secret: got %v, %v, want it denied", p, err)
		}
		wantFilled(t, again, 2)
		if err := old.Close(); err != nil {
			t.Error(err)
		}
		wantFilled(t, again, 2)
	})
}

// A node that was started again has another memory: what it had is lost, and its caller learns of the session that
// begins.
func TestAKeptPoolLearnsWhatANodeHasLost(t *testing.T) {
	overKeepers(t, 2, func(t *testing.T, c *pooltest.Cluster) {
		var n notes
		k := c.Open(pool.Config{Keep: n.orders(1)})
		chunk, at := filled(t, k, keptUnit, 1)
		before := n.all()
		c.Nodes[0].Crash()
		c.Nodes[0].Start()
		<-chunk.Lost()
		pooltest.Eventually(t, "the new session is told", func() bool { return n.all()["node0"] != before["node0"] })
		pooltest.Eventually(t, "the node is up", func() bool { return k.Node("node0").Up })
		if got := n.all(); got["node1"] != before["node1"] || !maps.Equal(got, k.Sessions()) {
			t.Errorf("the sessions are %v, it was told of %v", k.Sessions(), got)
		}
		fresh, place := filled(t, k, keptUnit, 2)
		if place.Session == at.Session {
			t.Error("a memory that was lost and its successor have the same number")
		}
		if c, err := k.Reopen(t.Context(), at, keptUnit); !errors.Is(err, pool.ErrLost) {
			t.Errorf("what was lost: got %v, %v, want %v", c, err, pool.ErrLost)
		}
		wantFilled(t, fresh, 2)
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
		// Who comes with what was noted before the loss is told, too.
		late := notes{sessions: maps.Clone(before)}
		k = c.Open(pool.Config{Keep: late.orders(2)})
		if c, err := k.Reopen(t.Context(), at, keptUnit); !errors.Is(err, pool.ErrLost) {
			t.Errorf("what was lost, with its session: got %v, %v, want %v", c, err, pool.ErrLost)
		}
		if late.all()["node0"] == before["node0"] {
			t.Error("nobody was told that the node has lost its memory")
		}
		// Of the session that has begun nothing waits to be reopened.
		node := c.Nodes[0]
		lent := node.Stats().Lent
		gone, _ := filled(t, k, keptUnit, 3)
		k.Unreachable(node, true)
		k.Cut(node)
		pooltest.Eventually(t, "the node is gone", func() bool { return stateOf(k, "node0") == "down" })
		if err := gone.Free(t.Context()); err != nil {
			t.Fatal(err)
		}
		k.Unreachable(node, false)
		pooltest.Eventually(t, "what was freed is given back", func() bool {
			return stateOf(k, "node0") == "up" && node.Stats().Lent == lent
		})
	})
}

// A node that is added to a kept pool later, or was forgotten and comes back, is one of its nodes.
func TestAKeptPoolResumesWithNodesThatJoin(t *testing.T) {
	cfg := memnode.Config{Lend: 64 * keptUnit, ChunkSize: keptUnit}
	c := pooltest.NewCluster(t, pooltest.Inproc, cfg, cfg)
	var n notes
	first := c.Open(pool.Config{Keep: n.orders(1)})
	there, err := first.AllocAt(t.Context(), "node1", keptUnit)
	if err != nil {
		t.Fatal(err)
	}
	at, _ := there.Place()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	addr := c.Nodes[1].Addr
	c.Nodes = c.Nodes[:1]
	second := c.Open(pool.Config{Keep: n.orders(2)})
	if got := second.Sessions(); len(got) != 2 {
		t.Errorf("it has the sessions %v, want that with the node that is missing, too", got)
	}
	if err := second.Add(pool.NodeConfig{Name: "node1", Dial: func(ctx context.Context) (verbs.Conn, error) { return c.Fabric.Dial(ctx, second.Device, addr) }}); err != nil {
		t.Fatal(err)
	}
	wantFilled(t, mustReopen(t, second.Pool, at, keptUnit), 0)
}

func TestWhatCannotBeKeptIsRefused(t *testing.T) {
	for what, try := range map[string]struct {
		keep    pool.Keep
		manager pool.Manager
	}{
		"epoch 0":                 {pool.Keep{Name: "orders"}, nil},
		"no name":                 {pool.Keep{Epoch: 1}, nil},
		"a name with a space":     {pool.Keep{Name: "two words", Epoch: 1}, nil},
		"a name that is too long": {pool.Keep{Name: strings.Repeat("x", wire.MaxHeap+1), Epoch: 1}, nil},
		"finemem":                 {pool.Keep{Name: "orders", Epoch: 1}, finemem.Manager{}},
	} {
		s := pooltest.Inproc
		s.Manager = try.manager
		c := pooltest.NewCluster(t, s, memnode.Config{Lend: 1 << 20, ChunkSize: 1 << 16})
		if _, err := c.TryOpen(pool.Config{Keep: &try.keep}); err == nil {
			t.Errorf("%s was accepted", what)
		}
		if got := c.Nodes[0].Stats().Wakeups; got != 0 {
			t.Errorf("%s: the node was asked", what)
		}
	}
	_, err := pool.DialUnix(t.Context(), shm.Config{}, pool.Config{Keep: &pool.Keep{Name: "orders", Epoch: 1}}, "unix:/nowhere")
	if err == nil || !strings.Contains(err.Error(), wire.MemFD) {
		t.Errorf("in place: got %v, want that %s is not for that", err, wire.MemFD)
	}
}

var children = childtest.Jobs{"owner": ownerChild}

// An ownerNote is what the owner of a heap stores.
type ownerNote struct {
	PID      int
	Sessions map[string]pool.Session
	Place    pool.Place
}

const ownedSize = 3 * keptUnit

// ownerChild owns a heap in epoch 1 at the node and the directory that it is told, and writes for as long as it can.
func ownerChild(arg string) error {
	addr, dir, _ := strings.Cut(arg, " ")
	p, err := pool.DialTCP(context.Background(), tcp.Config{}, pool.Config{
		Timeout: pooltest.Patience, Keep: &pool.Keep{Name: "orders", Epoch: 1},
	}, addr)
	if err != nil {
		return err
	}
	c, err := p.Alloc(context.Background(), ownedSize)
	if err != nil {
		return err
	}
	note := ownerNote{PID: os.Getpid(), Sessions: p.Sessions()}
	note.Place, _ = c.Place()
	if _, err := c.WriteAt(bytes.Repeat([]byte{1}, ownedSize), 0); err != nil {
		return err
	}
	b, err := json.Marshal(note)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "note"), b, 0o600); err != nil {
		return err
	}
	fmt.Println("ready")
	for {
		if _, err = c.WriteAt(bytes.Repeat([]byte{1}, ownedSize), 0); errors.Is(err, pool.ErrSuperseded) {
			return os.WriteFile(filepath.Join(dir, "end"), []byte(err.Error()), 0o600)
		}
	}
}

// own starts an owner of what a node lends.
func own(t *testing.T, addr, dir string) (note ownerNote, kill func()) {
	t.Helper()
	kill = childtest.Start(t, "owner", addr+" "+dir)
	b, err := os.ReadFile(filepath.Join(dir, "note"))
	if err == nil {
		err = json.Unmarshal(b, &note)
	}
	if err != nil {
		t.Fatal(err)
	}
	return note, kill
}

// takeOver opens the heap of note in epoch 2.
func takeOver(t *testing.T, addr string, note ownerNote) *pool.Chunk {
	t.Helper()
	p, err := pool.DialTCP(t.Context(), tcp.Config{}, pool.Config{
		Timeout: pooltest.Patience, Keep: &pool.Keep{Name: "orders", Epoch: 2, Sessions: note.Sessions},
	}, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return mustReopen(t, p, note.Place, ownedSize)
}

func TestMemoryOutlivesAKilledProcess(t *testing.T) {
	c := pooltest.NewCluster(t, pooltest.TCP, memnode.Config{Lend: 16 * keptUnit, ChunkSize: keptUnit, Grace: 1})
	node := c.Nodes[0]
	note, kill := own(t, node.Addr, t.TempDir())
	kill()
	pooltest.Eventually(t, "the owner is missed", func() bool { return node.Stats().Clients == 0 })
	wantFilled(t, takeOver(t, node.Addr, note), 1)
}

// A process that is stopped, superseded and continued goes on with what it was at, and has no effect.
func TestAStoppedProcessThatGoesOnWritesNothing(t *testing.T) {
	c := pooltest.NewCluster(t, pooltest.TCP, memnode.Config{Lend: 16 * keptUnit, ChunkSize: keptUnit, Grace: 1})
	node, dir := c.Nodes[0], t.TempDir()
	note, _ := own(t, node.Addr, dir)
	if err := syscall.Kill(note.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	chunk := takeOver(t, node.Addr, note)
	wantFilled(t, chunk, 1)
	if _, err := chunk.WriteAt(bytes.Repeat([]byte{2}, ownedSize), 0); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(note.PID, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	var end []byte
	pooltest.Eventually(t, "the old owner finds out", func() bool {
		end, _ = os.ReadFile(filepath.Join(dir, "end"))
		return len(end) > 0
	})
	if !strings.Contains(string(end), "heap orders is at epoch 2") {
		t.Errorf("the old owner says %q", end)
	}
	wantFilled(t, chunk, 2)
}
