package resp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"polder/far"
	"polder/far/disk"
	"polder/holder"
	"polder/partition"
	"polder/resp/forward"
	"polder/resp/keyspace"
)

// TestTimeIsSpentOnThePartitionOfTheKeys, wherever the client is, and also when a command waits or is one of a transaction.
func TestTimeIsSpentOnThePartitionOfTheKeys(t *testing.T) {
	c := startCluster(t, 2, 2, roomy/8)
	key := c.keyIn(1, "k")
	spent := func() [2]time.Duration { return [2]time.Duration{c.servers[0].Spent(0), c.servers[1].Spent(1)} }
	for i, addr := range c.addrs {
		was := spent()
		cl := dial(t, addr)
		for range 10 {
			cl.words("SET " + key + " v")
		}
		cl.words("PING")
		now := spent()
		if got := now[1] - was[1]; now[0] != was[0] || got < 10*besides || got > 10*(besides+mostSpent) {
			t.Errorf("ten commands at server %d take %v and %v, want none and %v or more", i, now[0]-was[0], got, 10*besides)
		}
	}
	if n := c.servers[0].Spent(1); n != 0 {
		t.Errorf("%v were spent on a partition that is not here", n)
	}
	var p part
	p.spend(time.Second, true)
	p.spend(time.Second, false)
	if got, want := time.Duration(p.spent.Load()), mostSpent+2*besides; got != want {
		t.Errorf("a second of waiting and a second of work count %v, want %v", got, want)
	}
}

// memRegister is a holder.Register in memory, which all servers share.
type memRegister struct {
	mu      sync.Mutex
	value   []byte // guarded by mu
	version uint64 // guarded by mu
}

func (r *memRegister) Read(context.Context) ([]byte, uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.value, r.version, nil
}

func (r *memRegister) Swap(_ context.Context, version uint64, value []byte) (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if version != r.version {
		return 0, holder.ErrChanged
	}
	r.value, r.version = slices.Clone(value), r.version+1
	return r.version, nil
}

func (r *memRegister) Close() error { return nil }

// TestServersShareTheLoad: all of it is on partitions of one server, which gives half of them away. Then they stay where they are.
func TestServersShareTheLoad(t *testing.T) {
	const partitions, beat = 8, 50 * time.Millisecond
	c := &cluster{t: t, local: roomy / 8, stores: make([]*disk.Store, partitions), heaps: make([]*far.Heap, partitions)}
	for range partitions {
		c.dirs = append(c.dirs, t.TempDir())
	}
	reg := new(memRegister)
	links := forward.New(forward.Config{})
	t.Cleanup(links.Close)
	var members [2]atomic.Pointer[partition.Member]
	given := make([]sync.Mutex, partitions) // held by who has a partition open: the next owner waits until it is given up
	for i := range members {
		srv, err := NewLoading(Config{
			Logger: slog.New(slog.DiscardHandler), OpTimeout: testTimeout, Loops: 1, MaxBulk: 1 << 20,
			Cluster: &Cluster{ID: clusterID(i), Doubt: func() {}, Links: links, Map: func() *partition.Map {
				if m := members[i].Load(); m != nil {
					return m.Map()
				}
				return &partition.Map{Partitions: partitions, Owner: make([]string, partitions), Next: make([]string, partitions)}
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		c.servers = append(c.servers, srv)
		c.addrs = append(c.addrs, serve(t, srv, func() error {
			ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
			defer cancel()
			return members[i].Load().Close(ctx)
		}))
	}
	for i, srv := range c.servers {
		m, err := partition.Join(t.Context(), partition.Config{
			Register: reg, ID: clusterID(i), Addr: c.addrs[i], Partitions: partitions, Beat: beat, Patience: testTimeout,
			Open: func(ctx context.Context, p int, mine <-chan struct{}) (err error) {
				select {
				case <-mine:
				case <-ctx.Done():
					return ctx.Err()
				}
				given[p].Lock()
				defer func() {
					if err != nil {
						given[p].Unlock()
					}
				}()
				if c.stores[p], err = disk.Open(disk.Config{Dir: c.dirs[p], SegmentSize: 128 << 10, Size: 64 << 20}); err != nil {
					return err
				}
				if c.heaps[p], err = far.Open(ctx, c.stores[p], far.Config{Local: c.local}); err != nil {
					return errors.Join(err, c.stores[p].Close())
				}
				if err = srv.AddPartition(ctx, p, c.heaps[p], Partition{Journal: keyspace.Journal{Dir: filepath.Join(c.dirs[p], "journal"), Durable: true}}); err != nil {
					return errors.Join(err, c.heaps[p].Close(), c.stores[p].Close())
				}
				return nil
			},
			Close: func(ctx context.Context, p int) error {
				defer given[p].Unlock()
				return errors.Join(srv.RemovePartition(ctx, p), c.heaps[p].Close(), c.stores[p].Close())
			},
			Changed: func(*partition.Map) { srv.MapChanged() },
			Spent:   srv.Spent,
		})
		if err != nil {
			t.Fatal(err)
		}
		members[i].Store(m)
	}
	now := func() *partition.Map {
		b, _, _ := reg.Read(context.Background())
		m, err := partition.Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	// has is how many of some partitions the first server has, -1 while some are on their way.
	has := func(some []int) (n int) {
		m := now()
		if strings.Join(m.Next, "") != "" {
			return -1
		}
		for _, p := range some {
			if m.Owner[p] == clusterID(0) {
				n++
			}
		}
		return n
	}
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	eventually(t, "each server has half of the partitions", func() bool { return has(all) == partitions/2 })
	var busy []int
	for p, owner := range now().Owner {
		if owner == clusterID(0) {
			busy = append(busy, p)
		}
	}

	const often = 2000 // how often a command asks for its key
	cl := dial(t, c.addrs[0])
	var round strings.Builder
	for _, p := range busy {
		key := c.keyIn(p, "k")
		if got := cl.words("SET " + key + " v"); got != "+OK" {
			t.Fatal(got)
		}
		round.WriteString(encode(append([]string{"EXISTS"}, slices.Repeat([]string{key}, often)...)...))
	}
	end := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(end)
	wg.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
			}
			_ = cl.c.SetDeadline(time.Now().Add(testTimeout))
			cl.send(round.String())
			for range busy {
				if got := cl.recv().String(); got != fmt.Sprint(":", often) {
					t.Errorf("a client that gives the servers much to do is told %s", got)
					return
				}
			}
		}
	})
	eventually(t, "the servers share the load", func() bool { return has(busy) == len(busy)/2 })
	settled := now()
	eventually(t, "the servers have beaten 100 times", func() bool { return now().Servers[0].Beat > settled.Servers[0].Beat+100 })
	if m := now(); m.Epoch != settled.Epoch || !slices.Equal(m.Next, settled.Next) {
		t.Errorf("partitions go on moving: from %v to %v, and then to %v", settled.Owner, m.Owner, m.Next)
	}
	if s := fmt.Sprint(now().Burden(clusterID(1))); !strings.HasPrefix(s, fmt.Sprint(partitions/2+len(busy)/2, " ")) || !strings.HasSuffix(s, "true") {
		t.Errorf("what the second server has to do is %s", s)
	}
}
