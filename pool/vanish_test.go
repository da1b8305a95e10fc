package pool_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"polder/memnode"
	"polder/pool"
	"polder/pool/pooltest"
	"polder/pool/rpcmw"
)

// idleChunk is the size of chunks of nodes that lend what is idle, of which idleChunks fit.
const (
	idleChunk  = 128 << 10
	idleChunks = 16
)

// idle runs f for each way in which a node lends what is idle.
func idle(t *testing.T, f func(t *testing.T, cl *pooltest.Cluster)) {
	byMessages := pooltest.Inproc
	byMessages.Name, byMessages.Manager = "by messages", rpcmw.Manager{}
	for _, s := range []pooltest.Setup{pooltest.Inproc, byMessages, pooltest.SHM} {
		t.Run(s.Name, func(t *testing.T) {
			f(t, pooltest.NewCluster(t, s, memnode.Config{Lend: idleChunks * idleChunk, ChunkSize: idleChunk, Idle: true}))
		})
	}
}

// idleClient borrows chunks of the only node and writes to them.
func idleClient(t *testing.T, cl *pooltest.Cluster, n int) (k *pooltest.Client, chunks []*pool.Chunk) {
	t.Helper()
	k = cl.Open(pool.Config{})
	for i := range n {
		c := k.MustAlloc(t)
		if _, err := c.WriteAt(content(i), 0); err != nil {
			t.Fatal(err)
		}
		chunks = append(chunks, c)
	}
	return k, chunks
}

func content(i int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, idleChunk) }

func wantContent(t *testing.T, c *pool.Chunk, want []byte) {
	t.Helper()
	got := make([]byte, idleChunk)
	if _, err := c.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("read %v, %v, want what was written", got[:8], err)
	}
}

func yield(t *testing.T, cl *pooltest.Cluster, chunks int) (dropped, over int) {
	t.Helper()
	y, err := cl.Nodes[0].Memnode().Yield(int64(chunks) * idleChunk)
	if err != nil {
		t.Fatal(err)
	}
	return int(y.Dropped / idleChunk), int(y.Over / idleChunk)
}

