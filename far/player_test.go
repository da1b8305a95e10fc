package far_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"polder/far"
	"polder/far/ordered"
)

// player plays one random program on far structures and on Go's own.
type player struct {
	t       *testing.T
	ctx     context.Context
	h       *far.Heap
	r       *rand.Rand
	s       *far.Scope
	trouble *trouble
	losses  int // operations that failed since far memory was lost

	array  *far.Array[[8]int64]
	vector *far.Vector[int64]
	moved  *far.Array[[8]int64] // to which elements of array are copied
	places *far.Array[int32]    // in array, of each of moved
	most   int                  // that are moved at a time
	list   *far.List[[4]int64]
	stack  *far.Stack[[3]int32]
	queue  *far.Queue[int64]
	table  *far.Map[string, []byte]
	pairs  *far.Map[[2]int32, [64]byte]
	order  *ordered.Map[string, []byte]
	ptrs   []far.Ptr[[4]int64]
	shared []far.Shared[[20]int64] // the second half are clones of the first
	texts  []far.Bytes

	wantArray  [][8]int64
	wantVector []int64
	wantList   [][4]int64
	wantStack  [][3]int32
	wantQueue  []int64
	wantTable  map[string][]byte
	wantPairs  map[[2]int32][64]byte
	wantOrder  map[string][]byte
	wantPtrs   [][4]int64
	wantShared [][20]int64
	wantTexts  [][]byte
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func newPlayer(t *testing.T, ctx context.Context, h *far.Heap, tr *trouble, seed uint64) *player {
	cfg, ofArray := far.StructureConfig{}, far.StructureConfig{Group: 32}
	if seed%2 == 0 {
		cfg.NewPrefetcher = func() far.Prefetcher { return far.NoPrefetch{} }
		ofArray = far.StructureConfig{Group: 64, NewPrefetcher: cfg.NewPrefetcher}
	}
	most := 1000
	if tr.kind == faults {
		most = 30 // with more something would always be in the way
	}
	return &player{
		most: most, t: t, ctx: ctx, h: h, r: rand.New(rand.NewPCG(seed, 0)), s: h.NewScope(), trouble: tr,
		array:     must(far.NewArray[[8]int64](ctx, h, playerArray, ofArray)),
		vector:    must(far.NewVector[int64](h, cfg)),
		moved:     must(far.NewArray[[8]int64](ctx, h, most, cfg)),
		places:    must(far.NewArray[int32](ctx, h, most, cfg)),
		list:      must(far.NewList[[4]int64](h, cfg)),
		stack:     must(far.NewStack[[3]int32](h, cfg)),
		queue:     must(far.NewQueue[int64](h, cfg)),
		table:     must(far.NewMap(h, far.MapConfig[string, []byte]{})),
		pairs:     must(far.NewMap(h, far.MapConfig[[2]int32, [64]byte]{Exclusive: true})),
		order:     must(ordered.NewMap[string](h, ordered.Config[[]byte]{})),
		wantArray: make([][8]int64, playerArray),
		wantTable: map[string][]byte{}, wantPairs: map[[2]int32][64]byte{},
		wantOrder: map[string][]byte{},
	}
}

const (
	playerArray  = 45_000 // elements of 64 bytes
	playerVector = 60_000 // of 8
	playerList   = 6000   // of 32
	playerKeys   = 400    // with values of up to 1500 bytes
	playerPairs  = 2000   // with values of 64 bytes
	playerPtrs   = 400    // to 32 bytes
	playerShared = 100    // to 160 bytes, by two pointers each
	playerTexts  = 12     // of up to 20,000 bytes
)

// try calls fn until nothing is in its way, and reports whether it succeeded. What
// fails has changed nothing. It may fail for good only if far memory was lost.
func (p *player) try(what string, fn func() error) bool {
	p.t.Helper()
	for {
		err := fn()
		var lost *far.LostError
		switch {
		case err == nil:
			return true
		case errors.As(err, &lost) && p.trouble.lost.Load():
			p.losses++
			return false
		case errors.Is(err, far.ErrScopeFull), p.trouble.excuses(err):
			runtime.Gosched()
		default:
			p.t.Fatalf("%s: %v", what, err)
		}
	}
}

// orClear sometimes calls clear, which makes a structure one again of which nothing
// is lost.
func (p *player) orClear(ok bool, clear func()) bool {
	if !ok && p.r.IntN(3) == 0 {
		clear()
	}
	return ok
}

func (p *player) clearArray()  { p.array.Clear(); clear(p.wantArray) }
func (p *player) clearVector() { p.vector.Clear(); p.wantVector = p.wantVector[:0] }
func (p *player) clearList()   { p.list.Clear(); p.wantList = p.wantList[:0] }
func (p *player) clearStack()  { p.stack.Clear(); p.wantStack = p.wantStack[:0] }
func (p *player) clearQueue()  { p.queue.Clear(); p.wantQueue = p.wantQueue[:0] }
func (p *player) clearOrder()  { p.order.Clear(); clear(p.wantOrder) }

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
	p.fillVector(playerVector)
	p.fillList(playerList)
	for i := range int32(playerPairs) {
		k, v := [2]int32{i, 2}, [64]byte{byte(i), 63: 1}
		if p.try("Map.Set", func() error { return p.pairs.Set(p.ctx, k, v) }) {
			p.wantPairs[k] = v
		}
	}
	for i := range playerPtrs {
		v := [4]int64{int64(i), 3: 1}
		p.try("New", func() error {
			ptr, err := far.New(p.ctx, p.h, v)
			if err == nil {
				p.ptrs, p.wantPtrs = append(p.ptrs, ptr), append(p.wantPtrs, v)
			}
			return err
		})
	}
	for i := range playerShared {
		v := [20]int64{int64(i), 19: 2}
		p.try("Share", func() error {
			ptr, err := far.New(p.ctx, p.h, v)
			if err == nil {
				p.shared, p.wantShared = append(p.shared, far.Share(ptr)), append(p.wantShared, v)
			}
			return err
		})
	}
	for i := range playerShared {
		p.shared = append(p.shared, p.shared[i].Clone())
	}
	for i := range playerTexts {
		b := bytes.Repeat([]byte{byte(i)}, i*1500)
		p.try("NewBytes", func() error {
			s, err := far.NewBytes(p.ctx, p.h, b)
			if err == nil {
				p.texts, p.wantTexts = append(p.texts, s), append(p.wantTexts, b)
			}
			return err
		})
	}
}

