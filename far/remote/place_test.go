package remote

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"polder/far"
	"polder/internal/arena"
	"polder/internal/failpoint"
	"polder/memnode"
	"polder/memnode/component"
	"polder/pool"
	"polder/pool/memfd"
	"polder/pool/pooltest"
	"polder/pool/rpcmw"
	"polder/verbs"
)

// On one machine the node is not asked: objects are in this process, in memory
// that counts at the node.
func TestObjectsAreInThisProcessOnOneMachine(t *testing.T) {
	c := pooltest.NewCluster(t, pooltest.SHM, memnode.Config{
		Lend: 64 << 20, ChunkSize: 1 << 20, Grace: time.Minute,
		Components: component.Config{Memory: 48 << 20, ClientMemory: 32 << 20},
	})
	k := c.Open(pool.Config{})
	d := NewDevice(k.Pool)
	table, err := far.NewRemoteTable(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	column, err := far.NewRemoteVector[int64](t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		key := fmt.Append(nil, i)
		if err := table.Put(t.Context(), key, key); err != nil {
			t.Fatal(err)
		}
		if err := column.Write(t.Context(), i, []int64{int64(i)}); err != nil {
			t.Fatal(err)
		}
		k.Cut(c.Nodes[0]) // objects outlive the connection
		if got, err := table.Get(t.Context(), key, nil); err != nil || string(got) != string(key) {
			t.Fatalf("got %q, %v, want %q", got, err, key)
		}
	}
	if s, err := column.Aggregate(t.Context(), far.Where[int64]{}); err != nil || s.SumInt != 10 {
		t.Fatalf("got %+v, %v, want a sum of 10", s, err)
	}
	if st := c.Nodes[0].Stats().Components; st.Workers != 0 || st.Requests != 0 || st.Reserved != 32<<20 {
		t.Errorf("got %+v, want no process, no request, and one client's memory", st)
	}

	// There is no memory for a second client, which is told so.
	other := c.Open(pool.Config{})
	if _, err := far.NewRemoteTable(t.Context(), NewDevice(other.Pool)); !errors.Is(err, far.ErrRefused) || !strings.Contains(err.Error(), "other clients") {
		t.Errorf("a second client: got %v, want %v because of other clients", err, far.ErrRefused)
	}

	// The memory has an end, and what is given back can be had again.
	for i := 0; err == nil; i++ {
		if i > 32<<10 {
			t.Fatal("a table has more than 32 MiB")
		}
		err = table.Put(t.Context(), fmt.Append(nil, "fill", i), make([]byte, 10<<10))
	}
	if !errors.Is(err, far.ErrStoreFull) {
		t.Fatalf("got %v, want %v", err, far.ErrStoreFull)
	}
	if err := table.Clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := table.Put(t.Context(), []byte("k"), make([]byte, 10<<10)); err != nil {
		t.Fatal(err)
	}

	c.Nodes[0].Crash()
	c.Nodes[0].Start()
	pooltest.Eventually(t, "the table is lost with its node", func() bool {
		_, err := table.Get(t.Context(), []byte("k"), nil)
		var lost *far.LostError
		return errors.As(err, &lost)
	})
	again, err := far.NewRemoteTable(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Get(t.Context(), []byte("k"), nil); !errors.Is(err, far.ErrNotFound) {
		t.Fatalf("a new table: got %v, want %v", err, far.ErrNotFound)
	}
}

// What is made as soon as the old objects are seen to be lost belongs to the new
// session, even while the old session's objects have not been closed yet.
func TestAnObjectMadeRightAfterTheLossIsNotLost(t *testing.T) {
	var armed atomic.Bool
	made := make(chan struct{})
	failpoint.Set(func(name string) {
		if name == "pool.published" && armed.CompareAndSwap(true, false) {
			<-made
		}
	})
	t.Cleanup(func() { failpoint.Set(nil) }) // after the cluster has ended
	c := pooltest.NewCluster(t, pooltest.SHM, placeConfig())
	d := NewDevice(c.Open(pool.Config{}).Pool)
	defer close(made)
	old, err := far.NewRemoteTable(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	armed.Store(true)
	c.Nodes[0].Crash()
	c.Nodes[0].Start()
	pooltest.Eventually(t, "the table is lost with its node", func() bool {
		_, err := old.Get(t.Context(), []byte("k"), nil)
		var lost *far.LostError
		return errors.As(err, &lost)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	again, err := far.NewRemoteTable(ctx, d)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Get(ctx, []byte("k"), nil); !errors.Is(err, far.ErrNotFound) {
		t.Fatalf("a new table: got %v, want %v", err, far.ErrNotFound)
	}
}

// A client that could not be reached for longer than the grace period finds its
// objects lost, not empty.
func TestNothingIsBelievedAfterTheGracePeriod(t *testing.T) {
	c := pooltest.NewCluster(t, pooltest.SHM, memnode.Config{
		Lend: 64 << 20, ChunkSize: 1 << 20, Grace: 50 * time.Millisecond,
		Components: component.Config{Memory: 48 << 20, ClientMemory: 24 << 20},
	})
	k := c.Open(pool.Config{})
	table, err := far.NewRemoteTable(t.Context(), NewDevice(k.Pool))
	if err != nil {
		t.Fatal(err)
	}
	if err := table.Put(t.Context(), []byte("k"), []byte("v")); err != nil {
		t.Fatal(err)
	}
	k.Unreachable(c.Nodes[0], true)
	k.Cut(c.Nodes[0])
	pooltest.Eventually(t, "the node has taken the memory back", func() bool {
		return c.Nodes[0].Stats().Components.Reserved == 0
	})
	k.Unreachable(c.Nodes[0], false)
	pooltest.Eventually(t, "the table is lost", func() bool {
		got, err := table.Get(t.Context(), []byte("k"), nil)
		if err == nil || errors.Is(err, far.ErrNotFound) {
			t.Fatalf("got %q, %v after the memory was taken back", got, err)
		}
		var lost *far.LostError
		return errors.As(err, &lost)
	})
}

// A put that finds the connection gone has not begun: it waits for the next one.
func TestAPutAfterTheConnectionIsNotInDoubt(t *testing.T) {
	c := pooltest.NewCluster(t, pooltest.SHM, placeConfig())
	k := c.Open(pool.Config{})
	table, err := far.NewRemoteTable(t.Context(), NewDevice(k.Pool))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		k.Cut(c.Nodes[0])
		if err := table.Put(t.Context(), []byte("k"), fmt.Append(nil, i)); err != nil {
			t.Fatalf("put %d: %v", i, err)
		}
	}
}

// passing is a connection over which a node passes memory: first that of chunks,
// then that of objects, of which taken hears.
type passing struct {
	verbs.Conn
	times int
	taken func(context.Context, *arena.Memfd) error
}

func (c *passing) ReceiveMemory(ctx context.Context) (*arena.Memfd, error) {
	fd, err := c.Conn.(interface {
		ReceiveMemory(context.Context) (*arena.Memfd, error)
	}).ReceiveMemory(ctx)
	if c.times++; err == nil && c.times == 2 {
		err = c.taken(ctx, fd)
	}
	return fd, err
}

// openPassing opens a pool over c's node by such connections.
func openPassing(t *testing.T, c *pooltest.Cluster, taken func(context.Context, *arena.Memfd) error) *pool.Pool {
	t.Helper()
	dev, err := c.Fabric.NewDevice()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	p, err := pool.Open(t.Context(), pool.Config{
		Device: dev, Manager: memfd.Manager{}, Timeout: pooltest.Patience,
		Nodes: []pool.NodeConfig{{Name: "node", Dial: func(ctx context.Context) (verbs.Conn, error) {
			conn, err := c.Fabric.Dial(ctx, dev, c.Nodes[0].Addr)
			return &passing{Conn: conn, taken: taken}, err
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func placeConfig() memnode.Config {
	return memnode.Config{
		Lend: 64 << 20, ChunkSize: 1 << 20, Grace: time.Minute,
		Components: component.Config{Memory: 48 << 20, ClientMemory: 32 << 20},
	}
}

// A node that closes leaves what it has passed as it is, as it does with chunks:
// a client that has not noticed yet must not find its objects empty.
func TestANodeThatClosesEmptiesNothing(t *testing.T) {
	c := pooltest.NewCluster(t, pooltest.SHM, placeConfig())
	var passed *arena.Memfd
	p := openPassing(t, c, func(_ context.Context, fd *arena.Memfd) error {
		passed = fd
		return nil
	})
	table, err := far.NewRemoteTable(t.Context(), NewDevice(p))
	if err != nil {
		t.Fatal(err)
	}
	if err := table.Put(t.Context(), []byte("k"), []byte("v")); err != nil {
		t.Fatal(err)
	}
	resident := func() int64 {
		var st unix.Stat_t
		if err := unix.Fstat(int(passed.File().Fd()), &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks
	}
	before := resident()
	if before == 0 {
		t.Fatal("the table is not in the memory that was passed")
	}
	if err := c.Nodes[0].Memnode().Close(); err != nil {
		t.Fatal(err)
	}
	if after := resident(); after != before {
		t.Errorf("%d blocks of memory exist, want %d as before", after, before)
	}
}

// Memory is passed to those only who have a lease to look at: others would believe
// what they read after the grace period.
func TestWhoHasNoLeaseIsPassedNoMemory(t *testing.T) {
	s := pooltest.SHM
	s.Manager = rpcmw.Manager{}
	c := pooltest.NewCluster(t, s, placeConfig())
	if _, err := far.NewRemoteTable(t.Context(), NewDevice(c.Open(pool.Config{}).Pool)); err != nil {
		t.Fatal(err)
	}
	if got := c.Nodes[0].Stats().Components.Objects; got != 1 {
		t.Errorf("the node has %d objects, want 1", got)
	}
}

// Who gives up while the memory is on its way does not keep others from it.
func TestTheNextCallerHasComponents(t *testing.T) {
	c := pooltest.NewCluster(t, pooltest.SHM, placeConfig())
	ctx, cancel := context.WithCancel(t.Context())
	given := make(chan struct{})
	p := openPassing(t, c, func(ctx context.Context, _ *arena.Memfd) error {
		cancel()
		select {
		case <-given:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	_, err := far.NewRemoteTable(ctx, NewDevice(p))
	close(given)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want %v", err, context.Canceled)
	}
	if _, err := far.NewRemoteTable(t.Context(), NewDevice(p)); err != nil {
		t.Errorf("after somebody gave up: %v", err)
	}
}

// A connection over which the memory does not come is made again.
func TestMemoryThatDoesNotComeBreaksTheConnection(t *testing.T) {
	c := pooltest.NewCluster(t, pooltest.SHM, placeConfig())
	var refused atomic.Bool
	broken := errors.New("it did not come")
	p := openPassing(t, c, func(_ context.Context, fd *arena.Memfd) error {
		if refused.Swap(true) {
			return nil
		}
		fd.Close()
		return broken
	})
	if _, err := far.NewRemoteTable(t.Context(), NewDevice(p)); !errors.Is(err, broken) {
		t.Fatalf("got %v, want %v", err, broken)
	}
	if _, err := far.NewRemoteTable(t.Context(), NewDevice(p)); err != nil {
		t.Errorf("over the next connection: %v", err)
	}
}

// A pool that is closed in good order leaves the memory to the next client at once.
func TestAGoodbyeGivesThePlaceBack(t *testing.T) {
	cfg := placeConfig() // for one client
	cfg.Grace = time.Hour
	c := pooltest.NewCluster(t, pooltest.SHM, cfg)
	for range 3 {
		p := openPassing(t, c, func(context.Context, *arena.Memfd) error { return nil })
		if _, err := far.NewRemoteTable(t.Context(), NewDevice(p)); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		pooltest.Eventually(t, "the node has its memory back", func() bool {
			return c.Nodes[0].Stats().Components.Reserved == 0
		})
	}
}
