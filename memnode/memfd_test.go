package memnode_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/arena"
	"polder/memnode"
	"polder/memnode/tenancy"
	"polder/memnode/wire"
	"polder/pool/memfd"
	"polder/pool/pooltest"
)

// neighbour is a client on the node's machine that speaks plain verbs, with the
// memory that it was passed.
type neighbour struct {
	*raw
	fd *arena.Memfd
}

func openNeighbour(t *testing.T, c *pooltest.Cluster, resume wire.Session) *neighbour {
	t.Helper()
	k := &neighbour{raw: dialRaw(t, c, c.Nodes[0])}
	private, err := k.hello(k.mgmt, wire.Hello{Kind: wire.KindManagement, Manager: memnode.MemFD, Session: resume})
	if err != nil {
		t.Fatal(err)
	}
	if err := k.w.Decode(private); err != nil {
		t.Fatal(err)
	}
	k.space()
	ctx, cancel := context.WithTimeout(t.Context(), pooltest.Patience)
	defer cancel()
	k.fd, err = k.conn.(interface {
		ReceiveMemory(context.Context) (*arena.Memfd, error)
	}).ReceiveMemory(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.fd.Close() })
	return k
}

func (k *neighbour) space() wire.Status {
	return k.call(wire.AppendRequest(nil, wire.OpSpace, 1, 1, 0)).Status
}

// fill writes to the chunk as its owner does, and whoever else has the memfd.
func (k *neighbour) fill(addr uint64) {
	k.t.Helper()
	if _, err := k.fd.File().WriteAt(bytes.Repeat([]byte{0xee}, int(k.w.ChunkSize)), int64(addr)); err != nil {
		k.t.Fatal(err)
	}
}

func (k *neighbour) at(addr uint64) byte {
	k.t.Helper()
	var b [1]byte
	if _, err := k.fd.File().ReadAt(b[:], int64(addr)); err != nil {
		k.t.Fatal(err)
	}
	return b[0]
}

// resident is how many bytes of the memfd exist, without the lease.
func (k *neighbour) resident() int {
	k.t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(int(k.fd.File().Fd()), &st); err != nil {
		k.t.Fatal(err)
	}
	return max(0, int(st.Blocks)*512-arena.PageSize)
}

func memfdCluster(t *testing.T, cfg memnode.Config) *pooltest.Cluster {
	return pooltest.NewCluster(t, pooltest.SHM, cfg)
}

func TestNeighboursAreKeptApartByTheKernel(t *testing.T) {
	cfg := node(8)
	cfg.ClientBudget = int64(3 * cfg.ChunkSize)
	c := memfdCluster(t, cfg)
	a, b := openNeighbour(t, c, wire.Session{}), openNeighbour(t, c, wire.Session{})
	ga, gb := a.alloc(3), b.alloc(1)
	for _, g := range ga {
		a.fill(g.Addr)
	}
	all := make([]byte, b.fd.Size())
	if _, err := b.fd.File().ReadAt(all, 0); err != nil {
		t.Fatal(err)
	}
	if bytes.IndexByte(all, 0xee) >= 0 {
		t.Error("what one client wrote is in another's memory")
	}
	if want := tenancy.Size(3, cfg.ChunkSize); a.fd.Size() != want {
		t.Errorf("a client with a budget of 3 chunks can touch %d bytes, want %d", a.fd.Size(), want)
	}
	for _, size := range []int64{0, 1 << 30} {
		if err := a.fd.File().Truncate(size); err == nil {
			t.Errorf("the client made its memory %d bytes large", size)
		}
	}
	if _, err := unix.FcntlInt(a.fd.File().Fd(), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE); err == nil {
		t.Error("the client sealed its memory against being punched")
	}
	for _, bad := range [][]uint32{{gb[0].Chunk}, {ga[0].Chunk, ga[0].Chunk}, {1 << 30}, {ga[0].Chunk, gb[0].Chunk}} {
		if got := a.free(bad...); got != wire.StatusNotOwner {
			t.Errorf("freeing %v: got %v, want %v", bad, got, wire.StatusNotOwner)
		}
	}
	if got := c.Nodes[0].Stats(); got.Lent != 4 || got.NotOwner != 4 {
		t.Errorf("%d chunks are lent after %d bad frees, want 4 and 4", got.Lent, got.NotOwner)
	}
}