func (p *player) fillVector(n int) {
	for len(p.wantVector) < n {
		part := make([]int64, 1000)
		for i := range part {
			part[i] = int64(len(p.wantVector) + i)
		}
		ok := true
		for len(part) > 0 && ok {
			ok = p.try("vector", func() error {
				err := p.vector.Append(p.ctx, part...)
				n := p.vector.Len() - len(p.wantVector)
				p.wantVector = append(p.wantVector, part[:n]...)
				part = part[n:]
				return err
			})
		}
		if !p.orClear(ok, p.clearVector) {
			return
		}
	}
}

func (p *player) fillList(n int) {
	for i := len(p.wantList); i < n; i++ {
		v := [4]int64{int64(i), 3: int64(i)}
		if !p.orClear(p.try("list", func() error { return p.list.PushBack(p.ctx, v) }), p.clearList) {
			return
		}
		p.wantList = append(p.wantList, v)
	}
}

// step plays one operation.
func (p *player) step(round int) {
	switch p.r.IntN(4) {
	case 0:
		p.useArray(int64(round))
	case 1:
		p.useVector(int64(round))
	case 2:
		p.useLists(round)
	case 3:
		p.useMaps(round)
		p.usePointers(int64(round))
	}
}

func (p *player) useArray(v int64) {
	r, i := p.r, p.r.IntN(playerArray)
	ok := true
	switch r.IntN(7) {
	case 5:
		ok = p.gather()
	case 6:
		ok = p.move()
	case 0:
		if ok = p.try("Set", func() error { return p.array.Set(p.ctx, i, [8]int64{v, 7: v}) }); ok {
			p.wantArray[i] = [8]int64{v, 7: v}
		}
	case 1:
		ok = p.try("Deref", func() error {
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
		for k := i; k < min(i+2000, playerArray) && ok; k += 40 {
			ok = p.try("Load", func() error {
				e, err := p.array.Get(p.ctx, k)
				if err == nil {
					expect(p, "Load", e, p.wantArray[k])
				}
				return err
			})
		}
	case 3:
		dst := make([][8]int64, min(300, playerArray-i))
		ok = p.try("Read", func() error { return p.array.Read(p.ctx, dst, i) })
		if ok && !slices.Equal(dst, p.wantArray[i:i+len(dst)]) {
			p.t.Fatal("Read: got something else than was written")
		}
	case 4:
		p.array.DontNeed(i, min(i+1000, playerArray))
		ok = p.try("DerefMutStream", func() error {
			p.s.Enter()
			defer p.s.Leave()
			e := p.array.At(i).DerefMutStream(p.s)
			if e == nil {
				return p.s.Err()
			}
			e[1] = v
			p.wantArray[i][1] = v
			return nil
		})
	}
	if !ok && r.IntN(20) == 0 {
		p.clearArray()
	}
}

// gather brings elements of the array, at random or close to each other.
func (p *player) gather() bool {
	of, n := playerArray, 1+p.r.IntN(p.most)
	if p.r.IntN(2) == 0 {
		of = 1 + p.r.IntN(300)
	}
	indices, dst := make([]int, n), make([][8]int64, n)
	for k := range indices {
		indices[k] = p.r.IntN(of)
	}
	ok := p.try("Gather", func() error { return far.Gather(p.ctx, dst, p.array, indices) })
	for k, i := range indices {
		if ok {
			expect(p, "Gather", dst[k], p.wantArray[i])
		}
	}
	return ok
}

// move shuffles elements of the array, or copies those that count, of some.
func (p *player) move() bool {
	var want [][8]int64
	var ok bool
	if p.r.IntN(2) == 0 {
		ids := make([]int32, p.most)
		for k := range ids {
			ids[k] = p.r.Int32N(playerArray)
			want = append(want, p.wantArray[ids[k]])
		}
		ok = p.try("Shuffle", func() error {
			if err := p.places.Write(p.ctx, ids, 0); err != nil {
				return err
			}
			return far.Shuffle(p.ctx, p.moved, p.array, p.places)
		})
	} else {
		i := p.r.IntN(playerArray)
		j := min(i+3*p.most, playerArray)
		first := far.FieldOf(func(v *[8]int64) *int64 { return &v[0] })
		conditions := []far.Condition[[8]int64]{far.Within[[8]int64](i, j)}
		least := int64(0)
		if p.r.IntN(3) > 0 {
			least = int64(i + p.r.IntN(3*p.most))
			conditions = append(conditions, first.Is(far.IfGreaterOrEqual, least))
		}
		for _, v := range p.wantArray[i:j] {
			if v[0] >= least && len(want) < p.most {
				want = append(want, v)
			}
		}
		ok = p.try("Copy", func() error {
			n, err := far.Copy(p.ctx, p.moved, p.array, conditions...)
			if err == nil {
				expect(p, "Copy", n, len(want))
			}
			return err
		})
	}
	got := make([][8]int64, len(want))
	if ok = ok && p.try("Read", func() error { return p.moved.Read(p.ctx, got, 0) }); ok && !slices.Equal(got, want) {
		p.t.Fatal("what was copied or shuffled is not what was wanted")
	}
	return ok
}

func (p *player) useVector(v int64) {
	r := p.r
	p.fillVector(2000)
	n := len(p.wantVector)
	if n == 0 {
		return
	}
	ok := true
	switch r.IntN(3) {
	case 0:
		if r.IntN(30) == 0 {
			p.vector.Truncate(n - n/10)
			p.wantVector = p.wantVector[:n-n/10]
			break
		}
		for k := 0; k < 20 && ok; k++ {
			if ok = p.try("Append", func() error { return p.vector.Append(p.ctx, v) }); ok {
				p.wantVector = append(p.wantVector, v)
			}
		}
	case 1:
		var x int64
		ok = p.try("vector.Pop", func() (err error) {
			x, _, err = p.vector.Pop(p.ctx)
			return err
		})
		if ok {
			expect(p, "vector.Pop", x, p.wantVector[n-1])
			p.wantVector = p.wantVector[:n-1]
		}
	case 2:
		k := r.IntN(n)
		if ok = p.try("vector.Set", func() error { return p.vector.Set(p.ctx, k, v) }); ok {
			p.wantVector[k] = v
		}
		k = r.IntN(n)
		ok = p.try("vector.Get", func() error {
			x, err := p.vector.Get(p.ctx, k)
			if err == nil {
				expect(p, "vector.Get", x, p.wantVector[k])
			}
			return err
		}) && ok
	}
	p.orClear(ok, p.clearVector)
}

func (p *player) useLists(round int) {
	r, v := p.r, int64(round)
	switch r.IntN(4) {
	case 0:
		p.editList(v)
	case 1:
		for range r.IntN(60) {
			x := [3]int32{int32(round), 2: 5}
			if p.orClear(p.try("stack.Push", func() error { return p.stack.Push(p.ctx, x) }), p.clearStack) {
				p.wantStack = append(p.wantStack, x)
			}
			if p.orClear(p.try("queue.Push", func() error { return p.queue.Push(p.ctx, v) }), p.clearQueue) {
				p.wantQueue = append(p.wantQueue, v)
			}
		}
	case 2:
		for range min(r.IntN(60), len(p.wantStack)) {
			var x [3]int32
			ok := p.try("stack.Pop", func() (err error) {
				x, _, err = p.stack.Pop(p.ctx)
				return err
			})
			if !p.orClear(ok, p.clearStack) {
				return
			}
			expect(p, "stack.Pop", x, p.wantStack[len(p.wantStack)-1])
			p.wantStack = p.wantStack[:len(p.wantStack)-1]
		}
	case 3:
		for range min(r.IntN(60), len(p.wantQueue)) {
			var x int64
			ok := p.try("queue.Pop", func() (err error) {
				x, _, err = p.queue.Pop(p.ctx)
				return err
			})
			if !p.orClear(ok, p.clearQueue) {
				return
			}
			expect(p, "queue.Pop", x, p.wantQueue[0])
			p.wantQueue = p.wantQueue[1:]
		}
	}
}

// editList changes the list through a cursor near one of its ends, or at them.
func (p *player) editList(v int64) {
	p.fillList(1000)
	if len(p.wantList) < 500 {
		return
	}
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
	ok := true
	switch r.IntN(5) {
	case 0:
		if ok = p.try("InsertBefore", func() error { return c.InsertBefore(p.ctx, x) }); ok {
			p.wantList = slices.Insert(p.wantList, at, x)
		}
	case 1:
		if ok = p.try("Remove", func() error { return c.Remove(p.ctx) }); ok {
			p.wantList = slices.Delete(p.wantList, at, at+1)
		}
	case 2:
		if ok = p.try("PushFront", func() error { return p.list.PushFront(p.ctx, x) }); ok {
			p.wantList = slices.Insert(p.wantList, 0, x)
		}
	case 3:
		var got [4]int64
		ok = p.try("PopFront", func() (err error) {
			got, _, err = p.list.PopFront(p.ctx)
			return err
		})
		if ok {
			expect(p, "PopFront", got, p.wantList[0])
			p.wantList = p.wantList[1:]
		}
	case 4:
		ok = p.try("Cursor.Store", func() error {
			got, err := c.Load(p.ctx)
			if err != nil {
				return err
			}
			expect(p, "Cursor.Load", got, p.wantList[at])
			if err = c.Store(p.ctx, x); err == nil {
				p.wantList[at] = x
			}
			return err
		})
	}
	p.orClear(ok, p.clearList)
}

func (p *player) useMaps(round int) {
	k := fmt.Sprint("key", p.r.IntN(playerKeys))
	b := bytes.Repeat([]byte{byte(round)}, p.r.IntN(1500))
	useMap(p, p.table, p.wantTable, k, b, func(a, b []byte) bool { return bytes.Equal(a, b) })
	p.useOrder(k, b[:min(len(b), 300)])
	pair := [2]int32{int32(p.r.IntN(playerKeys)), 1}
	useMap(p, p.pairs, p.wantPairs, pair, [64]byte{byte(round)}, func(a, b [64]byte) bool { return a == b })
	if p.trouble.kind != faults && round%4 == 0 { // something would always be in its way
		p.sumPairs()
	}
}

// sumPairs adds up the first bytes of the pairs' values, where they are.
func (p *player) sumPairs() {
	first := far.FieldOf(func(v *[64]byte) *uint8 { return &v[0] })
	var got far.Summary[uint8]
	if p.try("Aggregate", func() (err error) {
		got, err = far.Aggregate(p.ctx, p.pairs, first)
		return err
	}) {
		sum := uint64(0)
		for _, v := range p.wantPairs {
			sum += uint64(v[0])
		}
		expect(p, "Aggregate counts", got.Count, len(p.wantPairs))
		expect(p, "Aggregate adds up", got.SumUint, sum)
	}
}

// useOrder uses key k of the ordered map, of which b may be the next value.
func (p *player) useOrder(k string, b []byte) {
	ok := true
	switch p.r.IntN(5) {
	case 0, 1:
		for i := 0; i < 10 && ok; i++ {
			if ok = p.try("ordered.Set", func() error { return p.order.Set(p.ctx, k, b) }); ok {
				p.wantOrder[k] = b
			}
			k = fmt.Sprint("key", p.r.IntN(playerKeys))
		}
	case 2:
		var found bool
		if ok = p.try("ordered.Delete", func() (err error) {
			found, err = p.order.Delete(p.ctx, k)
			return err
		}); ok {
			_, there := p.wantOrder[k]
			expect(p, "ordered.Delete", found, there)
			delete(p.wantOrder, k)
		}
	case 3:
		ok = p.try("ordered.Rank", func() error {
			n, err := p.order.Rank(p.ctx, k)
			if err == nil {
				for w := range p.wantOrder {
					if w < k {
						n--
					}
				}
				expect(p, "ordered.Rank, less the keys that are less", n, 0)
			}
			return err
		})
	default:
		ok = p.try("ordered.Get", func() error {
			got, found, err := p.order.Get(p.ctx, k)
			if want, there := p.wantOrder[k]; err == nil && (found != there || !bytes.Equal(got, want)) {
				p.t.Fatalf("ordered.Get(%s): got %d bytes, %v, want %d, %v", k, len(got), found, len(want), there)
			}
			return err
		})
	}
	p.orClear(ok, p.clearOrder)
}

// useMap uses key k of m, of which v may be the next value.
func useMap[K comparable, V any](p *player, m *far.Map[K, V], want map[K]V, k K, v V, same func(a, b V) bool) {
	check := func(what string, got V, ok bool) {
		p.t.Helper()
		if x, there := want[k]; ok != there || !same(got, x) {
			p.t.Fatalf("%s(%v): got %v, %v, want %v, %v", what, k, got, ok, x, there)
		}
	}
	switch p.r.IntN(7) {
	case 0, 1: // what is lost may be replaced, if the index says enough of it
		if p.try("Map.Set", func() error { return m.Set(p.ctx, k, v) }) {
			want[k] = v
		}
	case 2:
		var ok bool
		if p.try("Map.Delete", func() (err error) {
			ok, err = m.Delete(p.ctx, k)
			return err
		}) {
			_, there := want[k]
			if !ok || !p.trouble.lost.Load() { // else it may be one of which the index is lost
				expect(p, "Map.Delete", ok, there)
			}
			delete(want, k)
		}
	case 3:
		keep := p.r.IntN(4) > 0
		if p.try("Map.Update", func() error {
			return m.Update(p.ctx, k, func(old V, ok bool) (V, bool) {
				check("Map.Update", old, ok)
				return v, keep
			})
		}) {
			if want[k] = v; !keep {
				delete(want, k)
			}
		}
	case 4:
		p.try("Map.Has", func() error {
			ok, err := m.Has(p.ctx, k)
			if _, there := want[k]; err == nil {
				expect(p, "Map.Has", ok, there)
			}
			return err
		})
	default:
		p.try("Map.Get", func() error {
			got, ok, err := m.Get(p.ctx, k)
			if err == nil {
				check("Map.Get", got, ok)
			}
			return err
		})
	}
}

func (p *player) usePointers(v int64) {
	i := p.r.IntN(playerPtrs)
	switch p.r.IntN(5) {
	case 0:
		if p.try("Ptr.Store", func() error { return p.ptrs[i].Store(p.ctx, [4]int64{v}) }) {
			p.wantPtrs[i] = [4]int64{v}
		}
	case 1: // another one in its place, which works if it is lost, too
		p.try("New", func() error {
			ptr, err := far.New(p.ctx, p.h, [4]int64{3: v})
			if err == nil {
				p.ptrs[i].Free()
				p.ptrs[i], p.wantPtrs[i] = ptr, [4]int64{3: v}
			}
			return err
		})
	case 2:
		i %= playerShared
		if p.try("Shared.Store", func() error { return p.shared[i].Store(p.ctx, [20]int64{v}) }) {
			p.wantShared[i] = [20]int64{v}
		}
	case 3:
		i %= playerTexts
		b := bytes.Repeat([]byte{byte(v)}, p.r.IntN(20_000))
		if p.try("Bytes.Replace", func() error { return p.texts[i].Replace(p.ctx, b) }) {
			p.wantTexts[i] = b
		}
	}
	p.loadPointers(p.r.IntN(playerPtrs))
}

// loadPointers looks at the i-th pointer of each kind.
func (p *player) loadPointers(i int) {
	p.try("Ptr.Load", func() error {
		v, err := p.ptrs[i].Load(p.ctx)
		if err == nil {
			expect(p, "Ptr.Load", v, p.wantPtrs[i])
		}
		return err
	})
	k := i % len(p.shared)
	p.try("Shared.Load", func() error {
		v, err := p.shared[k].Load(p.ctx)
		if err == nil {
			expect(p, "Shared.Load", v, p.wantShared[k%playerShared])
		}
		return err
	})
	k = i % playerTexts
	p.try("Bytes.Append", func() error {
		b, err := p.texts[k].Append(p.ctx, nil)
		if err == nil && !bytes.Equal(b, p.wantTexts[k]) {
			p.t.Fatalf("Bytes.Append: got %d bytes that are not the %d that were stored", len(b), len(p.wantTexts[k]))
		}
		return err
	})
}

// same checks that a walk sees want, or, if it meets what is lost, what comes
// before that.
func same[T comparable](p *player, what string, want []T, walk func(yield func(T))) {
	p.t.Helper()
	var got []T
	whole := p.try(what, func() error {
		got = got[:0]
		walk(func(v T) { got = append(got, v) })
		return p.s.Err()
	})
	if len(got) > len(want) || !slices.Equal(got, want[:len(got)]) || whole && len(got) < len(want) {
		p.t.Fatalf("%s: %d elements that differ from the %d that are right", what, len(got), len(want))
	}
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
	finishMap(p, p.table, p.wantTable, func(a, b []byte) bool { return bytes.Equal(a, b) })
	p.sumPairs()
	finishMap(p, p.pairs, p.wantPairs, func(a, b [64]byte) bool { return a == b })
	same(p, "ordered map", slices.Sorted(maps.Keys(p.wantOrder)), func(yield func(string)) {
		for k, v := range p.order.All(p.s) {
			if !bytes.Equal(v, p.wantOrder[k]) {
				p.t.Fatalf("ordered map: the value of %s differs", k)
			}
			yield(k)
		}
	})
	for i := range playerPtrs {
		p.loadPointers(i)
	}
	expect(p, "Len", p.vector.Len(), len(p.wantVector))
	expect(p, "Len", p.list.Len(), len(p.wantList))
	p.array.Free()
	p.moved.Free()
	p.places.Free()
	p.vector.Free()
	p.list.Free()
	p.stack.Free()
	p.queue.Free()
	p.order.Free()
	p.table.Clear()
	p.pairs.Clear()
	for _, ptr := range p.ptrs {
		ptr.Free()
	}
	for _, sh := range p.shared {
		sh.Free()
	}
	for _, s := range p.texts {
		p.try("Bytes.Free", func() error { return s.Free(p.ctx) })
	}
	p.s.Close()
}

func finishMap[K comparable, V any](p *player, m *far.Map[K, V], want map[K]V, same func(a, b V) bool) {
	n := 0
	whole := p.try("map", func() error {
		n = 0
		for k, v := range m.All(p.s) {
			if x, there := want[k]; !there || !same(v, x) {
				p.t.Fatalf("map: the value of %v differs", k)
			}
			n++
		}
		return p.s.Err()
	})
	if whole && !p.trouble.lost.Load() {
		expect(p, "map", n, len(want))
		expect(p, "Len", m.Len(), len(want))
	}
}
