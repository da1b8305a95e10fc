package malloc

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"polder/internal/sizeclass"
	"polder/memnode"
	"polder/pool"
	"polder/pool/finemem"
	"polder/pool/pooltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheLastClassIsOfTheLargestBlocksInPages(t *testing.T) {
	if got := sizeclass.Of(MaxPaged); got != classes-1 {
		t.Errorf("blocks of %d bytes have class %d, want %d", MaxPaged, got, classes-1)
	}
}

// rig is a heap over nodes that lend 4 KiB at a time by FineMem.
func rig(t testing.TB, lend int64, cfg Config, nodes int) (*Heap, *pooltest.Client, *pooltest.Cluster) {
	t.Helper()
	s := pooltest.Inproc
	s.Manager = finemem.Manager{}
	var cfgs []memnode.Config
	for range nodes {
		cfgs = append(cfgs, memnode.Config{Lend: lend, ChunkSize: 4096})
	}
	cl := pooltest.NewCluster(t, s, cfgs...)
	k := cl.Open(pool.Config{})
	h, err := New(k.Pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return h, k, cl
}

// wantBack closes h, after which its node must have everything back.
func wantBack(t testing.TB, h *Heap, cl *pooltest.Cluster) {
	t.Helper()
	if err := h.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := h.Stats(); got.Live != 0 || got.Taken != 0 {
		t.Fatalf("a closed heap without blocks has %+v", got)
	}
	for _, n := range cl.Nodes {
		pooltest.Eventually(t, "the node has everything back", func() bool { return n.Stats().Lent == 0 })
	}
}

func TestAHeapMatchesAModel(t *testing.T) {
	h, _, cl := rig(t, 16<<20, Config{}, 1)
	ctx := t.Context()
	type held struct {
		b    Block
		data []byte
	}
	rapid.Check(t, func(t *rapid.T) {
		var blocks []held
		free := func(t *rapid.T, i int) {
			if err := h.Free(ctx, blocks[i].b); err != nil {
				t.Fatal(err)
			}
			if err := h.Free(ctx, blocks[i].b); !errors.Is(err, ErrNotAllocated) {
				t.Fatalf("freeing twice: got %v, want %v", err, ErrNotAllocated)
			}
			blocks = append(blocks[:i], blocks[i+1:]...)
		}
		pick := func(t *rapid.T) int {
			if len(blocks) == 0 {
				t.Skip("no block")
			}
			return rapid.IntRange(0, len(blocks)-1).Draw(t, "block")
		}
		defer func() {
			for len(blocks) > 0 {
				free(t, 0)
			}
		}()
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				size := rapid.OneOf(rapid.IntRange(1, 300), rapid.IntRange(1, 2*MaxPaged)).Draw(t, "size")
				b, err := h.Alloc(ctx, size)
				if err != nil {
					t.Fatal(err)
				}
				if b.Size != size || b.Off < 0 || b.Off+int64(size) > b.Chunk.Size() {
					t.Fatalf("%d bytes were asked for, got %d at %d of a chunk of %d", size, b.Size, b.Off, b.Chunk.Size())
				}
				data := bytes.Repeat([]byte{byte(len(blocks) + 1)}, size)
				if _, err := b.Chunk.WriteContext(ctx, data, b.Off); err != nil {
					t.Fatal(err)
				}
				blocks = append(blocks, held{b, data})
			},
			"free": func(t *rapid.T) { free(t, pick(t)) },
			"read": func(t *rapid.T) {
				h := blocks[pick(t)]
				got := make([]byte, len(h.data))
				if _, err := h.b.Chunk.ReadContext(ctx, got, h.b.Off); err != nil || !bytes.Equal(got, h.data) {
					t.Fatalf("a block of %d bytes does not hold what was written (%v)", len(got), err)
				}
			},
			"": func(t *rapid.T) {
				var live int64
				for _, h := range blocks {
					live += int64(h.b.Size)
				}
				if got := h.Stats(); got.Live != live || got.Taken < live {
					t.Fatalf("%+v, want %d bytes live, and no fewer taken", got, live)
				}
			},
		})
	})
	wantBack(t, h, cl)
}