func TestWhatIsFreedIsPunchedOut(t *testing.T) {
	c := memfdCluster(t, node(4))
	a, b := openNeighbour(t, c, wire.Session{}), openNeighbour(t, c, wire.Session{})
	grants := a.alloc(4)
	var ids []uint32
	for _, g := range grants {
		a.fill(g.Addr)
		ids = append(ids, g.Chunk)
	}
	if got := b.space(); got != wire.StatusNoMemory {
		t.Fatalf("space: got %v, want %v", got, wire.StatusNoMemory)
	}
	if got := a.free(ids...); got != wire.StatusOK {
		t.Fatal(got)
	}
	if got := len(b.alloc(4)); got != 4 {
		t.Fatalf("got %d chunks, want 4", got)
	}
	// All is lent again: nothing may be left of what a had.
	if n := a.resident(); n != 0 {
		t.Errorf("%d bytes of what was freed still exist", n)
	}
	a.fill(grants[0].Addr) // too late, and nobody's harm
	all := make([]byte, b.fd.Size())
	if _, err := b.fd.File().ReadAt(all, 0); err != nil || bytes.IndexByte(all, 0xee) >= 0 {
		t.Errorf("what was written after a free is in another's memory (%v)", err)
	}
}

// TestReclaimRevokesBeforeItPunches reads as a client does that has slept too
// long: the chunk, and then the lease.
func TestReclaimRevokesBeforeItPunches(t *testing.T) {
	cfg := node(16)
	cfg.Grace = time.Millisecond
	c := memfdCluster(t, cfg)
	a := openNeighbour(t, c, wire.Session{})
	grants := a.alloc(16)
	for _, g := range grants {
		a.fill(g.Addr)
	}
	lease, err := tenancy.MapLease(a.fd)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Close()
	if !lease.Valid() {
		t.Fatal("the lease is not valid from the beginning")
	}
	a.conn.Close()
	pooltest.Eventually(t, "the chunks are taken back", func() bool {
		punched := 0
		for _, g := range grants {
			if a.at(g.Addr) == 0 {
				punched++
			}
		}
		if punched > 0 && lease.Valid() {
			t.Fatalf("%d chunks are gone and the lease is valid", punched)
		}
		return punched == len(grants)
	})
	pooltest.Eventually(t, "they are counted", func() bool {
		s := c.Nodes[0].Stats()
		return s.Reclaimed == 16 && s.Lent == 0 && s.Dirty == 0 && s.Sessions == 0
	})
}

func TestAResumedSessionHasItsMemory(t *testing.T) {
	c := memfdCluster(t, node(4))
	a := openNeighbour(t, c, wire.Session{})
	g := a.alloc(2)
	a.fill(g[1].Addr)
	a.conn.Close()
	again := openNeighbour(t, c, a.w.Session)
	if !again.w.Resumed {
		t.Fatal("the session was not resumed")
	}
	reply := again.call(wire.AppendRequest(nil, wire.OpOwned, 1, wire.MaxBatch, 0))
	if reply.N != 2 || reply.Grant(1) != g[1] {
		t.Fatalf("%d chunks are owned, want the 2 from before", reply.N)
	}
	if got := again.at(g[1].Addr); got != 0xee {
		t.Errorf("the chunk begins with %#x, want what was written", got)
	}
}

// TestMemoryIsPassedOnThisMachineOnly asks for it over TCP.
func TestMemoryIsPassedOnThisMachineOnly(t *testing.T) {
	s := pooltest.TCP
	s.Manager = memfd.Manager{}
	c := pooltest.NewCluster(t, s, node(4))
	r := dialRaw(t, c, c.Nodes[0])
	private, err := r.hello(r.mgmt, wire.Hello{Kind: wire.KindManagement, Manager: memnode.MemFD})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.w.Decode(private); err != nil {
		t.Fatal(err)
	}
	if got := r.call(wire.AppendRequest(nil, wire.OpAlloc, 1, 1, 0)).Status; got != wire.StatusFailed {
		t.Errorf("allocating: got %v, want %v", got, wire.StatusFailed)
	}
	if _, err := r.hello(r.access, wire.Hello{Kind: wire.KindAccess, Manager: memnode.MemFD}); err == nil {
		t.Error("an access queue pair was connected")
	}
}
