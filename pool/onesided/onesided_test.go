package onesided_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"polder/internal/invariants"
	"polder/memnode"
	"polder/pool"
	"polder/pool/manager"
	"polder/pool/onesided"
	"polder/pool/pooltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// both runs f with both managers.
func both(t *testing.T, f func(t *testing.T, m onesided.Manager)) {
	for _, m := range []onesided.Manager{{}, {Native: true}} {
		t.Run(m.Name(), func(t *testing.T) { f(t, m) })
	}
}

// TestConformance is of chains: package pool has the default manager, which is the
// other one.
func TestConformance(t *testing.T) {
	pooltest.Conformance(t, onesided.Manager{}, pooltest.Half(invariants.Enabled)...)
}

// TestConformanceWithGroups: that there are several groups of queue pairs, and several
// to allocate and to free with, does not show in what a program sees. Three groups are
// no multiple of two pairs, so that every pair allocates for every group.
func TestConformanceWithGroups(t *testing.T) {
	both(t, func(t *testing.T, m onesided.Manager) {
		s := setup(pooltest.Inproc, m)
		want := pooltest.Script(t, s, 7)
		s.Groups, s.Pairs = 3, 2
		pooltest.Run(t, s)
		if got := pooltest.Script(t, s, 7); got != want {
			t.Errorf("with groups: digest %s, want %s", got, want)
		}
	})
}

// TestConformanceWhereAnswersAreLost runs the chains with clients whose READs and
// atomics are answered late and out of step.
func TestConformanceWhereAnswersAreLost(t *testing.T) {
	if invariants.Enabled {
		return // what is lost depends on no goroutine; "make plain" runs it
	}
	pooltest.Conformance(t, onesided.Manager{}, pooltest.LossySim)
}

func setup(s pooltest.Setup, m onesided.Manager) pooltest.Setup {
	s.Manager = m
	return s
}

