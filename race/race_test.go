package race

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"polder/memnode"
	"polder/pool"
	"polder/pool/finemem"
	"polder/pool/malloc"
	"polder/pool/pooltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig starts nodes, and makes a table whose subtables have so many groups.
func rig(t *testing.T, s pooltest.Setup, groups uint32, nodes int) (*Table, *pooltest.Client, *pooltest.Cluster) {
	t.Helper()
	s.Manager = finemem.Manager{}
	var cfgs []memnode.Config
	for range nodes {
		cfgs = append(cfgs, memnode.Config{Lend: 16 << 20, ChunkSize: 4096})
	}
	cl := pooltest.NewCluster(t, s, cfgs...)
	k := cl.Open(pool.Config{})
	table, err := open(t.Context(), k.Pool, groups)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := table.Close(context.Background()); err != nil {
			t.Error(err)
		}
		for _, n := range k.Stats().Nodes {
			if n.Chunks != 0 {
				t.Errorf("%s: %d chunks are still borrowed after Close", n.Name, n.Chunks)
			}
		}
	})
	return table, k, cl
}

// want looks for a key, whose value is to be value, or nothing if that is nil.
func want(t *testing.T, table *Table, key string, value []byte) {
	t.Helper()
	got, found, err := table.Get(t.Context(), []byte(key), nil)
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	if found != (value != nil) || !bytes.Equal(got, value) {
		t.Fatalf("%s: got %d bytes, %v, want %d bytes, %v", key, len(got), found, len(value), value != nil)
	}
}

func TestATableMatchesAMap(t *testing.T) {
	table, _, _ := rig(t, pooltest.Inproc, 2, 2)
	r := rand.New(rand.NewPCG(1, 2))
	model := map[string][]byte{}
	sizes := []int{0, 1, 30, 64, 500, 4096, 8128, 8200, 32 << 10, 70_000}
	for i := range 1500 {
		key := fmt.Sprint("key ", r.IntN(400))
		switch r.IntN(5) {
		case 0:
			found, err := table.Delete(t.Context(), []byte(key))
			if _, was := model[key]; err != nil || found != was {
				t.Fatalf("deleting %s: got %v, %v, want %v", key, found, err, was)
			}
			delete(model, key)
		case 1:
			want(t, table, key, model[key])
		default:
			size := r.IntN(100)
			if i%16 == 0 {
				size = sizes[r.IntN(len(sizes))]
			}
			value := make([]byte, size)
			for j := range value {
				value[j] = byte(i + j)
			}
			if err := table.Put(t.Context(), []byte(key), value); err != nil {
				t.Fatal(err)
			}
			model[key] = value
		}
	}
	for i := range 400 {
		key := fmt.Sprint("key ", i)
		want(t, table, key, model[key])
	}
	if s := table.Stats(); s.Subtables < 4 || s.InDoubt != 0 {
		t.Errorf("got %+v, want at least 4 subtables, and nothing in doubt", s)
	}
	wantNoGarbage(t, table)
	for key := range model {
		if _, err := table.Delete(t.Context(), []byte(key)); err != nil {
			t.Fatal(err)
		}
	}
	wantNoGarbage(t, table)
}

// wantNoGarbage: what is allocated are the subtables, and one block for every slot that
// is not vacant. Nothing is being done with the table.
func wantNoGarbage(t *testing.T, table *Table) {
	t.Helper()
	table.epochs.batch = 1
	for range 3 {
		table.begin(nil).end()
	}
	var live int64
	seen := map[*subtable]bool{}
	blocks := map[word]bool{}
	d := table.directory.Load()
	for i := range d.entries {
		s := d.entries[i].Load()
		if seen[s] {
			continue
		}
		seen[s] = true
		live += int64(s.block.Size)
		image := make([]byte, s.block.Size)
		if _, err := s.block.Chunk.ReadContext(t.Context(), image, s.block.Off); err != nil {
			t.Fatal(err)
		}
		for j := range len(image) / 8 {
			w := wordAt(image, j)
			if w.vacant() {
				continue
			}
			if blocks[w] {
				t.Errorf("the block of %x is in two slots", w)
			}
			blocks[w] = true
			live += int64(table.blockOf(w).Size)
		}
	}
	if s := table.Stats(); s.Memory.Live != live || s.Subtables != len(seen) {
		t.Errorf("%d bytes are allocated and %d subtables counted, want %d and %d", s.Memory.Live, s.Subtables, live, len(seen))
	}
}

