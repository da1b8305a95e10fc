package far_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"polder/far"
	"polder/far/remote"
	"polder/memnode"
	"polder/pool"
	"polder/pool/pooltest"
)

var errFault = errors.New("injected")

// flaky is a store that fails now and then, in every way in which what was
// written is still there.
type flaky struct {
	far.Store
	faults atomic.Int64 // of 1000 operations
	hits   atomic.Int64
}

func (f *flaky) fault() bool {
	if rand.Int64N(1000) >= f.faults.Load() {
		return false
	}
	f.hits.Add(1)
	return true
}

func (f *flaky) Alloc(ctx context.Context) (far.Segment, error) {
	if f.fault() {
		return nil, errFault
	}
	seg, err := f.Store.Alloc(ctx)
	if err != nil {
		return nil, err
	}
	return &flakySegment{seg, f}, nil
}

func (f *flaky) Read(ctx context.Context, ops []far.ReadOp) {
	inner := make([]far.ReadOp, len(ops))
	for i, op := range ops {
		inner[i] = far.ReadOp{Seg: op.Seg.(*flakySegment).Segment, Off: op.Off, Buf: op.Buf}
	}
	f.Store.Read(ctx, inner)
	for i := range ops {
		if ops[i].Err = inner[i].Err; ops[i].Err == nil && f.fault() {
			ops[i].Err = errFault
		}
		if f.fault() {
			ops[i].Buf[rand.IntN(len(ops[i].Buf))] ^= 1 << rand.IntN(8)
		}
	}
}

type flakySegment struct {
	far.Segment
	f *flaky
}

func (s *flakySegment) Write(ctx context.Context, p []byte, off int) error {
	if s.f.fault() {
		return errFault
	}
	return s.Segment.Write(ctx, p, off)
}

