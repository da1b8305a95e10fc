package pooltest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"polder/memnode"
	"polder/pool"
)

// Run runs the whole suite.
func Run(t *testing.T, s Setup) {
	for _, test := range []struct {
		name string
		f    func(*testing.T, Setup)
	}{
		{"what was written is read", readBack},
		{"the end of a chunk is EOF", endOfChunk},
		{"a bad operation fails alone", badOperations},
		{"a batch spans chunks and nodes", batches},
		{"a chunk has the size that was asked for", anySize},
		{"a chunk lies on several nodes", severalNodes},
		{"what cannot be had as a whole is not taken", halfAllocated},
		{"a chunk outlives a cut and is lost with one of its nodes", partOfAChunk},
		{"operations larger than the buffer", largeOperations},
		{"callers queue for the buffer", bufferQueue},
		{"a chunk reads as zero to its next owner", zeroed},
		{"allocations spread over nodes", spread},
		{"no memory left, and then some", exhaustion},
		{"a client's budget holds", budget},
		{"one client's chunks are not another's", isolation},
		{"random operations match a model", model},
		{"atomic operations are linearizable", linearizable},
		{"many callers at once", manyCallers},
		{"free waits for operations in progress", freeWaits},
		{"a cancelled context ends an operation", cancelled},
		{"a connection that is cut is resumed", resume},
		{"operations in flight survive a cut", cutInFlight},
		{"a chunk freed during an outage goes back", freeDuringOutage},
		{"a node that restarts has lost its chunks", restart},
		{"a node that is gone fails operations at once", nodeGone},
		{"chunks are lost after the grace period", graceOver},
		{"a node that is drained says so", leaving},
		{"a pool that closes gives everything back", closing},
		{"a pool needs one node to open", opening},
	} {
		t.Run(test.name, func(t *testing.T) { test.f(t, s) })
	}
}

const chunkSize = 1 << 16

// node is the configuration of a node with a few chunks.
func node(chunks int) memnode.Config {
	return memnode.Config{Lend: int64(chunks) * chunkSize, ChunkSize: chunkSize, Grace: time.Minute}
}

// pattern is n bytes that no other seed gives.
func pattern(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	r.Read(b)
	return b
}

func wantErr(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: got error %v, want %v", what, err, want)
	}
	var op *pool.OpError
	if !errors.As(err, &op) {
		t.Fatalf("%s: error %T is not a *pool.OpError", what, err)
	}
}

func mustWrite(t testing.TB, c *pool.Chunk, p []byte, off int64) {
	t.Helper()
	if n, err := c.WriteAt(p, off); err != nil || n != len(p) {
		t.Fatalf("writing %d bytes: got %d, %v", len(p), n, err)
	}
}

