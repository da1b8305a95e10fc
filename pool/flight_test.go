package pool_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"polder/memnode"
	"polder/pool"
	"polder/pool/pooltest"
)

// TestWritesAreStartedByOne: a goroutine begins writes at two nodes, is told when both have landed, and need not wait for either.
func TestWritesAreStartedByOne(t *testing.T) {
	for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.TCP, pooltest.SHM} {
		t.Run(s.Name, func(t *testing.T) {
			lend := memnode.Config{Lend: 4 << 20, ChunkSize: 1 << 20}
			k := pooltest.NewCluster(t, s, lend, lend).Open(pool.Config{})
			for round := range 50 {
				size := 1 + 40_000*round // beyond what is written at once, and what there is room for
				data := bytes.Repeat([]byte{byte(round + 1)}, min(size, 1<<20))
				var chunks []*pool.Chunk
				var flights []*pool.Flight
				landed := make(chan struct{}, 2)
				for _, name := range k.Nodes() {
					c, err := k.AllocAt(t.Context(), name, 1<<20)
					if err != nil {
						t.Fatal(err)
					}
					chunks = append(chunks, c)
					flights = append(flights, c.StartWrite(t.Context(), data, 0, func() { landed <- struct{}{} }))
				}
				for range flights {
					select {
					case <-landed:
					case <-time.After(10 * time.Second):
						t.Fatal("a write has not landed")
					}
				}
				if small := size < 64<<10; small && !(flights[0].Landed() && flights[1].Landed()) {
					t.Error("both have landed, and one has not")
				}
				for i, f := range flights {
					if err := f.End(t.Context()); err != nil {
						t.Fatal(err)
					}
					got := make([]byte, len(data))
					if _, err := chunks[i].ReadAt(got, 0); err != nil || !bytes.Equal(got, data) {
						t.Fatalf("%d bytes: others are read than were written (%v)", len(data), err)
					}
					if err := chunks[i].Free(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// TestAStartedWriteIsGivenUp, or written again by another connection, as one that was not.
func TestAStartedWriteIsGivenUp(t *testing.T) {
	k, x, _ := openThrough(t, 20*time.Second)
	c, err := k.Alloc(t.Context(), int64(k.ChunkSize()))
	if err != nil {
		t.Fatal(err)
	}
	x.Freeze()
	ctx, cancel := context.WithCancel(t.Context())
	f := c.StartWrite(ctx, []byte("given up"), 0, func() {})
	if f.Landed() {
		t.Error("it has landed at a node that does not answer")
	}
	cancel()
	if err := f.End(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if err := c.StartWrite(ctx, []byte("not begun"), 0, func() {}).End(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	f = c.StartWrite(t.Context(), []byte("again"), 0, func() {})
	x.Cut()
	x.Thaw()
	if err := f.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := c.ReadAt(got, 0); err != nil || string(got) != "again" {
		t.Errorf("got %q, %v", got, err)
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.StartWrite(t.Context(), []byte("x"), 0, func() {}).End(t.Context()); !errors.Is(err, pool.ErrClosed) {
		t.Errorf("got %v, want %v", err, pool.ErrClosed)
	}
}
