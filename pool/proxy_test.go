package pool_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"polder/memnode"
	"polder/pool"
	"polder/pool/pooltest"
	"polder/verbs"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// openThrough opens a pool over a node of its own, through a proxy.
func openThrough(t *testing.T, timeout time.Duration) (*pool.Pool, *pooltest.Proxy, *pooltest.Cluster) {
	return openGroups(t, timeout, 1)
}

// openLends is openThrough with a node that lends as cfg says.
func openLends(t *testing.T, timeout time.Duration, groups int, cfg memnode.Config) (*pool.Pool, *pooltest.Proxy, *pooltest.Cluster) {
	c := pooltest.NewCluster(t, pooltest.TCP, cfg)
	x := pooltest.NewProxy(t, c.Nodes[0].Addr)
	dev, err := tcp.NewDevice(softnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	k, err := pool.Open(t.Context(), pool.Config{
		Device: dev, Timeout: timeout, Groups: groups,
		Nodes: []pool.NodeConfig{{Name: "far", Dial: func(ctx context.Context) (verbs.Conn, error) {
			return tcp.Dial(ctx, dev, x.Addr(), tcp.Config{})
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return k, x, c
}

// openGroups is openThrough with so many groups of queue pairs.
func openGroups(t *testing.T, timeout time.Duration, groups int) (*pool.Pool, *pooltest.Proxy, *pooltest.Cluster) {
	return openLends(t, timeout, groups, memnode.Config{Lend: 16 << 20, Grace: time.Minute})
}

func TestANodeThatHangs(t *testing.T) {
	k, x, c := openThrough(t, time.Second)
	ch, err := k.Alloc(t.Context(), int64(k.ChunkSize()))
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("still here "), 1000)
	if _, err := ch.WriteAt(want, 0); err != nil {
		t.Fatal(err)
	}
	x.Freeze()

	ctx, end := context.WithCancelCause(t.Context())
	read := make(chan error, 1)
	go func() {
		_, err := ch.ReadContext(ctx, make([]byte, 5000), 0)
		read <- err
	}()
	pooltest.Eventually(t, "the read is under way", func() bool { return k.Stats().BufferUsed > 0 })
	end(context.DeadlineExceeded)
	err = <-read
	var op *pool.OpError
	if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &op) || !op.Timeout() {
		t.Fatalf("reading in vain: got %v, want %v", err, context.DeadlineExceeded)
	}
	if used := k.Stats().BufferUsed; used == 0 && k.Stats().Nodes[0].State == "up" {
		t.Fatal("the buffer of an operation in flight was given to others")
	}

	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			_, err := ch.ReadAt(make([]byte, 1000), 0)
			if !errors.Is(err, pool.ErrTimeout) && !errors.Is(err, pool.ErrNodeGone) {
				t.Errorf("reading: got %v, want %v or %v", err, pool.ErrTimeout, pool.ErrNodeGone)
			}
		})
	}
	if _, err := ch.FetchAdd(t.Context(), 1<<19, 1); err == nil {
		t.Error("a node that hangs has added")
	}
	if _, err := k.Alloc(t.Context(), int64(k.ChunkSize())); err == nil {
		t.Error("a node that hangs has lent a chunk")
	}
	wg.Wait()
	pooltest.Eventually(t, "the node is seen to be gone", func() bool { return k.Stats().Nodes[0].State == "down" })
	pooltest.Eventually(t, "the buffer is free", func() bool { return k.Stats().BufferUsed == 0 })
	_, err = ch.ReadAt(make([]byte, 1), 0)
	if !errors.Is(err, pool.ErrNodeGone) {
		t.Fatalf("reading from a node that is gone: got %v, want %v", err, pool.ErrNodeGone)
	}

	x.Thaw()
	got := make([]byte, len(want))
	pooltest.Eventually(t, "the chunk can be read again", func() bool {
		_, err := ch.ReadAt(got, 0)
		return err == nil
	})
	if !bytes.Equal(got, want) {
		t.Fatal("the chunk does not hold what was written")
	}
	// What the late requests may have allocated went back.
	if err := ch.Free(t.Context()); err != nil {
		t.Fatal(err)
	}
	pooltest.Eventually(t, "everything is free", func() bool { return c.Nodes[0].Stats().Lent == 0 })
}

func TestAConnectionThatIsCutMidFrame(t *testing.T) {
	k, x, _ := openThrough(t, 20*time.Second)
	ch, err := k.Alloc(t.Context(), int64(k.ChunkSize()))
	if err != nil {
		t.Fatal(err)
	}
	want, got := make([]byte, 100000), make([]byte, 100000)
	for i, after := range []int{1, 17, 100, 5000, 99999, 150001, 250000} {
		for j := range want {
			want[j] = byte(i + j>>8 + j)
		}
		x.CutAfter(after)
		for range 2 {
			if _, err := ch.WriteAt(want, 7); err != nil {
				t.Fatal(err)
			}
			if _, err := ch.ReadAt(got, 7); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("cut after %d bytes: read differs from what was written (%v)", after, err)
			}
		}
	}
	if n := k.Stats().Nodes[0].Reconnects; n != 7 {
		t.Fatalf("%d connections were lost, want 7", n)
	}
}

// A write that its caller has given up, and that waited to be posted, must not
// overwrite what the caller writes next over another queue pair.
func TestWhatIsGivenUpDoesNotHappenLater(t *testing.T) {
	for _, groups := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d groups", groups), func(t *testing.T) { whatIsGivenUp(t, groups) })
	}
}

func whatIsGivenUp(t *testing.T, groups int) {
	k, x, _ := openGroups(t, 20*time.Second, groups)
	ch, err := k.Alloc(t.Context(), int64(k.ChunkSize()))
	if err != nil {
		t.Fatal(err)
	}
	size := int(ch.Size())
	last := int64(size - 8)
	for round := range 5 {
		x.Freeze()
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error)
		go func() {
			failed <- ch.WriteBulk(ctx, bytes.Repeat([]byte{0xaa}, size), 0)
		}()
		pooltest.Eventually(t, "the write is under way", func() bool { return k.Stats().BufferUsed == size })
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v, want %v", err, context.Canceled)
		}
		next := bytes.Repeat([]byte{byte(round)}, 8)
		written := make(chan error)
		go func() {
			_, err := ch.WriteAt(next, last)
			written <- err
		}()
		x.Thaw()
		if err := <-written; err != nil {
			t.Fatal(err)
		}
		pooltest.Eventually(t, "everything has landed", func() bool { return k.Stats().BufferUsed == 0 })
		got := make([]byte, 8)
		if _, err := ch.ReadAt(got, last); err != nil || !bytes.Equal(got, next) {
			t.Fatalf("got %x, %v, want %x", got, err, next)
		}
	}
	if n := k.Stats().Nodes[0].Reconnects; n != 0 {
		t.Fatalf("the connection was lost %d times", n)
	}
}