// TestNoCPU: handing out memory and taking it back wakes the control goroutine
// never, in one process and over real connections. Chunks of more than 64 KiB, as
// they are by default, cost it something nevertheless: it clears them after they
// were freed, when it looks around by itself, every 50 ms, or when none is left.
// So here there are as many of those as are asked for.
func TestNoCPU(t *testing.T) {
	for _, c := range []struct {
		pooltest.Setup
		chunkSize, chunks, cycles int
	}{
		{pooltest.Inproc, 512, 64, 2_000},
		{pooltest.TCP, 64 << 10, 64, 400},
		{pooltest.TCP, memnode.DefaultChunkSize, 400, 400},
	} {
		both(t, func(t *testing.T, m onesided.Manager) {
			cl := pooltest.NewCluster(t, setup(c.Setup, m), memnode.Config{Lend: int64(c.chunks * c.chunkSize), ChunkSize: c.chunkSize})
			const clients = 4
			pools := make([]*pooltest.Client, clients)
			for i := range pools {
				pools[i] = cl.Open(pool.Config{})
			}
			before := cl.Nodes[0].Stats().Wakeups
			var wg sync.WaitGroup
			for _, p := range pools {
				wg.Go(func() {
					for range c.cycles / clients {
						k, err := p.Alloc(context.Background(), int64(p.ChunkSize()))
						if err == nil {
							err = k.Free(context.Background())
						}
						if err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			// The node may have seen the end of a client's joining only now.
			if got := cl.Nodes[0].Stats().Wakeups - before; got > clients {
				t.Errorf("%s, chunks of %d bytes: %d allocations woke the control goroutine %d times, want never, but for %d clients that joined",
					c.Name, c.chunkSize, c.cycles, got, clients)
			}
			if c.chunkSize <= 64<<10 {
				if s := cl.Nodes[0].Stats(); s.Lent != 0 || s.Dirty != 0 {
					t.Errorf("%s, chunks of %d bytes: %d are lent and %d are to be cleared after all were freed", c.Name, c.chunkSize, s.Lent, s.Dirty)
				}
			}
			pooltest.Eventually(t, "all chunks are back and clear", func() bool {
				s := cl.Nodes[0].Stats()
				return s.Lent == 0 && s.Dirty == 0
			})
		})
	}
}

// TestADeviceThatPrefetches runs the chains, of the largest group as well, on a device
// that reads entries as soon as they are enabled.
func TestADeviceThatPrefetches(t *testing.T) {
	for _, group := range []int{1, 8} {
		const chunks, clients, rounds = 3, 4, 200
		cl := pooltest.NewCluster(t, setup(pooltest.Prefetching, onesided.Manager{}), memnode.Config{Lend: chunks * 4096, ChunkSize: 4096, Group: group})
		var wg sync.WaitGroup
		for i := range clients {
			k := cl.Open(pool.Config{})
			wg.Go(func() {
				for range rounds {
					c, err := k.AllocWait(context.Background(), 4096)
					if err != nil {
						t.Error(err)
						return
					}
					if was, err := c.FetchAdd(context.Background(), 64, uint64(i+1)); err != nil || was != 0 {
						t.Errorf("somebody else has the chunk, too: %d (%v)", was, err)
					}
					if err := c.Free(context.Background()); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		pooltest.Eventually(t, "everything is back", func() bool { return cl.Nodes[0].Stats().Lent == 0 })
	}
}

// TestEveryPath: the same chunk is reached over every queue pair of a group.
func TestEveryPath(t *testing.T) {
	both(t, func(t *testing.T, m onesided.Manager) {
		for _, group := range []int{1, 2, 3, 8} {
			cfg := memnode.Config{Lend: 8 << 18, ChunkSize: 1 << 18, Group: group}
			k := pooltest.NewCluster(t, setup(pooltest.Inproc, m), cfg).Open(pool.Config{})
			for range 20 {
				c := k.MustAlloc(t)
				long, short := make([]byte, 1<<18), make([]byte, 100)
				for i := range long {
					long[i] = byte(i * 7)
				}
				if err := c.WriteBulk(t.Context(), long, 0); err != nil {
					t.Fatal(err)
				}
				if _, err := c.ReadAt(short, 5000); err != nil || short[3] != byte(5003*7&0xff) {
					t.Fatalf("group of %d: read %d after a long write (%v)", group, short[3], err)
				}
				if err := c.Free(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// TestLargeChunks: chunks that the CPU zeroes go round, and nobody is told that
// there is nothing while some are being zeroed.
func TestLargeChunks(t *testing.T) {
	both(t, func(t *testing.T, m onesided.Manager) {
		const size = 1 << 20
		cl := pooltest.NewCluster(t, setup(pooltest.Inproc, m), memnode.Config{Lend: 4 * size, ChunkSize: size})
		k := cl.Open(pool.Config{})
		for range 50 {
			c := k.MustAlloc(t)
			var b [8]byte
			if _, err := c.ReadAt(b[:], size/2); err != nil || b != [8]byte{} {
				t.Fatalf("a chunk reads as %x at first (%v)", b, err)
			}
			if _, err := c.WriteAt([]byte("private!"), size/2); err != nil {
				t.Fatal(err)
			}
			if err := c.Free(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		pooltest.Eventually(t, "everything is zeroed", func() bool {
			s := cl.Nodes[0].Stats()
			return s.Dirty == 0 && s.Lent == 0
		})
	})
}

// TestWaitingForMemory: who waits is woken when memory comes back, and only as
// many get some as there is.
func TestWaitingForMemory(t *testing.T) {
	both(t, func(t *testing.T, m onesided.Manager) {
		cl := pooltest.NewCluster(t, setup(pooltest.Inproc, m), memnode.Config{Lend: 3 * 4096, ChunkSize: 4096})
		holder := cl.Open(pool.Config{})
		var held []*pool.Chunk
		for range 2 {
			held = append(held, holder.MustAlloc(t))
		}
		other := cl.Open(pool.Config{})
		held = append(held, other.MustAlloc(t))

		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := other.AllocWait(ctx, int64(other.ChunkSize())); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("waiting for what does not come: got %v, want %v", err, context.DeadlineExceeded)
		}
		got := make(chan *pool.Chunk)
		for range 3 {
			k := cl.Open(pool.Config{})
			go func() {
				c, err := k.AllocWait(context.Background(), int64(k.ChunkSize()))
				if err != nil {
					t.Error(err)
				}
				got <- c
			}()
		}
		for _, c := range held {
			if err := c.Free(t.Context()); err != nil {
				t.Fatal(err)
			}
			<-got
		}
		if lent := cl.Nodes[0].Stats().Lent; lent != 3 {
			t.Errorf("%d chunks are lent, want 3", lent)
		}
	})
}

// TestScarcity: many clients fight for few chunks; nothing is lost or handed out
// twice.
func TestScarcity(t *testing.T) {
	both(t, func(t *testing.T, m onesided.Manager) {
		const chunks, clients, rounds = 3, 5, 300
		cl := pooltest.NewCluster(t, setup(pooltest.Inproc, m), memnode.Config{Lend: chunks * 4096, ChunkSize: 4096})
		var wg sync.WaitGroup
		for i := range clients {
			k := cl.Open(pool.Config{})
			wg.Go(func() {
				for range rounds {
					c, err := k.AllocWait(context.Background(), int64(k.ChunkSize()))
					if err != nil {
						t.Error(err)
						return
					}
					if was, err := c.FetchAdd(context.Background(), 64, uint64(i+1)); err != nil || was != 0 {
						t.Errorf("somebody else has the chunk, too: %d (%v)", was, err)
					}
					if err := c.Free(context.Background()); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		pooltest.Eventually(t, "everything is back", func() bool { return cl.Nodes[0].Stats().Lent == 0 })
	})
}

// TestWhatAFreeLeavesUnsentIsFreedByTheNextCall: a call that gives up in the middle of its list keeps none of it from
// the node for as long as the session lives.
func TestWhatAFreeLeavesUnsentIsFreedByTheNextCall(t *testing.T) {
	both(t, func(t *testing.T, m onesided.Manager) {
		const chunks = 150
		cl := pooltest.NewCluster(t, setup(pooltest.Inproc, m), memnode.Config{Lend: chunks * 4096, ChunkSize: 4096})
		s := attachWith(t, cl, m, 2, 2)
		var ids []uint32
		for len(ids) < chunks {
			var g [1]manager.Grant
			if _, err := s.Alloc(t.Context(), g[:]); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, g[0].Chunk)
		}
		over, end := context.WithCancel(t.Context())
		end()
		gaveUp := 0
		for list := range slices.Chunk(ids, 5) { // a call may have done all before it looks whether it is over
			if s.Free(over, list) != nil {
				gaveUp++
			}
			if err := s.Free(t.Context(), nil); err != nil {
				t.Error(err)
			}
		}
		if gaveUp == 0 {
			t.Error("no call has given up")
		}
		pooltest.Eventually(t, "all chunks are back", func() bool { return cl.Nodes[0].Stats().Lent == 0 })
	})
}