// Blocks go from hand to hand: each is allocated by one goroutine and freed by another.
func TestBlocksThatOthersFree(t *testing.T) {
	h, k, cl := rig(t, 16<<20, Config{}, 1)
	const workers, each = 4, 300
	type filled struct {
		b    Block
		with byte
	}
	pipes := make([]chan filled, workers)
	for i := range pipes {
		pipes[i] = make(chan filled, 64)
	}
	var wg sync.WaitGroup
	for id := range workers {
		wg.Go(func() {
			defer close(pipes[id])
			r := rand.New(rand.NewPCG(uint64(id), 7))
			for i := range each {
				b, err := h.Alloc(context.Background(), 1+r.IntN(3000))
				if err != nil {
					t.Error(err)
					return
				}
				with := byte(id*each + i)
				if _, err := b.Chunk.WriteAt(bytes.Repeat([]byte{with}, b.Size), b.Off); err != nil {
					t.Error(err)
				}
				pipes[id] <- filled{b, with}
			}
		})
		wg.Go(func() {
			var kept []filled
			flush := func() {
				for _, f := range kept {
					got := make([]byte, f.b.Size)
					if _, err := f.b.Chunk.ReadAt(got, f.b.Off); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{f.with}, len(got))) {
						t.Errorf("a block of %d bytes was written by another (%v)", len(got), err)
					}
					if err := h.Free(context.Background(), f.b); err != nil {
						t.Error(err)
					}
				}
				kept = kept[:0]
			}
			for f := range pipes[id] {
				if kept = append(kept, f); len(kept) == 50 {
					flush()
				}
			}
			flush()
		})
	}
	wg.Wait()
	if got := h.Stats().Live; got != 0 {
		t.Errorf("%d bytes live after all has been freed", got)
	}
	for i := range h.shards {
		if h.shards[i].list.Load() != nil {
			t.Errorf("shard %d has blocks in its list that nobody will look at", i)
		}
	}
	wantBack(t, h, cl)
	if n := k.Stats().Nodes[0].Reconnects; n != 0 {
		t.Errorf("the connection was lost %d times", n)
	}
}

