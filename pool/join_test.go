package pool_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"polder/memnode"
	"polder/pool"
	"polder/pool/pooltest"
	"polder/verbs"
)

// A pool borrows from a node that was added to it, and forgets one that is gone, while others use it.
func TestNodesJoinAndAreForgotten(t *testing.T) {
	cfg := memnode.Config{Lend: 1 << 20, ChunkSize: 1 << 16}
	c := pooltest.NewCluster(t, pooltest.TCP, cfg, cfg)
	other := c.Nodes[1]
	c.Nodes = c.Nodes[:1]
	k := c.Open(pool.Config{Timeout: 2 * time.Second})
	addr := other.Addr
	joins := pool.NodeConfig{Name: "other", Dial: func(ctx context.Context) (verbs.Conn, error) { return c.Fabric.Dial(ctx, k.Device, addr) }}

	stop := make(chan struct{})
	var users sync.WaitGroup
	defer users.Wait()
	defer close(stop)
	for range 2 {
		users.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if chunk, err := k.AllocAt(t.Context(), "node0", 1); err == nil {
					_ = chunk.Free(t.Context())
				} else if !errors.Is(err, pool.ErrClosed) {
					t.Error(err)
				}
				k.Node("other")
				k.Stats()
			}
		})
	}
	for range 3 {
		if err := k.Add(joins); err != nil {
			t.Fatal(err)
		}
		if err := k.Add(joins); err == nil || !strings.Contains(err.Error(), `"other"`) {
			t.Errorf("adding it again: got %v", err)
		}
		chunk, err := k.AllocAt(t.Context(), "other", 1<<16)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := chunk.WriteAt([]byte("here"), 0); err != nil {
			t.Error(err)
		}
		if err := k.Forget("other"); !errors.Is(err, pool.ErrInUse) {
			t.Errorf("forgetting a node that is up: got %v, want %v", err, pool.ErrInUse)
		}
		other.Crash()
		pooltest.Eventually(t, "the node is down", func() bool { return stateOf(k, "other") == "down" })
		if err := k.Forget("other"); !errors.Is(err, pool.ErrInUse) || !strings.Contains(err.Error(), "1 chunks are borrowed") {
			t.Errorf("forgetting a node that lends: got %v, want %v", err, pool.ErrInUse)
		}
		if err := chunk.Free(t.Context()); err != nil {
			t.Error(err)
		}
		// Between two attempts, that is: while one is under way, the node may yet be up.
		pooltest.Eventually(t, "the node is forgotten", func() bool {
			err := k.Forget("other")
			if err != nil && !errors.Is(err, pool.ErrInUse) {
				t.Fatal(err)
			}
			return err == nil
		})
		if got := k.Nodes(); !slices.Equal(got, []string{"node0"}) {
			t.Errorf("the nodes are %q", got)
		}
		if _, err := k.AllocAt(t.Context(), "other", 1); err == nil {
			t.Error("a node that was forgotten lends")
		}
		other.Start()
	}
	if err := k.Forget("node0"); !errors.Is(err, pool.ErrInUse) {
		t.Errorf("forgetting the only node: got %v, want %v", err, pool.ErrInUse)
	}
	if err := k.Close(); err != nil {
		t.Error(err)
	}
	if err := k.Add(joins); !errors.Is(err, pool.ErrClosed) {
		t.Errorf("adding to a closed pool: got %v, want %v", err, pool.ErrClosed)
	}
}

func stateOf(k *pooltest.Client, name string) string {
	for _, n := range k.Stats().Nodes {
		if n.Name == name {
			return n.State
		}
	}
	return "none"
}