func mayVanish(t *testing.T, chunks ...*pool.Chunk) {
	t.Helper()
	for _, c := range chunks {
		if err := c.MayVanish(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func vanished(chunks []*pool.Chunk) (gone, left []*pool.Chunk) {
	for _, c := range chunks {
		if c.Vanished() {
			gone = append(gone, c)
		} else {
			left = append(left, c)
		}
	}
	return gone, left
}

// A client learns that a node has more to lend again, though it asks for nothing: it would never ask if it believed that there was nothing.
func TestRoomOfIdleMemoryIsKnown(t *testing.T) {
	idle(t, func(t *testing.T, cl *pooltest.Cluster) {
		yield(t, cl, 2)
		k, _ := idleClient(t, cl, 2)
		if _, err := k.AllocAt(t.Context(), "node0", idleChunk); !errors.Is(err, pool.ErrNoMemory) {
			t.Fatalf("borrowing what the host needs: got %v, want %v", err, pool.ErrNoMemory)
		}
		room := func(chunks int64) func() bool {
			return func() bool { return k.Node("node0").Space == chunks*idleChunk }
		}
		pooltest.Eventually(t, "nothing is left", room(0))
		yield(t, cl, idleChunks)
		pooltest.Eventually(t, "the host needs nothing", room(idleChunks-2))
		yield(t, cl, 5)
		pooltest.Eventually(t, "the host needs some again", room(3))
	})
}

// A node drops what it is permitted to, no more of it than it has to, and nothing else; and lends no more than it may.
func TestWhatMayVanishIsDroppedWhenTheHostNeedsIt(t *testing.T) {
	idle(t, func(t *testing.T, cl *pooltest.Cluster) {
		k, chunks := idleClient(t, cl, 8)
		mayVanish(t, chunks[:4]...)
		if dropped, over := yield(t, cl, 8); dropped != 0 || over != 0 {
			t.Fatalf("%d chunks were dropped, %d are too many, want none", dropped, over)
		}
		if dropped, over := yield(t, cl, 6); dropped != 2 || over != 0 {
			t.Fatalf("%d chunks were dropped, %d are too many, want 2 and none", dropped, over)
		}
		pooltest.Eventually(t, "the client knows", func() bool { gone, _ := vanished(chunks); return len(gone) == 2 })
		for i, c := range chunks {
			if !c.Vanished() {
				wantContent(t, c, content(i))
			} else if _, err := c.ReadAt(make([]byte, 8), 0); !errors.Is(err, pool.ErrLost) {
				t.Errorf("reading what has vanished: got %v, want %v", err, pool.ErrLost)
			} else if ok, err := c.MustStay(t.Context()); ok || err != nil {
				t.Errorf("keeping what has vanished: got %v, %v", ok, err)
			}
		}
		if _, err := k.AllocAt(t.Context(), "node0", idleChunk); !errors.Is(err, pool.ErrNoMemory) {
			t.Fatalf("borrowing what the host needs: got %v, want %v", err, pool.ErrNoMemory)
		}
		gone, left := vanished(chunks)
		for _, c := range gone {
			if err := c.Free(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if dropped, over := yield(t, cl, 6); dropped != 0 || over != 0 {
			t.Fatalf("%d chunks were dropped, %d are too many, want none", dropped, over)
		}
		if _, err := k.AllocAt(t.Context(), "node0", idleChunk); !errors.Is(err, pool.ErrNoMemory) {
			t.Fatalf("borrowing what the host needs: got %v, want %v", err, pool.ErrNoMemory)
		}
		if st := cl.Nodes[0].Stats(); st.Lent != 6 || st.Dropped != 2 || st.Withheld != idleChunks-6 {
			t.Errorf("%d chunks lent, %d dropped, %d withheld, want 6, 2, %d", st.Lent, st.Dropped, st.Withheld, idleChunks-6)
		}
		yield(t, cl, idleChunks)
		for range idleChunks - len(left) {
			var c *pool.Chunk
			pooltest.Eventually(t, "the host does not need it any more", func() (ok bool) {
				var err error
				c, err = k.AllocAt(t.Context(), "node0", idleChunk)
				return err == nil
			})
			wantContent(t, c, make([]byte, idleChunk))
		}
	})
}

// What clients have not permitted to be dropped, or not any more, is not: they are told to move it, until there is
// enough.
func TestWhatMustStayIsNotDropped(t *testing.T) {
	idle(t, func(t *testing.T, cl *pooltest.Cluster) {
		k, chunks := idleClient(t, cl, 3)
		mayVanish(t, chunks[0], chunks[1])
		if ok, err := chunks[0].MustStay(t.Context()); !ok || err != nil {
			t.Fatalf("taking a permission back: got %v, %v", ok, err)
		}
		if dropped, over := yield(t, cl, 1); dropped != 1 || over != 1 {
			t.Fatalf("%d chunks were dropped, %d are too many, want 1 and 1", dropped, over)
		}
		pooltest.Eventually(t, "the client is to move what it has", func() bool { return k.Node("node0").Leaving })
		wantContent(t, chunks[0], content(0))
		wantContent(t, chunks[2], content(2))
		if err := chunks[2].Free(t.Context()); err != nil {
			t.Fatal(err)
		}
		pooltest.Eventually(t, "it is enough", func() bool { _, over := yield(t, cl, 1); return over == 0 })
		pooltest.Eventually(t, "the client may stay", func() bool { return !k.Node("node0").Leaving })
		wantContent(t, chunks[0], content(0))
	})
}

// A chunk that is given back and lent anew, to the same client or another one, has nothing of the permission that there was
// before.
func TestAPermissionEndsWithTheChunk(t *testing.T) {
	idle(t, func(t *testing.T, cl *pooltest.Cluster) {
		_, chunks := idleClient(t, cl, idleChunks)
		mayVanish(t, chunks...)
		if dropped, _ := yield(t, cl, idleChunks-2); dropped != 2 {
			t.Fatalf("%d chunks were dropped, want 2", dropped)
		}
		for _, c := range chunks { // two of which have vanished, perhaps without its knowing
			if err := c.Free(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		yield(t, cl, idleChunks)
		pooltest.Eventually(t, "all is back", func() bool { return cl.Nodes[0].Stats().Lent == 0 })
		_, first := idleClient(t, cl, idleChunks/2)
		_, second := idleClient(t, cl, idleChunks/2)
		if dropped, over := yield(t, cl, 0); dropped != 0 || over != idleChunks {
			t.Fatalf("%d chunks were dropped, %d are too many, want none and %d", dropped, over, idleChunks)
		}
		for i := range first {
			wantContent(t, first[i], content(i))
			wantContent(t, second[i], content(i))
		}
	})
}

// Over a new connection nobody knows what has become of what was permitted over the one before.
func TestAPermissionEndsWithTheConnection(t *testing.T) {
	s := pooltest.TCP
	cl := pooltest.NewCluster(t, s, memnode.Config{Lend: idleChunks * idleChunk, ChunkSize: idleChunk, Idle: true})
	k, chunks := idleClient(t, cl, 2)
	mayVanish(t, chunks[0])
	k.Cut(cl.Nodes[0])
	wantContent(t, chunks[1], content(1))
	if !chunks[0].Vanished() {
		t.Error("the client believes in what may have been dropped meanwhile")
	}
	if dropped, over := yield(t, cl, 1); dropped != 0 || over != 1 {
		t.Errorf("%d chunks were dropped, %d are too many, want none and 1", dropped, over)
	}
	if err := chunks[0].Free(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A node that lends a fixed size asks for nothing back.
func TestANodeThatIsNotIdleDropsNothing(t *testing.T) {
	cl := pooltest.NewCluster(t, pooltest.Inproc, memnode.Config{Lend: idleChunks * idleChunk, ChunkSize: idleChunk})
	_, chunks := idleClient(t, cl, 1)
	if err := chunks[0].MayVanish(t.Context()); !errors.Is(err, pool.ErrStays) {
		t.Errorf("permitting: got %v, want %v", err, pool.ErrStays)
	}
	if _, err := cl.Nodes[0].Memnode().Yield(0); !errors.Is(err, memnode.ErrNotIdle) {
		t.Errorf("demanding: got %v, want %v", err, memnode.ErrNotIdle)
	}
}

// Clients borrow and give back while the host now needs memory and then does not. No chunk has two owners, none gets lost,
// and what is not permitted to vanish does not.
func TestTheHostsNeedsChangeUnderLoad(t *testing.T) {
	idle(t, func(t *testing.T, cl *pooltest.Cluster) {
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for w := range 3 {
			k := cl.Open(pool.Config{})
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(w), 1))
				for {
					select {
					case <-stop:
						return
					default:
					}
					c, err := k.AllocAt(t.Context(), "node0", idleChunk)
					if errors.Is(err, pool.ErrNoMemory) {
						continue
					}
					may := r.IntN(2) == 0
					mine := bytes.Repeat([]byte{byte(w + 1)}, idleChunk)
					if err == nil {
						_, err = c.WriteAt(mine, 0)
					}
					if err == nil && may {
						err = c.MayVanish(t.Context())
					}
					got := make([]byte, idleChunk)
					if err == nil {
						_, err = c.ReadAt(got, 0)
					}
					switch {
					case err != nil && !(may && errors.Is(err, pool.ErrLost)):
						t.Error(err)
						return
					case !may && !bytes.Equal(got, mine):
						t.Errorf("read %v, want what was written", got[:8])
						return
					}
					if err := c.Free(t.Context()); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		r := rand.New(rand.NewPCG(7, 7))
		for range 300 {
			yield(t, cl, r.IntN(idleChunks+1))
		}
		close(stop)
		wg.Wait()
		yield(t, cl, idleChunks)
		_, all := idleClient(t, cl, idleChunks)
		for i, c := range all {
			wantContent(t, c, content(i))
		}
	})
}

// A client that does not get to run keeps its connection though the host's need comes and goes all the time.
func TestAHostThatChangesItsMindDoesNotFloodClients(t *testing.T) {
	idle(t, func(t *testing.T, cl *pooltest.Cluster) {
		k, chunks := idleClient(t, cl, 1)
		for range 200 { // faster than the client takes what it is told
			yield(t, cl, 0)
			yield(t, cl, idleChunks)
		}
		wantContent(t, chunks[0], content(0))
		pooltest.Eventually(t, "the client knows that the node stays", func() bool { return !k.Node("node0").Leaving })
		if n := k.Stats().Nodes[0].Reconnects; n != 0 {
			t.Errorf("it has lost its connection %d times", n)
		}
	})
}

// An idle node that stops for a while keeps its clients, and what it may drop of theirs: that it does not say how much there is to lend is no reason to
// suppose that it has gone.
func TestAnIdleNodeThatStopsIsWaitedFor(t *testing.T) {
	k, x, cl := openLends(t, 20*time.Second, 1, memnode.Config{Lend: idleChunks * idleChunk, ChunkSize: idleChunk, Idle: true})
	c, err := k.Alloc(t.Context(), idleChunk)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.WriteAt(content(1), 0); err != nil {
		t.Fatal(err)
	}
	mayVanish(t, c)
	x.Freeze()
	time.Sleep(3500 * time.Millisecond) // it is asked, and does not answer
	yield(t, cl, 3)
	x.Thaw()
	pooltest.Eventually(t, "it says how much there is", func() bool { return k.Node("far").Space == 2*idleChunk })
	if c.Vanished() {
		t.Error("what it may drop counts as dropped, though it has the memory")
	}
	wantContent(t, c, content(1))
}