func TestKeysOfOneFingerprintAreToldApart(t *testing.T) {
	table, _, _ := rig(t, pooltest.Inproc, 2, 1)
	table.seed = 1
	// Keys whose slots are in the same pairs of buckets.
	var keys [][]byte
	first := table.hash([]byte("key 0"))
	for i := 0; len(keys) < 12; i++ {
		key := fmt.Appendf(nil, "key %d", i)
		if h := table.hash(key); h.fingerprint() == first.fingerprint() && h.pairs(2) == first.pairs(2) {
			keys = append(keys, key)
		}
	}
	for round := range 2 {
		for i, key := range keys {
			if err := table.Put(t.Context(), key, fmt.Append(nil, round, i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, key := range keys {
		if i%2 == 0 {
			if found, err := table.Delete(t.Context(), key); !found || err != nil {
				t.Fatalf("%s: got %v, %v", key, found, err)
			}
			want(t, table, string(key), nil)
			continue
		}
		want(t, table, string(key), fmt.Append(nil, 1, i))
	}
	wantNoGarbage(t, table)
}

// TestWhereThereIsNoRoomAPutFails: keys of one hash fill the deepest subtable.
func TestWhereThereIsNoRoomAPutFails(t *testing.T) {
	table, _, _ := rig(t, pooltest.Inproc, 2, 1)
	table.lookup(0).depth = maxDepth
	var err error
	n := 0
	for ; err == nil && n < 200; n++ {
		err = table.Put(t.Context(), fmt.Append(nil, n), []byte("value"))
	}
	if !errors.Is(err, ErrFull) {
		t.Fatalf("after %d keys: got %v, want %v", n, err, ErrFull)
	}
	want(t, table, "0", []byte("value"))
	wantNoGarbage(t, table)
}

// TestMemoryThatIsUsedUp: a Put fails, and nothing else does.
func TestMemoryThatIsUsedUp(t *testing.T) {
	table, _, _ := rig(t, pooltest.Inproc, groups, 1)
	var err error
	n := 0
	for ; err == nil && n < 1000; n++ {
		err = table.Put(t.Context(), fmt.Append(nil, n), make([]byte, 100<<10))
	}
	if !errors.Is(err, pool.ErrNoMemory) {
		t.Fatalf("after %d keys of 100 KiB in 16 MiB: got %v, want %v", n, err, pool.ErrNoMemory)
	}
	want(t, table, "0", make([]byte, 100<<10))
	if found, err := table.Delete(t.Context(), []byte("0")); !found || err != nil {
		t.Fatalf("a delete: got %v, %v", found, err)
	}
	wantNoGarbage(t, table)
	// The node may need a moment before it lends again what came back.
	pooltest.Eventually(t, "a put after a delete", func() bool {
		return table.Put(t.Context(), []byte("0"), make([]byte, 100<<10)) == nil
	})
}

// TestWorkersThatStopInTheMiddle: their contexts end at any time, and what they leave is
// consistent, and nothing is left allocated that nobody can find.
func TestWorkersThatStopInTheMiddle(t *testing.T) {
	table, _, _ := rig(t, pooltest.TCP, 2, 1)
	var wg sync.WaitGroup
	for id := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(id), 3))
			for i := range 300 {
				ctx, cancel := context.WithCancel(t.Context())
				stopped := make(chan struct{})
				go func() {
					defer close(stopped)
					for range r.IntN(200) {
						cancelSoon()
					}
					cancel()
				}()
				key := fmt.Append(nil, i%100)
				var err error
				if i%5 == 4 {
					_, err = table.Delete(ctx, key)
				} else {
					err = table.Put(ctx, key, fmt.Appendf(nil, "%s %d %d", key, id, i))
				}
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				<-stopped
			}
		})
	}
	wg.Wait()
	for i := range 100 {
		key := fmt.Append(nil, i)
		value, found, err := table.Get(t.Context(), key, nil)
		if err != nil || found && !bytes.HasPrefix(value, key) {
			t.Errorf("%s: got %q, %v", key, value, err)
		}
	}
	if s := table.Stats(); s.InDoubt != 0 {
		t.Errorf("%d blocks are in doubt although no connection broke", s.InDoubt)
	}
	wantNoGarbage(t, table)
}

// cancelSoon lets others go on.
func cancelSoon() { runtime.Gosched() }