// What is freed while somebody uses the shard is found by whoever that is.
func TestAListIsNotForgotten(t *testing.T) {
	h, _, cl := rig(t, 16<<20, Config{}, 1)
	b, err := h.Alloc(t.Context(), 64)
	if err != nil {
		t.Fatal(err)
	}
	s := b.page.shard
	s.mu.Lock()
	if err := h.Free(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if s.list.Load() == nil {
		t.Fatal("a block that was freed while its shard was in use is not in the list")
	}
	if err := s.unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.list.Load() != nil || b.page.nFree != b.page.slots {
		t.Fatalf("the list was left behind: %d of %d blocks are free", b.page.nFree, b.page.slots)
	}
	wantBack(t, h, cl)
}

// fill allocates blocks of a size until there are so many, or no memory is left.
func fill(t testing.TB, h *Heap, size, most int) (blocks []Block) {
	t.Helper()
	for len(blocks) < most {
		b, err := h.Alloc(t.Context(), size)
		if errors.Is(err, pool.ErrNoMemory) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		blocks = append(blocks, b)
	}
	return blocks
}

func freeAll(t testing.TB, h *Heap, blocks []Block) {
	t.Helper()
	for _, b := range blocks {
		if err := h.Free(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEmptySlabsGoBack(t *testing.T) {
	for _, cfg := range []Config{{}, {Static: 128 << 10}} {
		h, _, cl := rig(t, 32<<20, cfg, 1)
		blocks := fill(t, h, 1000, 1000)
		full := h.Stats().Taken
		if full < 1_000_000 || full > 1_200_000+cfg.Static {
			t.Errorf("%d bytes are taken for 1,000,000", full)
		}
		freeAll(t, h, blocks[:800])
		switch got := h.Stats().Taken; {
		case cfg.Static == 0 && got > full/2:
			t.Errorf("%d bytes are taken for 200,000, want no more than half of %d", got, full)
		case cfg.Static > 0 && got != full:
			t.Errorf("%d bytes are taken, want all %d that were: such memory does not go back", got, full)
		}
		freeAll(t, h, blocks[800:])
		if got := h.Stats().Taken; cfg.Static == 0 && got > slabMax {
			t.Errorf("%d bytes are taken for nothing, want at most %d", got, slabMax)
		}
		wantBack(t, h, cl)
	}
}

func TestTheRoomOfEmptyPagesIsForBlocksOfAnyClass(t *testing.T) {
	h, _, cl := rig(t, 32<<20, Config{}, 1)
	blocks := fill(t, h, 1000, 1000)
	freeAll(t, h, blocks[400:500])
	before := h.Stats().Taken
	more := fill(t, h, 2000, 40)
	if got := h.Stats().Taken; got != before {
		t.Errorf("80,000 bytes more are live after 100,000 were freed: %d are taken instead of %d", got, before)
	}
	freeAll(t, h, slices.Concat(blocks[:400], blocks[500:], more))
	wantBack(t, h, cl)
}

// A node that has little left gives a page alone, and what a heap keeps without need it
// gives back before it has none for others.
// TestPagesAreCutFromTheFullestSlab: so that those with little in them empty and go back.
func TestPagesAreCutFromTheFullestSlab(t *testing.T) {
	slab := func(free uint64) *slab { return &slab{chunk: &pool.Chunk{}, units: 8, free: free} }
	emptier, full, other := slab(0xfc), slab(0x50), slab(0x30)
	h := &Heap{unit: 4096}
	h.slabs = append(h.slabs, emptier, full, other)
	for i, want := range []struct {
		units int
		slab  any
		unit  int64
	}{{2, other, 4}, {1, full, 4}, {2, emptier, 2}, {1, full, 6}, {1, emptier, 4}} {
		if s, base := h.cut(want.units, slabLook); s != want.slab || base != want.unit*h.unit {
			t.Fatalf("cut %d: got slab %+v from %d on, want %+v from unit %d on", i, s, base, want.slab, want.unit)
		}
	}
}

func TestAllOfANodesMemoryIsToBeHad(t *testing.T) {
	const lend, other = 1 << 20, 36 << 10 // what is left for slabs is no multiple of theirs
	h, _, cl := rig(t, lend, Config{}, 1)
	blocks := slices.Concat(fill(t, h, 512, 600), fill(t, h, other, 1), fill(t, h, 512, lend))
	if got, want := len(blocks), 1+(lend-other)/512; got != want {
		t.Errorf("%d blocks were to be had, want all %d", got, want)
	}
	freeAll(t, h, blocks)
	if got := h.Stats().Taken; got == 0 {
		t.Error("nothing is kept that is to be given back")
	}
	b, err := h.Alloc(t.Context(), lend)
	if err != nil {
		t.Fatal(err)
	}
	freeAll(t, h, []Block{b})
	wantBack(t, h, cl)
}

func TestAPageThatIsLostIsNotUsed(t *testing.T) {
	h, _, cl := rig(t, 1<<20, Config{}, 2)
	old, err := h.Alloc(t.Context(), 100)
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range cl.Nodes {
		if old.Chunk.Nodes()[0] == []string{"node0", "node1"}[i] {
			n.Crash()
			n.Start()
		}
	}
	<-old.Chunk.Lost()
	for range 50 {
		b, err := h.Alloc(t.Context(), 100)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Chunk.WriteContext(t.Context(), make([]byte, 100), b.Off); err != nil {
			t.Fatalf("a new block: %v", err)
		}
		if err := h.Free(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Free(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	wantBack(t, h, cl)
}

func TestAHeapRefusesWhatIsWrong(t *testing.T) {
	h, k, cl := rig(t, 1<<20, Config{}, 1)
	for _, size := range []int{0, -1} {
		if _, err := h.Alloc(t.Context(), size); err == nil {
			t.Errorf("%d bytes were allocated", size)
		}
	}
	if _, err := h.Alloc(t.Context(), 2<<20); !errors.Is(err, pool.ErrNoMemory) {
		t.Errorf("more than there is: got %v, want %v", err, pool.ErrNoMemory)
	}
	if err := h.Free(t.Context(), Block{}); !errors.Is(err, ErrNotAllocated) {
		t.Errorf("freeing nothing: got %v, want %v", err, ErrNotAllocated)
	}
	if _, err := New(k.Pool, Config{Static: 4096}); err == nil {
		t.Error("a heap was made that borrows less than a page")
	}
	wantBack(t, h, cl)
	if _, err := h.Alloc(t.Context(), 1); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: got %v, want %v", err, ErrClosed)
	}
}

func TestReferencesNameBlocks(t *testing.T) {
	h, _, cl := rig(t, 16<<20, Config{}, 2)
	blocks := map[Ref]Block{}
	for i := range 3000 {
		b, err := h.Alloc(t.Context(), 64+i%5*4000+i/2900*40_000)
		if err != nil {
			t.Fatal(err)
		}
		r, err := h.Ref(b)
		if _, had := blocks[r]; err != nil || r == 0 || r >= 1<<RefBits || had {
			t.Fatalf("block %d: got the reference %x, %v, which another has: %v", i, r, err, had)
		}
		blocks[r] = b
		if i%3 == 0 { // numbers of pages come again
			for r, b := range blocks {
				if err := h.Free(t.Context(), h.At(r, b.Size)); err != nil {
					t.Fatal(err)
				}
				delete(blocks, r)
				break
			}
		}
		for r, b := range blocks {
			if got := h.At(r, b.Size); got != b {
				t.Fatalf("%x: got %+v, want %+v", r, got, b)
			}
			break
		}
	}
	for r, b := range blocks {
		if got := h.At(r, b.Size); got != b {
			t.Fatalf("%x: got %+v, want %+v", r, got, b)
		}
		far := b
		far.Off += 1 << 20 * int64(b.page.size)
		if _, err := h.Ref(far); err == nil {
			t.Fatal("a block beyond the first 1 Mi of its page has a reference")
		}
		if err := h.Free(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	wantBack(t, h, cl)
}

// TestSmallBlocksLieInOneUnit: a node may open every 4 KiB by a key of its own, and what lies
// in two of them takes two requests to read or to write.
func TestSmallBlocksLieInOneUnit(t *testing.T) {
	h, _, _ := rig(t, 8<<20, Config{}, 1)
	for _, size := range []int{8, 100, 300, 448, 512, 600, 1000} {
		for range 50 {
			b, err := h.Alloc(t.Context(), size)
			if err != nil {
				t.Fatal(err)
			}
			if first, last := b.Off/4096, (b.Off+int64(size)-1)/4096; first != last {
				t.Fatalf("a block of %d bytes lies at %d, in the units %d and %d", size, b.Off, first, last)
			}
		}
	}
}
