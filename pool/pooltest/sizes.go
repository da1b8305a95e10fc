package pooltest

import (
	"context"
	"errors"
	"io"
	"math"
	"testing"
	"time"

	"polder/memnode"
	"polder/pool"
)

// small is the configuration of a node with chunks of the smallest size that every manager can lend.
func small(chunks int) memnode.Config {
	return memnode.Config{Lend: int64(chunks) * 4096, ChunkSize: 4096, Grace: time.Minute}
}

// mustAlloc borrows size bytes.
func mustAlloc(t testing.TB, k *Client, size int64) *pool.Chunk {
	t.Helper()
	c, err := k.Alloc(context.Background(), size)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func anySize(t *testing.T, s Setup) {
	cl := NewCluster(t, s, small(600))
	k := cl.Open(pool.Config{Buffer: 1 << 18})
	var chunks []*pool.Chunk
	for i, size := range []int64{1, 4096, 4097, 70_000, 2<<20 + 5} {
		c := mustAlloc(t, k, size)
		chunks = append(chunks, c)
		if c.Size() != size {
			t.Fatalf("%d bytes were asked for, and the chunk has %d", size, c.Size())
		}
		wantBytes(t, c, 0, make([]byte, size))
		mustWrite(t, c, pattern(uint64(i), int(size)), 0)
	}
	for i, c := range chunks {
		want := pattern(uint64(i), int(c.Size()))
		wantBytes(t, c, 0, want)
		for _, off := range []int64{0, 1, 4095, 4096, 65_535, 131_071, c.Size() - 1} {
			if off >= c.Size() {
				continue
			}
			n := min(10_000, c.Size()-off)
			wantBytes(t, c, off, want[off:off+n])
		}
		short := make([]byte, 100)
		if n, err := c.ReadAt(short, c.Size()-1); n != 1 || err != io.EOF || short[0] != want[c.Size()-1] {
			t.Fatalf("reading over the end of %d bytes: got %d, %v, want 1 and EOF", c.Size(), n, err)
		}
		if n, err := c.ReadAt(short, c.Size()); n != 0 || err != io.EOF {
			t.Fatalf("reading at the end: got %d, %v, want 0 and EOF", n, err)
		}
		_, err := c.WriteAt([]byte("xx"), c.Size()-1)
		wantErr(t, "writing over the end", err, pool.ErrRange)
		if n := c.Size() / 8; n > 1 {
			if v, err := c.FetchAdd(t.Context(), 8*(n-1), 0); err != nil {
				t.Fatalf("the last word of %d bytes: got %d, %v", c.Size(), v, err)
			}
		}
	}
	for _, size := range []int64{0, -1, math.MinInt64} {
		_, err := k.Alloc(t.Context(), size)
		var op *pool.OpError
		if !errors.As(err, &op) || errors.Is(err, pool.ErrNoMemory) {
			t.Errorf("allocating %d bytes: got %v, want an error that it must be more", size, err)
		}
	}
	for _, size := range []int64{601 * 4096, 1 << 50, math.MaxInt64} {
		_, err := k.Alloc(t.Context(), size)
		wantErr(t, "more than there is", err, pool.ErrNoMemory)
	}
	for _, c := range chunks {
		mustFree(t, c)
	}
	allBack(t, cl)
	if n := k.Stats().Nodes[0].Reconnects; n != 0 {
		t.Errorf("the connection was lost %d times", n)
	}
}

// allBack waits until every node has all its memory back.
func allBack(t testing.TB, cl *Cluster) {
	t.Helper()
	for i, n := range cl.Nodes {
		Eventually(t, "the nodes have everything back", func() bool { return n.Stats().Lent == 0 })
		if v := n.Stats().Violations; v != 0 {
			t.Errorf("node %d counts %d violations of honest clients", i, v)
		}
	}
}

func severalNodes(t *testing.T, s Setup) {
	cl := NewCluster(t, s, node(3), node(2), node(1))
	k := cl.Open(pool.Config{})
	c := mustAlloc(t, k, 2*chunkSize)
	if got := c.Nodes(); len(got) != 1 || got[0] != "node0" {
		t.Fatalf("a chunk lies on %v, though the first node has enough", got)
	}
	mustFree(t, c)
	c = mustAlloc(t, k, 6*chunkSize-7)
	if got := c.Nodes(); len(got) != 3 {
		t.Fatalf("a chunk of everything lies on %v, want all three", got)
	}
	want := pattern(3, int(c.Size()))
	mustWrite(t, c, want, 0)
	wantBytes(t, c, 0, want)
	ops := []pool.Op{
		{Kind: pool.OpRead, Chunk: c, Off: chunkSize - 5, Buf: make([]byte, 4*chunkSize)},
		{Kind: pool.OpFetchAdd, Chunk: c, Off: 5*chunkSize + 8, New: 0},
		{Kind: pool.OpRead, Chunk: c, Off: c.Size(), Buf: make([]byte, 1)},
	}
	if err := k.Do(t.Context(), ops); !errors.Is(err, pool.ErrRange) || ops[0].Err != nil || ops[1].Err != nil {
		t.Fatalf("a batch ends with %v, and its operations with %v, %v", err, ops[0].Err, ops[1].Err)
	}
	if got := ops[0].Buf; string(got) != string(want[chunkSize-5:][:len(got)]) {
		t.Fatal("a read over three nodes differs from what was written")
	}
	mustFree(t, c)
	allBack(t, cl)
}

func halfAllocated(t *testing.T, s Setup) {
	cl := NewCluster(t, s, node(4), node(4))
	k, other := cl.Open(pool.Config{}), cl.Open(pool.Config{})
	mine := mustAlloc(t, other, 3*chunkSize)
	_, err := k.Alloc(t.Context(), 6*chunkSize)
	wantErr(t, "more than others have left", err, pool.ErrNoMemory)
	if n := k.Stats().Nodes; n[0].Chunks+n[1].Chunks != 0 {
		t.Fatalf("after a failed allocation, %d and %d chunks are borrowed", n[0].Chunks, n[1].Chunks)
	}
	Eventually(t, "the nodes have back what was allocated by half", func() bool {
		return cl.Nodes[0].Stats().Lent+cl.Nodes[1].Stats().Lent == 3
	})
	c := mustAlloc(t, k, 5*chunkSize) // all that is left
	mustFree(t, mine)
	mustFree(t, c)
	allBack(t, cl)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = k.Alloc(ctx, 2*chunkSize)
	wantErr(t, "allocating when it is too late", err, context.Canceled)
}

func partOfAChunk(t *testing.T, s Setup) {
	cl := NewCluster(t, s, small(120), small(120))
	k := cl.Open(pool.Config{})
	whole, both := mustAlloc(t, k, 100*4096), mustAlloc(t, k, 140*4096-9)
	for i, c := range []*pool.Chunk{whole, both} {
		mustWrite(t, c, pattern(uint64(i), int(c.Size())), 0)
	}
	for round := range 2 {
		for i, n := range cl.Nodes {
			k.Cut(n)
			// Memory of this machine can be read until the cut is noticed.
			Eventually(t, "the cut is noticed", func() bool { return k.Stats().Nodes[i].Reconnects > int64(round) })
		}
		for i, c := range []*pool.Chunk{whole, both} {
			wantBytes(t, c, 0, pattern(uint64(i), int(c.Size())))
		}
	}
	for i, n := range k.Stats().Nodes {
		if n.Lost != 0 || n.Reconnects != 2 {
			t.Fatalf("after two cuts, node %d: %+v", i, n)
		}
	}
	dies := cl.Nodes[0] // where whole is not
	if whole.Nodes()[0] == "node0" {
		dies = cl.Nodes[1]
	}
	dies.Crash()
	dies.Start()
	select {
	case <-both.Lost():
	case <-time.After(Patience):
		t.Fatal("a chunk of which a node has forgotten a part is not lost")
	}
	_, err := both.ReadAt(make([]byte, 10), 0)
	wantErr(t, "reading what is there of a lost chunk", err, pool.ErrLost)
	mustFree(t, both)
	wantBytes(t, whole, 0, pattern(0, int(whole.Size())))
	mustFree(t, whole)
	allBack(t, cl)
}