// TestALostNode: what lay there is lost, and told so, until it is put again.
func TestALostNode(t *testing.T) {
	table, _, cl := rig(t, pooltest.Inproc, groups, 2)
	const n = 200
	keys := make([][]byte, n)
	on, chunks := make([]string, n), make([]*pool.Chunk, n)
	for i := range keys {
		keys[i] = fmt.Append(nil, "key ", i)
		if err := table.Put(t.Context(), keys[i], make([]byte, 20_000)); err != nil {
			t.Fatal(err)
		}
		o := table.begin(keys[i])
		if err := o.find(t.Context(), true, malloc.Block{}); err != nil || o.firm.off < 0 {
			t.Fatalf("got %v, %v", o.firm, err)
		}
		chunks[i] = table.blockOf(o.firm.word).Chunk
		on[i] = chunks[i].Nodes()[0]
		o.end()
	}
	index := table.lookup(0).block.Chunk.Nodes()[0] // the other node is lost
	for i, node := range cl.Nodes {
		if fmt.Sprint("node", i) != index {
			node.Crash()
			node.Start()
		}
	}
	for i := range keys {
		if on[i] != index {
			<-chunks[i].Lost()
		}
	}
	lost := 0
	for i, key := range keys {
		_, found, err := table.Get(t.Context(), key, nil)
		switch {
		case on[i] == index && (!found || err != nil):
			t.Errorf("%s on %s: got %v, %v, although that is there", key, on[i], found, err)
		case on[i] != index && !errors.Is(err, pool.ErrLost):
			t.Errorf("%s on %s: got %v, %v, want %v", key, on[i], found, err, pool.ErrLost)
		case on[i] != index:
			lost++
		}
	}
	if lost == 0 {
		t.Fatal("no key was on the node that is lost")
	}
	for _, key := range keys {
		if err := table.Put(t.Context(), key, key); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range keys {
		want(t, table, string(key), key)
		o := table.begin(key)
		if err := o.find(t.Context(), true, malloc.Block{}); err != nil || len(o.lost) > 0 {
			t.Errorf("%s: %v; %d slots still name lost blocks", key, err, len(o.lost))
		}
		o.end()
		if found, err := table.Delete(t.Context(), key); !found || err != nil {
			t.Fatalf("deleting %s: got %v, %v", key, found, err)
		}
		want(t, table, string(key), nil) // and not lost
	}
	wantNoGarbage(t, table)
}

// unsure answers the next CMP_SWAP with an error, done or not.
type unsure struct {
	Fabric
	done, armed bool
}

func (u *unsure) Do(ctx context.Context, ops []pool.Op) error {
	if !u.armed || ops[0].Kind != pool.OpCompareAndSwap {
		return u.Fabric.Do(ctx, ops)
	}
	u.armed = false
	if u.done {
		if err := u.Fabric.Do(ctx, ops); err != nil {
			return err
		}
	}
	return pool.ErrOutcomeUnknown
}

func TestAnOutcomeThatIsUnknownIsLookedUp(t *testing.T) {
	table, _, _ := rig(t, pooltest.Inproc, groups, 1)
	for _, done := range []bool{false, true} {
		whole := table.fabric
		u := &unsure{Fabric: whole, done: done}
		table.fabric = u
		if err := table.Put(t.Context(), []byte("key"), []byte("first")); err != nil {
			t.Fatal(err)
		}
		for _, do := range []func() error{
			func() error { return table.Put(t.Context(), []byte("key"), []byte("second")) },
			func() error { return table.Put(t.Context(), fmt.Append(nil, "other ", done), []byte("first")) },
			func() error { _, err := table.Delete(t.Context(), []byte("key")); return err },
		} {
			u.armed = true
			if err := do(); done && err != nil || !done && !errors.Is(err, pool.ErrOutcomeUnknown) {
				t.Errorf("a CMP_SWAP that was done: %v; got %v", done, err)
			}
			wantNoGarbage(t, table)
		}
		table.fabric = whole
		if n := table.Stats().InDoubt; n != 0 {
			t.Errorf("%d blocks are in doubt", n)
		}
	}
}

// trips counts round trips.
type trips struct {
	Fabric
	n int
}

func (c *trips) Do(ctx context.Context, ops []pool.Op) error {
	c.n++
	return c.Fabric.Do(ctx, ops)
}

// cutter cancels a context when a CMP_SWAP is posted.
type cutter struct {
	Fabric
	cancel context.CancelFunc
}

func (c *cutter) Do(ctx context.Context, ops []pool.Op) error {
	if ops[0].Kind == pool.OpCompareAndSwap {
		c.cancel()
	}
	return c.Fabric.Do(ctx, ops)
}

func TestASwapThatHasBeenPostedIsWaitedFor(t *testing.T) {
	table, _, _ := rig(t, pooltest.Inproc, groups, 1)
	if err := table.Put(t.Context(), []byte("key"), []byte("old")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	whole := table.fabric
	table.fabric = &cutter{whole, cancel}
	if err := table.Put(ctx, []byte("key"), []byte("new")); err != nil {
		t.Errorf("a put whose last step had been posted: %v", err)
	}
	if err := table.Put(ctx, []byte("key"), []byte("newer")); !errors.Is(err, context.Canceled) {
		t.Errorf("a put after that: got %v, want %v", err, context.Canceled)
	}
	table.fabric = whole
	want(t, table, "key", []byte("new"))
	wantNoGarbage(t, table)
}

func TestOperationsTakeAsManyRoundTripsAsTheyMust(t *testing.T) {
	table, _, _ := rig(t, pooltest.Inproc, groups, 1)
	counting := &trips{Fabric: table.fabric}
	table.fabric = counting
	key, value, buf := []byte("key"), make([]byte, 100), make([]byte, 0, 100)
	put := func() error { return table.Put(t.Context(), key, value) }
	get := func() error {
		_, _, err := table.Get(t.Context(), key, buf)
		return err
	}
	for _, c := range []struct {
		what string
		do   func() error
		want int
	}{
		{"a get of nothing", get, 1},
		{"an insertion", put, 4},
		{"an update", put, 3},
		{"a get", get, 2},
		{"a delete", func() error { _, err := table.Delete(t.Context(), key); return err }, 3},
	} {
		counting.n = 0
		if err := c.do(); err != nil {
			t.Fatal(err)
		}
		if counting.n != c.want {
			t.Errorf("%s took %d round trips, want %d", c.what, counting.n, c.want)
		}
	}
}