func wantBytes(t testing.TB, c *pool.Chunk, off int64, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := c.ReadAt(got, off); err != nil || n != len(want) {
		t.Fatalf("reading %d bytes at %d: got %d, %v", len(want), off, n, err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%d bytes at %d differ from what was written", len(want), off)
	}
}

func readBack(t *testing.T, s Setup) {
	k := NewCluster(t, s, node(2)).Open(pool.Config{})
	c := k.MustAlloc(t)
	for i, n := range []int{1, 7, 8, 255, 256, 257, 4096, 5000, chunkSize - 13, chunkSize} {
		off := int64(min(i, chunkSize-n))
		p := pattern(uint64(i), n)
		mustWrite(t, c, p, off)
		wantBytes(t, c, off, p)
	}
	if n, err := c.WriteAt(nil, 5); n != 0 || err != nil {
		t.Fatalf("writing nothing: got %d, %v", n, err)
	}
}

func endOfChunk(t *testing.T, s Setup) {
	c := NewCluster(t, s, node(1)).Open(pool.Config{}).MustAlloc(t)
	mustWrite(t, c, []byte("end"), chunkSize-3)
	p := make([]byte, 10)
	if n, err := c.ReadAt(p, chunkSize-3); n != 3 || err != io.EOF || string(p[:n]) != "end" {
		t.Fatalf("reading over the end: got %q, %v, want 3 bytes and EOF", p[:n], err)
	}
	if n, err := c.ReadAt(p, chunkSize); n != 0 || err != io.EOF {
		t.Fatalf("reading at the end: got %d, %v, want 0 and EOF", n, err)
	}
	r := io.NewSectionReader(c, 0, chunkSize+10)
	if all, err := io.ReadAll(r); err != nil || len(all) != chunkSize {
		t.Fatalf("reading all: got %d bytes, %v, want %d", len(all), err, chunkSize)
	}
}

func badOperations(t *testing.T, s Setup) {
	cl := NewCluster(t, s, node(2))
	k, other := cl.Open(pool.Config{}), cl.Open(pool.Config{})
	c, foreign := k.MustAlloc(t), other.MustAlloc(t)
	if _, err := c.WriteAt([]byte("xx"), chunkSize-1); true {
		wantErr(t, "writing over the end", err, pool.ErrRange)
	}
	if _, err := c.ReadAt(make([]byte, 1), -1); true {
		wantErr(t, "reading before the beginning", err, pool.ErrRange)
	}
	_, err := c.FetchAdd(t.Context(), 4, 1)
	wantErr(t, "adding to half a word", err, pool.ErrUnaligned)
	_, _, err = c.CompareAndSwap(t.Context(), chunkSize, 0, 1)
	wantErr(t, "swapping behind the end", err, pool.ErrRange)
	ops := []pool.Op{
		{Kind: pool.OpWrite, Chunk: c, Buf: []byte("fine")},
		{Kind: pool.OpWrite, Chunk: foreign, Buf: []byte("x")},
		{Kind: pool.OpRead, Buf: []byte("x")},
		{Kind: 77, Chunk: c},
		{Kind: pool.OpFetchAdd, Chunk: c, Off: 16, New: 3},
	}
	if err := k.Do(t.Context(), ops); err != ops[1].Err {
		t.Fatalf("the batch's error is %v, want the first one, %v", err, ops[1].Err)
	}
	for i, bad := range []bool{false, true, true, true, false} {
		if (ops[i].Err != nil) != bad {
			t.Errorf("operation %d: got error %v", i, ops[i].Err)
		}
	}
	wantBytes(t, c, 0, []byte("fine"))
	if err := c.Free(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = c.ReadAt(make([]byte, 1), 0)
	wantErr(t, "reading after Free", err, pool.ErrFreed)
	wantErr(t, "freeing twice", c.Free(t.Context()), pool.ErrFreed)
}

func batches(t *testing.T, s Setup) {
	k := NewCluster(t, s, node(8), node(8), node(8)).Open(pool.Config{})
	var chunks []*pool.Chunk
	for range 12 {
		chunks = append(chunks, k.MustAlloc(t))
	}
	var ops []pool.Op
	for i, c := range chunks {
		for j := range 20 {
			ops = append(ops,
				pool.Op{Kind: pool.OpWrite, Chunk: c, Off: int64(j * 2000), Buf: pattern(uint64(i*100+j), 1999)},
				pool.Op{Kind: pool.OpFetchAdd, Chunk: c, Off: 60000, New: 1},
				pool.Op{Kind: pool.OpCompareAndSwap, Chunk: c, Off: 60008 + int64(j)*8, Old: 0, New: uint64(j + 1)})
		}
	}
	if err := k.Do(t.Context(), ops); err != nil {
		t.Fatal(err)
	}
	for i := range ops {
		if ops[i].Kind == pool.OpCompareAndSwap && !ops[i].Swapped() {
			t.Fatalf("operation %d did not swap: the word was %d", i, ops[i].Prev)
		}
	}
	var reads []pool.Op
	for i := range ops {
		if op := ops[i]; op.Kind == pool.OpWrite {
			reads = append(reads, pool.Op{Kind: pool.OpRead, Chunk: op.Chunk, Off: op.Off, Buf: make([]byte, len(op.Buf))})
		}
	}
	for _, c := range chunks {
		reads = append(reads, pool.Op{Kind: pool.OpFetchAdd, Chunk: c, Off: 60000})
	}
	if err := k.Do(t.Context(), reads); err != nil {
		t.Fatal(err)
	}
	for i, op := range reads {
		if op.Kind == pool.OpFetchAdd && op.Prev != 20 {
			t.Fatalf("20 additions of 1 gave %d", op.Prev)
		}
		if op.Kind == pool.OpRead && !bytes.Equal(op.Buf, ops[3*i].Buf) {
			t.Fatalf("read %d differs from what was written", i)
		}
	}
	if err := k.Do(t.Context(), nil); err != nil {
		t.Fatalf("an empty batch: %v", err)
	}
}

func largeOperations(t *testing.T, s Setup) {
	const size = 2 << 20
	k := NewCluster(t, s, memnode.Config{Lend: 4 * size, ChunkSize: size}).Open(pool.Config{Buffer: 1 << 18})
	c := k.MustAlloc(t)
	p := pattern(1, size-1)
	mustWrite(t, c, p, 1)
	wantBytes(t, c, 1, p)
	if used := k.Stats().BufferUsed; used != 0 {
		t.Fatalf("%d bytes of the buffer are still in use", used)
	}
}

func bufferQueue(t *testing.T, s Setup) {
	k := NewCluster(t, s, node(16)).Open(pool.Config{Buffer: 1})
	var wg sync.WaitGroup
	for i := range 16 {
		c := k.MustAlloc(t)
		wg.Go(func() {
			for j := range 5 {
				n := chunkSize >> (j * 2)
				p, got := pattern(uint64(i*10+j), n), make([]byte, n)
				if _, err := c.WriteAt(p, 0); err != nil {
					t.Error(err)
				}
				if _, err := c.ReadAt(got, 0); err != nil || !bytes.Equal(p, got) {
					t.Errorf("read differs from what was written (%v)", err)
				}
			}
		})
	}
	wg.Wait()
	if used := k.Stats().BufferUsed; used != 0 {
		t.Fatalf("%d bytes of the buffer are still in use", used)
	}
}

func zeroed(t *testing.T, s Setup) {
	for _, size := range []int{512, 4096, chunkSize} {
		cl := NewCluster(t, s, memnode.Config{Lend: int64(3 * size), ChunkSize: size})
		a, b := cl.Open(pool.Config{}), cl.Open(pool.Config{})
		for round := range 4 {
			k := []*Client{a, b}[round%2]
			var chunks []*pool.Chunk
			for range 3 {
				c := k.MustAlloc(t)
				wantBytes(t, c, 0, make([]byte, size))
				mustWrite(t, c, bytes.Repeat([]byte{0xee}, size), 0)
				chunks = append(chunks, c)
			}
			for _, c := range chunks {
				mustFree(t, c)
			}
		}
	}
}

func spread(t *testing.T, s Setup) {
	cl := NewCluster(t, s, node(8), node(8), node(4))
	k := cl.Open(pool.Config{})
	for range 12 {
		k.MustAlloc(t)
	}
	for i, n := range k.Stats().Nodes {
		if want := []int{5, 5, 2}[i]; n.Chunks < want-1 || n.Chunks > want+1 {
			t.Errorf("node %d, which has %d chunks, gave %d of 12, want about %d", i, []int{8, 8, 4}[i], n.Chunks, want)
		}
	}
}

func exhaustion(t *testing.T, s Setup) {
	cl := NewCluster(t, s, node(2), node(1))
	k := cl.Open(pool.Config{})
	c := k.MustAlloc(t)
	k.MustAlloc(t)
	k.MustAlloc(t)
	_, err := k.AllocOne(t.Context())
	wantErr(t, "a fourth chunk of three", err, pool.ErrNoMemory)
	mustFree(t, c)
	other := cl.Open(pool.Config{})
	other.MustAlloc(t)
	_, err = k.AllocOne(t.Context())
	wantErr(t, "a chunk that another has", err, pool.ErrNoMemory)
}

func budget(t *testing.T, s Setup) {
	cfg := node(10)
	cfg.ClientBudget = 3*chunkSize + 1
	cl := NewCluster(t, s, cfg)
	a, b := cl.Open(pool.Config{}), cl.Open(pool.Config{})
	for _, k := range []*Client{a, b} {
		for range 3 {
			k.MustAlloc(t)
		}
		_, err := k.AllocOne(t.Context())
		wantErr(t, "more than the budget", err, pool.ErrNoMemory)
		if !strings.Contains(err.Error(), "budget") {
			t.Errorf("the error %q does not say that it is the budget", err)
		}
	}
	if got := cl.Nodes[0].Stats().Lent; got != 6 {
		t.Fatalf("%d chunks are lent, want 6", got)
	}
}

func isolation(t *testing.T, s Setup) {
	cl := NewCluster(t, s, node(64))
	var wg sync.WaitGroup
	for id := range uint64(4) {
		k := cl.Open(pool.Config{})
		wg.Go(func() {
			var chunks []*pool.Chunk
			for i := range uint64(16) {
				c, err := k.AllocOne(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				chunks = append(chunks, c)
				if _, err := c.WriteAt(pattern(id<<8|i, chunkSize), 0); err != nil {
					t.Error(err)
				}
			}
			got := make([]byte, chunkSize)
			for i, c := range chunks {
				if _, err := c.ReadAt(got, 0); err != nil || !bytes.Equal(got, pattern(id<<8|uint64(i), chunkSize)) {
					t.Errorf("client %d's chunk %d was written by another (%v)", id, i, err)
				}
			}
		})
	}
	wg.Wait()
}

func manyCallers(t *testing.T, s Setup) {
	k := NewCluster(t, s, node(8), node(8)).Open(pool.Config{})
	var chunks []*pool.Chunk
	for range 8 {
		chunks = append(chunks, k.MustAlloc(t))
	}
	const callers, rounds, span = 32, 25, chunkSize / 32
	var wg sync.WaitGroup
	for id := range callers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(id), 1))
			p, got := make([]byte, span), make([]byte, span)
			for i := range rounds {
				c := chunks[r.IntN(len(chunks))]
				n := 1 + r.IntN(span-8)
				copy(p[:n], pattern(uint64(id*rounds+i), n))
				if _, err := c.WriteAt(p[:n], int64(id*span)); err != nil {
					t.Error(err)
					return
				}
				if _, err := c.ReadAt(got[:n], int64(id*span)); err != nil || !bytes.Equal(got[:n], p[:n]) {
					t.Errorf("caller %d reads what it did not write (%v)", id, err)
					return
				}
				if _, err := c.FetchAdd(t.Context(), int64(id*span+span-8), 1); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	var sum uint64
	for _, c := range chunks {
		for id := range callers {
			v, err := c.FetchAdd(t.Context(), int64(id*span+span-8), 0)
			if err != nil {
				t.Fatal(err)
			}
			sum += v
		}
	}
	if sum != callers*rounds {
		t.Fatalf("%d additions of 1 gave %d", callers*rounds, sum)
	}
}

func freeWaits(t *testing.T, s Setup) {
	k := NewCluster(t, s, node(4)).Open(pool.Config{})
	for range 20 {
		c := k.MustAlloc(t)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				buf := make([]byte, 20000)
				for {
					if _, err := c.ReadAt(buf, 0); err != nil {
						wantErr(t, "reading while another frees", err, pool.ErrFreed)
						return
					}
				}
			})
		}
		wg.Go(func() {
			if err := c.Free(t.Context()); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
	}
	if n := k.Stats().Nodes[0].Reconnects; n != 0 {
		t.Fatalf("the connection was lost %d times: an access overtook a free", n)
	}
}

func cancelled(t *testing.T, s Setup) {
	k := NewCluster(t, s, node(2)).Open(pool.Config{})
	c := k.MustAlloc(t)
	why := errors.New("because")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	_, err := c.ReadContext(ctx, make([]byte, 1), 0)
	wantErr(t, "reading", err, why)
	_, err = k.AllocOne(ctx)
	wantErr(t, "allocating", err, why)
	if err := c.Free(t.Context()); err != nil {
		t.Fatal(err)
	}
}