// player plays one random program on far structures and on Go's own.
type player struct {
	t   *testing.T
	ctx context.Context
	r   *rand.Rand
	s   *far.Scope

	array  *far.Array[[8]int64]
	vector *far.Vector[int64]
	list   *far.List[[4]int64]
	stack  *far.Stack[[3]int32]
	queue  *far.Queue[int64]
	table  *far.Map[string, []byte]
	pairs  *far.Map[[2]int32, [64]byte]

	wantArray  [][8]int64
	wantVector []int64
	wantList   [][4]int64
	wantStack  [][3]int32
	wantQueue  []int64
	wantTable  map[string][]byte
	wantPairs  map[[2]int32][64]byte
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func newPlayer(t *testing.T, ctx context.Context, h *far.Heap, seed uint64, prefetcher func() far.Prefetcher) *player {
	cfg := far.StructureConfig{NewPrefetcher: prefetcher}
	return &player{
		t: t, ctx: ctx, r: rand.New(rand.NewPCG(seed, 0)), s: h.NewScope(),
		array:     must(far.NewArray[[8]int64](ctx, h, playerArray, cfg)),
		vector:    must(far.NewVector[int64](h, cfg)),
		list:      must(far.NewList[[4]int64](h, cfg)),
		stack:     must(far.NewStack[[3]int32](h, cfg)),
		queue:     must(far.NewQueue[int64](h, cfg)),
		table:     must(far.NewMap[string, []byte](h, far.MapConfig{})),
		pairs:     must(far.NewMap[[2]int32, [64]byte](h, far.MapConfig{Exclusive: true})),
		wantArray: make([][8]int64, playerArray),
		wantTable: map[string][]byte{}, wantPairs: map[[2]int32][64]byte{},
	}
}

const (
	playerArray  = 45_000 // elements of 64 bytes
	playerVector = 60_000 // of 8
	playerList   = 6000   // of 32
	playerKeys   = 400    // with values of up to 1500 bytes
)

// try calls fn until the store does it no harm. What fails has changed nothing.
func (p *player) try(what string, fn func() error) {
	p.t.Helper()
	for {
		err := fn()
		var corrupt *far.CorruptError
		switch {
		case err == nil:
			return
		case errors.Is(err, errFault), errors.As(err, &corrupt), errors.Is(err, far.ErrScopeFull):
		default:
			p.t.Fatalf("%s: %v", what, err)
		}
	}
}

func expect[T comparable](p *player, what string, got, want T) {
	p.t.Helper()
	if got != want {
		p.t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// fill makes the structures as large as they are meant to be.
func (p *player) fill() {
	p.try("array", func() error {
		for i, b := range p.array.MutChunks(p.s, 0, playerArray) {
			for j := range b {
				b[j] = [8]int64{int64(i + j), 7: int64(-i)}
				p.wantArray[i+j] = b[j]
			}
		}
		return p.s.Err()
	})
	for p.vector.Len() < playerVector {
		part := make([]int64, 1000)
		for i := range part {
			part[i] = int64(p.vector.Len() + i)
		}
		p.try("vector", func() error { return p.vector.Append(p.ctx, part...) })
		p.wantVector = append(p.wantVector, part...)
	}
	for i := range playerList {
		v := [4]int64{int64(i), 3: int64(i)}
		p.try("list", func() error { return p.list.PushBack(p.ctx, v) })
		p.wantList = append(p.wantList, v)
	}
}

// step plays one operation.
func (p *player) step(round int) {
	r, v := p.r, int64(round)
	i := r.IntN(playerArray)
	switch r.IntN(16) {
	case 0:
		p.try("Set", func() error { return p.array.Set(p.ctx, i, [8]int64{v, 7: v}) })
		p.wantArray[i] = [8]int64{v, 7: v}
	case 1:
		p.try("Deref", func() error {
			p.s.Enter()
			defer p.s.Leave()
			e := p.array.At(i).Deref(p.s)
			if e == nil {
				return p.s.Err()
			}
			expect(p, "Deref", *e, p.wantArray[i])
			return nil
		})
	case 2: // a stride
		for k := i; k < min(i+2000, playerArray); k += 40 {
			p.try("Load", func() error {
				e, err := p.array.Get(p.ctx, k)
				if err == nil {
					expect(p, "Load", e, p.wantArray[k])
				}
				return err
			})
		}
	case 3:
		dst := make([][8]int64, min(300, playerArray-i))
		p.try("Read", func() error { return p.array.Read(p.ctx, dst, i) })
		if !slices.Equal(dst, p.wantArray[i:i+len(dst)]) {
			p.t.Fatal("Read: got something else than was written")
		}
	case 4:
		p.array.DontNeed(i, min(i+1000, playerArray))
		p.try("DerefMutStream", func() error {
			p.s.Enter()
			defer p.s.Leave()
			e := p.array.At(i).DerefMutStream(p.s)
			if e == nil {
				return p.s.Err()
			}
			e[1] = v
			return nil
		})
		p.wantArray[i][1] = v
	case 5:
		if r.IntN(30) == 0 {
			n := len(p.wantVector) - len(p.wantVector)/10
			p.vector.Truncate(n)
			p.wantVector = p.wantVector[:n]
			break
		}
		for range 20 {
			p.try("Append", func() error { return p.vector.Append(p.ctx, v) })
			p.wantVector = append(p.wantVector, v)
		}
	case 6:
		p.try("vector.Pop", func() error {
			x, ok, err := p.vector.Pop(p.ctx)
			if err == nil && ok {
				expect(p, "vector.Pop", x, p.wantVector[len(p.wantVector)-1])
			}
			return err
		})
		p.wantVector = p.wantVector[:len(p.wantVector)-1]
	case 7:
		k := r.IntN(len(p.wantVector))
		p.try("vector.Set", func() error { return p.vector.Set(p.ctx, k, v) })
		p.wantVector[k] = v
		k = r.IntN(len(p.wantVector))
		p.try("vector.Get", func() error {
			x, err := p.vector.Get(p.ctx, k)
			if err == nil {
				expect(p, "vector.Get", x, p.wantVector[k])
			}
			return err
		})
	case 8:
		p.editList(v)
	case 9, 10:
		for range r.IntN(60) {
			x := [3]int32{int32(round), 2: 5}
			p.try("stack.Push", func() error { return p.stack.Push(p.ctx, x) })
			p.wantStack = append(p.wantStack, x)
			p.try("queue.Push", func() error { return p.queue.Push(p.ctx, v) })
			p.wantQueue = append(p.wantQueue, v)
		}
	case 11:
		for range min(r.IntN(60), len(p.wantStack)) {
			p.try("stack.Pop", func() error {
				x, ok, err := p.stack.Pop(p.ctx)
				if err == nil {
					expect(p, "stack.Pop", x, p.wantStack[len(p.wantStack)-1])
					expect(p, "stack.Pop", ok, true)
				}
				return err
			})
			p.wantStack = p.wantStack[:len(p.wantStack)-1]
		}
	case 12:
		for range min(r.IntN(60), len(p.wantQueue)) {
			p.try("queue.Pop", func() error {
				x, ok, err := p.queue.Pop(p.ctx)
				if err == nil {
					expect(p, "queue.Pop", x, p.wantQueue[0])
					expect(p, "queue.Pop", ok, true)
				}
				return err
			})
			p.wantQueue = p.wantQueue[1:]
		}
	default:
		p.useMaps(round)
	}
}

// editList changes the list through a cursor near one of its ends, or at them.
func (p *player) editList(v int64) {
	x, r := [4]int64{v, v, v, v}, p.r
	c, at := p.list.Front(), 0
	if r.IntN(2) == 0 {
		c, at = p.list.Back(), len(p.wantList)-1
		for range r.IntN(400) {
			c.Prev()
			at--
		}
	} else {
		for range r.IntN(400) {
			c.Next()
			at++
		}
	}
	switch r.IntN(4) {
	case 0:
		p.try("InsertBefore", func() error { return c.InsertBefore(p.ctx, x) })
		p.wantList = slices.Insert(p.wantList, at, x)
	case 1:
		p.try("Remove", func() error { return c.Remove(p.ctx) })
		p.wantList = slices.Delete(p.wantList, at, at+1)
	case 2:
		p.try("PushFront", func() error { return p.list.PushFront(p.ctx, x) })
		p.wantList = slices.Insert(p.wantList, 0, x)
	case 3:
		p.try("PopFront", func() error {
			got, _, err := p.list.PopFront(p.ctx)
			if err == nil {
				expect(p, "PopFront", got, p.wantList[0])
			}
			return err
		})
		p.wantList = p.wantList[1:]
	}
}

func (p *player) useMaps(round int) {
	r := p.r
	k := fmt.Sprint("key", r.IntN(playerKeys))
	pair := [2]int32{int32(r.IntN(playerKeys)), 1}
	switch r.IntN(5) {
	case 0, 1:
		b := bytes.Repeat([]byte{byte(round)}, r.IntN(1500))
		p.try("Map.Set", func() error { return p.table.Set(p.ctx, k, b) })
		p.wantTable[k] = b
		p.try("Map.Set", func() error { return p.pairs.Set(p.ctx, pair, [64]byte{byte(round)}) })
		p.wantPairs[pair] = [64]byte{byte(round)}
	case 2:
		p.try("Map.Delete", func() error {
			_, err := p.table.Delete(p.ctx, k)
			return err
		})
		delete(p.wantTable, k)
	default:
		p.try("Map.Get", func() error {
			b, ok, err := p.table.Get(p.ctx, k)
			want, there := p.wantTable[k]
			if err == nil && (ok != there || !bytes.Equal(b, want)) {
				p.t.Fatalf("Map.Get(%q): got %d bytes, %v, want %d", k, len(b), ok, len(want))
			}
			return err
		})
		p.try("Map.Get", func() error {
			x, ok, err := p.pairs.Get(p.ctx, pair)
			want, there := p.wantPairs[pair]
			if err == nil && (ok != there || x != want) {
				p.t.Fatalf("Map.Get(%v): got %v, %v", pair, x, ok)
			}
			return err
		})
	}
}

// same checks that a walk sees want.
func same[T comparable](p *player, what string, want []T, walk func(yield func(T))) {
	p.t.Helper()
	p.try(what, func() error {
		var got []T
		walk(func(v T) { got = append(got, v) })
		err := p.s.Err()
		if err == nil && !slices.Equal(got, want) {
			p.t.Fatalf("%s: %d elements that differ from the %d that are right", what, len(got), len(want))
		}
		return err
	})
}

// finish walks through everything.
func (p *player) finish() {
	same(p, "array", p.wantArray, func(yield func([8]int64)) {
		for _, v := range p.array.Stream(p.s) {
			yield(*v)
		}
	})
	slices.Reverse(p.wantVector)
	same(p, "vector", p.wantVector, func(yield func(int64)) {
		for _, v := range p.vector.Backward(p.s) {
			yield(*v)
		}
	})
	same(p, "list", p.wantList, func(yield func([4]int64)) {
		for v := range p.list.All(p.s) {
			yield(*v)
		}
	})
	slices.Reverse(p.wantList)
	same(p, "list backwards", p.wantList, func(yield func([4]int64)) {
		for v := range p.list.Backward(p.s) {
			yield(*v)
		}
	})
	slices.Reverse(p.wantStack)
	same(p, "stack", p.wantStack, func(yield func([3]int32)) {
		for v := range p.stack.All(p.s) {
			yield(*v)
		}
	})
	same(p, "queue", p.wantQueue, func(yield func(int64)) {
		for v := range p.queue.All(p.s) {
			yield(*v)
		}
	})
	p.try("map", func() error {
		var err error
		n := 0
		for k, v := range p.table.All(p.ctx, &err) {
			if !bytes.Equal(v, p.wantTable[k]) {
				p.t.Fatalf("map: the value of %q differs", k)
			}
			n++
		}
		if err == nil {
			expect(p, "map", n, len(p.wantTable))
		}
		return err
	})
	expect(p, "Len", p.vector.Len(), len(p.wantVector))
	expect(p, "Len", p.list.Len(), len(p.wantList))
	p.array.Free()
	p.vector.Free()
	p.list.Free()
	p.stack.Free()
	p.queue.Free()
	p.table.Clear()
	p.pairs.Clear()
	p.s.Close()
}

// The same random program has the results of Go's own structures, whatever the
// data are kept in, however little of them is local, with faults and without.
func TestEveryStructureIsAsItsLocalCounterpart(t *testing.T) {
	remotes := func(s pooltest.Setup) func(t *testing.T) far.Store {
		return func(t *testing.T) far.Store {
			c := pooltest.NewCluster(t, s, memnode.Config{Lend: 256 << 16, ChunkSize: 1 << 16}, memnode.Config{Lend: 256 << 16, ChunkSize: 1 << 16})
			return remote.NewStore(c.Open(pool.Config{}).Pool)
		}
	}
	for _, store := range []struct {
		name string
		open func(t *testing.T) far.Store
	}{
		{"memory", func(*testing.T) far.Store { return far.NewMemStore(32<<10, 1<<10) }},
		{"inproc", remotes(pooltest.Inproc)},
		{"tcp", remotes(pooltest.TCP)},
		{"sim", remotes(pooltest.Sim)},
	} {
		// The data of two programs are some 7 MiB; a segment is 16 KiB.
		for _, local := range []struct{ percent, segments int }{{5, 24}, {20, 88}, {100, 600}} {
			for _, faults := range []int64{0, 30} {
				if faults == 0 && store.name != "memory" {
					continue
				}
				t.Run(fmt.Sprintf("%s/%d%% local/faults %d", store.name, local.percent, faults), func(t *testing.T) {
					play(t, store.open(t), local.segments, faults)
				})
			}
		}
	}
}

func play(t *testing.T, store far.Store, segments int, faults int64) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	f := &flaky{Store: store}
	h := far.OpenTiny(t, f, segments)
	players := []*player{
		newPlayer(t, ctx, h, 1, nil),
		newPlayer(t, ctx, h, 2, func() far.Prefetcher { return far.NoPrefetch{} }),
	}
	both := func(fn func(p *player)) {
		var wg sync.WaitGroup
		for _, p := range players {
			wg.Go(func() { fn(p) })
		}
		if wg.Wait(); t.Failed() {
			t.FailNow()
		}
	}
	both((*player).fill)
	f.faults.Store(faults)
	rounds := 60
	if os.Getenv("POLDER_SOAK") != "" {
		rounds = 2000
	}
	both(func(p *player) {
		for round := 0; round < rounds && !t.Failed(); round++ {
			p.step(round)
		}
	})
	f.faults.Store(0) // a walk through everything would hardly ever get through
	both((*player).finish)
	st := h.Stats()
	if !t.Failed() && (st.Pointers != 0 || segments < 100 && (st.Fetches == 0 || faults > 0 && f.hits.Load() == 0)) {
		t.Errorf("%d pointers are left, %d fetches, %d faults", st.Pointers, st.Fetches, f.hits.Load())
	}
}
