package far

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"polder/far/heap"
	"polder/far/record"
	"polder/internal/failpoint"
	"polder/internal/invariants"
	"polder/pool/pooltest"
)

type keptNode struct {
	Key, Value uint64
	Next       Ref[keptNode]
	_          [40]byte
}

// keptThings is a program with objects that outlive it.
type keptThings struct {
	h     *Heap
	nodes *Class[keptNode]
	other *Class[keptNode] // of which nothing is kept
	array *Array[uint64]
	vec   *Vector[keptNode]
}

const keptArray = 30_000

func openThings(t testing.TB, h *Heap) *keptThings {
	t.Helper()
	p := &keptThings{h: h}
	var err error
	if p.other, err = NewClass[keptNode](h, ClassConfig{Name: "other"}); err != nil {
		t.Fatal(err)
	}
	if p.nodes, err = NewClass[keptNode](h, ClassConfig{Name: "nodes", Keep: true}); err != nil {
		t.Fatal(err)
	}
	if p.array, err = NewArray[uint64](t.Context(), h, keptArray, StructureConfig{Name: "numbers", Keep: true}); err != nil {
		t.Fatal(err)
	}
	if p.vec, err = NewVector[keptNode](h, StructureConfig{Name: "log", Keep: true}); err != nil {
		t.Fatal(err)
	}
	return p
}

// thingsModel is what should be in keptThings.
type thingsModel struct {
	list  [][2]uint64
	array map[int]uint64
	vec   []uint64
}

func (m *thingsModel) clone() *thingsModel {
	c := &thingsModel{list: append([][2]uint64(nil), m.list...), array: map[int]uint64{}, vec: append([]uint64(nil), m.vec...)}
	for i, v := range m.array {
		c.array[i] = v
	}
	return c
}

func (p *keptThings) check(t testing.TB, m *thingsModel) {
	t.Helper()
	ctx := t.Context()
	at, _ := p.nodes.Named("head")
	for i := len(m.list) - 1; i >= 0; i-- {
		if at.IsNil() {
			t.Fatalf("the list ends %d nodes early", i+1)
		}
		n, err := at.Load(ctx)
		if err != nil || n.Key != m.list[i][0] || n.Value != m.list[i][1] {
			t.Fatalf("node %d is %d=%d, %v, want %v", i, n.Key, n.Value, err, m.list[i])
		}
		at = n.Next.Ptr(p.h)
	}
	if !at.IsNil() {
		t.Fatal("the list is longer than it was")
	}
	all := make([]uint64, keptArray)
	if err := p.array.Read(ctx, all, 0); err != nil {
		t.Fatal(err)
	}
	for i, v := range all {
		if v != m.array[i] {
			t.Fatalf("element %d is %d, want %d", i, v, m.array[i])
		}
	}
	if p.vec.Len() != len(m.vec) {
		t.Fatalf("the vector has %d elements, want %d", p.vec.Len(), len(m.vec))
	}
	for i, want := range m.vec {
		if v, err := p.vec.Get(ctx, i); err != nil || v.Key != want {
			t.Fatalf("element %d of the vector is %d, %v, want %d", i, v.Key, err, want)
		}
	}
}

// churn changes things, and m with them.
func (p *keptThings) churn(t testing.TB, m *thingsModel, r *rand.Rand, n int) {
	t.Helper()
	ctx := t.Context()
	fail := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	var scratch []Ptr[keptNode]
	head, _ := p.nodes.Named("head")
	for range n {
		x := r.Uint64()
		switch r.IntN(10) {
		case 0, 1, 2, 3:
			q, err := p.nodes.New(ctx, keptNode{Key: x, Value: x ^ 1, Next: head.Ref()})
			fail(err)
			head = q
			m.list = append(m.list, [2]uint64{x, x ^ 1})
		case 4:
			if !head.IsNil() {
				n, err := head.Load(ctx)
				fail(err)
				head.Free()
				head = n.Next.Ptr(p.h)
				m.list = m.list[:len(m.list)-1]
			}
		case 5:
			if !head.IsNil() {
				n, err := head.Load(ctx)
				fail(err)
				n.Value = x
				fail(head.Store(ctx, n))
				m.list[len(m.list)-1][1] = x
			}
		case 6:
			i := r.IntN(keptArray)
			fail(p.array.Set(ctx, i, x))
			m.array[i] = x
		case 7, 8:
			fail(p.vec.Append(ctx, keptNode{Key: x}))
			m.vec = append(m.vec, x)
			if r.IntN(2000) == 0 {
				p.vec.Truncate(len(m.vec) / 2)
				m.vec = m.vec[:len(m.vec)/2]
			}
		default:
			q, err := p.other.New(ctx, keptNode{Key: x})
			fail(err)
			if scratch = append(scratch, q); r.IntN(3) == 0 {
				scratch[0].Free()
				scratch = scratch[1:]
			}
		}
	}
	fail(p.nodes.SetNamed("head", head))
}

// fillLocal has what is in local memory go, all but a little.
func fillLocal(t testing.TB, h *Heap) {
	t.Helper()
	m := h.NewByteMap("much")
	for i := range h.Local() / 1000 {
		if err := m.Set(t.Context(), fmt.Append(nil, i%5000), Entry{Value: make([]byte, 1000)}); err != nil {
			t.Fatal(err)
		}
	}
}

// Objects of a class that is kept, arrays and vectors are what they were at the last checkpoint, whether the heap was closed or its process killed, again and
// again, with more memory and with less; and what is not kept takes nothing.
func TestObjectsOutliveTheProcess(t *testing.T) {
	for _, early := range []bool{false, true} {
		if invariants.Enabled && !early {
			continue // "make plain" has both
		}
		t.Run(fmt.Sprintf("early=%v", early), func(t *testing.T) {
			k := newKeeper(heap.MinSegmentSize, 2000)
			r := rand.New(rand.NewPCG(3, 4))
			m := &thingsModel{array: map[int]uint64{}}
			rounds := 6
			if invariants.Enabled {
				rounds = 2
			}
			for round := range rounds {
				h := openKept(t, k, int64(4+2*(round%2))<<20, early)
				p := openThings(t, h)
				p.check(t, m)
				h.objects.Each(p.other.c, func(*uint64) { t.Error("an object is there that was not kept") }) // and all words are awake
				want := len(m.list) + (keptArray+p.array.tr.Group-1)/p.array.tr.Group
				for part := range int(p.vec.all.Load()) {
					want += vectorPartLen(part)
				}
				if got := h.objects.Pointers(); got != want {
					t.Errorf("there are %d pointers, want %d: what was not kept should be gone", got, want)
				}
				n := 20_000
				if round == 0 {
					n = 150_000 // more than is local
				}
				p.churn(t, m, r, n)
				if early {
					fillLocal(t, h)
					awaitAsleep(t, h, 10_000)
				}
				if round%2 == 0 {
					if err := h.Checkpoint(t.Context()); err != nil {
						t.Fatal(err)
					}
					p.check(t, m)
					after := m.clone()
					p.churn(t, after, r, 10_000)
					killed := k.copy()
					closeHeap(t, h)
					k = killed
					continue
				}
				closeHeap(t, h)
				k = k.copy()
			}
		})
	}
}

// TestACheckpointLeavesObjectsToTheirSegments, and does not have them itself, though all of them are new and local.
func TestACheckpointLeavesObjectsToTheirSegments(t *testing.T) {
	k := newKeeper(heap.MinSegmentSize, 100)
	h := openKept(t, k, 8<<20, false)
	defer closeHeap(t, h)
	type large [1 << 10]byte
	const n = 2000
	a, err := NewArray[large](t.Context(), h, n, StructureConfig{Name: "large", Keep: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := a.Set(t.Context(), i, large{1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	if root, err := record.DecodeRoot(k.copy().root); err != nil || root.Length > n<<10/4 {
		t.Errorf("the checkpoint has %d bytes, %v, beside objects of %d", root.Length, err, n<<10)
	}
}

// While goroutines change an element, an object and an entry together, under a lock that KeepState takes, and objects are evacuated and checkpoints taken, a
// process that is killed leaves all three as they were at one moment.
func TestACheckpointHasObjectsOfOneMoment(t *testing.T) {
	n, local := 60_000, int64(8<<20)
	if invariants.Enabled {
		n, local = 24_000, 4<<20
	}
	k := newKeeper(heap.MinSegmentSize, 3000)
	var lock sync.RWMutex
	open := func(k *keeper) (*Heap, *Class[keptNode], *Vector[Ref[keptNode]], *Array[uint64], *Map[uint64, uint64]) {
		h := openKept(t, k, local, false)
		c, err := NewClass[keptNode](h, ClassConfig{Name: "nodes", Keep: true})
		if err != nil {
			t.Fatal(err)
		}
		a, err := NewArray[uint64](t.Context(), h, n, StructureConfig{Name: "a", Keep: true})
		if err != nil {
			t.Fatal(err)
		}
		refs, err := NewVector[Ref[keptNode]](h, StructureConfig{Name: "refs", Keep: true})
		if err != nil {
			t.Fatal(err)
		}
		m, err := NewMap(h, MapConfig[uint64, uint64]{Name: "m"})
		if err != nil {
			t.Fatal(err)
		}
		return h, c, refs, a, m
	}
	h, c, refs, a, m := open(k)
	ps := make([]Ptr[keptNode], n)
	for i := range ps {
		var err error
		if ps[i], err = c.New(t.Context(), keptNode{}); err != nil {
			t.Fatal(err)
		}
		if err := refs.Append(t.Context(), ps[i].Ref()); err != nil {
			t.Fatal(err)
		}
	}
	h.KeepState(func() State {
		lock.Lock()
		return State{Thaw: lock.Unlock}
	})
	if err := h.Checkpoint(t.Context()); err != nil { // so that whoever is killed leaves one
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 1))
			for x := uint64(1); ctx.Err() == nil; x++ {
				i := r.IntN(n/4)*4 + g
				v := x<<2 | uint64(g)
				lock.RLock()
				within, done := context.WithTimeout(context.Background(), time.Minute) // who waits for ever says for what
				err := errors.Join(a.Set(within, i, v), ps[i].Store(within, keptNode{Key: v}), m.Set(within, uint64(i), v))
				done()
				lock.RUnlock()
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Go(func() {
		for ctx.Err() == nil {
			if err := h.Checkpoint(context.Background()); err != nil {
				t.Error(err)
				return
			}
		}
	})
	var killed []*keeper
	for range 3 {
		time.Sleep(900 * time.Millisecond)
		killed = append(killed, k.copy())
	}
	wg.Wait()
	closeHeap(t, h)
	most := 0
	for _, k := range append(killed, k.copy()) {
		h, _, refs, a, m := open(k)
		some := 0 // of those that were changed
		for i := range n {
			v, err := a.Get(t.Context(), i)
			if err != nil {
				t.Fatal(err)
			}
			p, err := refs.Get(t.Context(), i)
			if err != nil {
				t.Fatal(err)
			}
			o, err := p.Ptr(h).Load(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			e, _, err := m.Get(t.Context(), uint64(i))
			if err != nil || e != v || o.Key != v {
				t.Fatalf("element %d is %d, the object %d and the entry %d: %v", i, v, o.Key, e, err)
			}
			if v != 0 {
				some++
			}
		}
		most = max(most, some)
		closeHeap(t, h)
	}
	if most == 0 {
		t.Error("nothing was kept of what was changed")
	}
}

// What a class or a structure was made from it is opened as, and nothing else; what cannot be kept is refused with the reason.
func TestKeptObjectsAreOpenedAsTheyWereMade(t *testing.T) {
	k := newKeeper(heap.MinSegmentSize, 400)
	h := openKept(t, k, 4<<20, false)
	p := openThings(t, h)
	for i := range 10 {
		if err := p.array.Set(t.Context(), i, uint64(i)); err != nil {
			t.Fatal(err)
		}
	}
	closeHeap(t, h)
	h = openKept(t, k.copy(), 4<<20, false)
	wants := func(err error, what string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("got %v, want an error with %q", err, what)
		}
	}
	_, err := NewClass[uint64](h, ClassConfig{Name: "nodes", Keep: true})
	wants(err, "cannot be opened as uint64, 8 bytes")
	_, err = NewArray[int64](t.Context(), h, keptArray, StructureConfig{Name: "numbers", Keep: true})
	wants(err, "cannot be opened as array of int64")
	_, err = NewArray[uint64](t.Context(), h, keptArray+1, StructureConfig{Name: "numbers", Keep: true})
	wants(err, "it has 30000 elements, want 30001")
	_, err = NewVector[uint64](h, StructureConfig{Name: "numbers", Keep: true})
	wants(err, "cannot be opened as vector of uint64")
	_, err = NewList[uint64](h, StructureConfig{Name: "list", Keep: true})
	wants(err, "only arrays and vectors can be")
	_, err = NewClass[struct{ Name BytesRef }](h, ClassConfig{Name: "b", Keep: true})
	wants(err, "field Name")
	_, err = NewClass[struct{ S SharedRef[int] }](h, ClassConfig{Name: "b", Keep: true})
	wants(err, "field S")
	_, err = NewClass[keptNode](h, ClassConfig{Keep: true})
	wants(err, "it has no name")
	_, err = NewVector[uint64](h, StructureConfig{Keep: true})
	wants(err, "it has no name")
	wants(p.nodes.SetNamed(strings.Repeat("x", maxName+1), Ptr[keptNode]{}), "at most 1024")
	other := openObjects(t, heap.NewMemStore(tinySegment, 100), 12)
	c, err := NewClass[keptNode](other, ClassConfig{Name: "nodes"})
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := c.New(t.Context(), keptNode{})
	if err != nil {
		t.Fatal(err)
	}
	wants(p.nodes.SetNamed("x", foreign), "it is of another heap")
	closeHeap(t, other)
	wants(p.nodes.SetNamed("x", foreign), "closed")
	if got, ok := p.nodes.Named("x"); ok {
		t.Errorf("a pointer of another heap was named: %v", got)
	}

	q := openThings(t, h) // after all that
	for i := range 10 {
		if v, err := q.array.Get(t.Context(), i); err != nil || v != uint64(i) {
			t.Errorf("element %d is %d, %v", i, v, err)
		}
	}
	closeHeap(t, h)
}

// Whatever a checkpoint says of objects, opening it fails or gives objects.
func FuzzLoadObjects(f *testing.F) {
	for _, n := range []int{0, 3000} {
		k := newKeeper(heap.MinSegmentSize, 400)
		h := openKept(f, k, 4<<20, n > 0)
		p := openThings(f, h)
		m := &thingsModel{array: map[int]uint64{}}
		p.churn(f, m, rand.New(rand.NewPCG(1, 2)), n)
		if n > 0 {
			time.Sleep(20 * time.Millisecond) // some words go far
		}
		resume, err := h.core.Pause(f.Context())
		if err != nil {
			f.Fatal(err)
		}
		b, need := h.objects.Freeze(make([]byte, 0, 1<<20))
		resume()
		if need > 0 {
			f.Fatalf("it takes %d bytes", need)
		}
		f.Add(b)
		closeHeap(f, h)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		// The checkpoint of an empty heap, and then b, which refers to segments that there are not, so that words of far objects are refused.
		k := newKeeper(heap.MinSegmentSize, 64)
		k.reopen = map[string]bool{}
		cfg := Config{Local: 4 << 20}
		lay, err := layoutFor(k, &cfg)
		if err != nil {
			t.Fatal(err)
		}
		h, err := prepare(k, cfg, lay)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.load(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		if err := h.objects.Load(t.Context(), &record.Decoder{B: b}); err != nil {
			if err := h.abandon(); err != nil {
				t.Fatal(err)
			}
			return
		}
		h.start()
		_, _ = NewArray[uint64](t.Context(), h, keptArray, StructureConfig{Name: "numbers", Keep: true})
		_, _ = NewVector[keptNode](h, StructureConfig{Name: "log", Keep: true})
		if c, err := NewClass[keptNode](h, ClassConfig{Name: "nodes", Keep: true}); err == nil {
			if p, ok := c.Named("head"); ok {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				_, _ = p.Load(ctx)
				cancel()
			}
		}
		closeHeap(t, h)
	})
}

// An array and a vector that are cleared and written to while checkpoints are taken, with nobody to hold that off, may come back with any of it, but they come back.
func TestWhatIsClearedMeanwhileIsOpenedAgain(t *testing.T) {
	if invariants.Enabled {
		return // it is a data race, on the bytes of objects; "make plain" runs it
	}
	k := newKeeper(heap.MinSegmentSize, 400)
	h := openKept(t, k, 4<<20, false)
	p := openThings(t, h)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			for i := 0; i < keptArray; i += 100 {
				if err := errors.Join(p.array.Set(context.Background(), i, uint64(i)), p.vec.Append(context.Background(), keptNode{Key: 1})); err != nil {
					t.Error(err)
				}
			}
			p.array.Clear()
			p.vec.Clear()
		}
	})
	var killed []*keeper
	for ctx.Err() == nil {
		if err := h.Checkpoint(context.Background()); err != nil {
			t.Error(err)
		}
		if len(killed) < 100 {
			killed = append(killed, k.copy())
		}
	}
	wg.Wait()
	closeHeap(t, h)
	for _, k := range killed {
		h := openKept(t, k, 4<<20, false)
		p := openThings(t, h)
		if err := p.array.Read(t.Context(), make([]uint64, keptArray), 0); err != nil {
			t.Fatal(err)
		}
		closeHeap(t, h)
	}
}

// While the evacuator is held, so that words do not change under a checkpoint, it makes no room, and afterwards it does.
func TestAnEvacuatorThatIsHeldMovesNothing(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
	c := newPoints(t, h, ClassConfig{})
	resume, err := h.core.Pause(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	was := h.Stats()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	for err = nil; err == nil; {
		_, err = c.New(ctx, point{})
	}
	if now := h.Stats(); !errors.Is(err, context.DeadlineExceeded) || now.EvacuatedSegments != was.EvacuatedSegments || now.Passes != was.Passes {
		t.Errorf("%v; %d segments were evacuated in %d passes, %d in %d before", err, now.EvacuatedSegments, now.Passes, was.EvacuatedSegments, was.Passes)
	}
	resume()
	for range 2000 {
		if _, err := c.New(t.Context(), point{}); err != nil {
			t.Fatal(err)
		}
	}
}

// A checkpoint that is due is taken where nothing has changed but objects.
func TestACheckpointIsDueForObjects(t *testing.T) {
	k := newKeeper(heap.MinSegmentSize, 400)
	k.reopen = map[string]bool{}
	h, err := Open(t.Context(), k, Config{Local: 4 << 20, CheckpointEvery: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	p := openThings(t, h)
	time.Sleep(3 * checkpointTick) // the first one has been taken
	if err := p.array.Set(t.Context(), 7, 7); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the first one may have begun before
		now := time.Now()
		pooltest.Eventually(t, "there is another checkpoint", func() bool { return h.LastCheckpoint().After(now) })
	}
	killed := k.copy()
	closeHeap(t, h)
	h = openKept(t, killed, 4<<20, false)
	if v, err := openThings(t, h).array.Get(t.Context(), 7); err != nil || v != 7 {
		t.Errorf("element 7 is %d, %v", v, err)
	}
	closeHeap(t, h)
}

// What is written to objects while they are written back, and moved for that, is not lost.
func TestObjectsAreUsedWhileTheyAreWrittenBack(t *testing.T) {
	failpoint.Set(func(name string) {
		if name == "far.settled" { // what was written is not the owner's yet
			time.Sleep(200 * time.Microsecond)
		}
	})
	t.Cleanup(func() { failpoint.Set(nil) })
	h := openKept(t, newKeeper(heap.MinSegmentSize, 1000), 4<<20, false)
	c, err := NewClass[keptNode](h, ClassConfig{Name: "nodes", Keep: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for g := range 3 {
		var ps [2000]Ptr[keptNode]
		for i := range ps {
			if ps[i], err = c.New(t.Context(), keptNode{}); err != nil {
				t.Fatal(err)
			}
		}
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 1))
			var want [len(ps)]uint64
			s := h.NewScope()
			defer s.Close()
			for ctx.Err() == nil {
				i := r.IntN(len(ps))
				s.Enter()
				v := ps[i].DerefMut(s)
				if v == nil || v.Key != want[i] {
					t.Errorf("object %d is %v, want %d: %v", i, v, want[i], s.Err())
					s.Leave()
					return
				}
				v.Key++
				want[i]++
				s.Leave()
			}
		})
	}
	n := 0
	for ; ctx.Err() == nil; n++ {
		if err := h.core.WriteBack(context.Background(), true); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	if n < 3 {
		t.Errorf("objects were written back %d times, too few to tell", n)
	}
	closeHeap(t, h)
}

// lateKeeper is a keeper whose writes take their time.
type lateKeeper struct{ *keeper }

type lateSegment struct{ heap.Segment }

func (k lateKeeper) Alloc(ctx context.Context) (heap.Segment, error) {
	s, err := k.keeper.Alloc(ctx)
	if err != nil {
		return nil, err
	}
	return lateSegment{s}, nil
}

func (k lateKeeper) Read(ctx context.Context, ops []heap.ReadOp) {
	for i := range ops {
		ops[i].Seg = ops[i].Seg.(lateSegment).Segment
	}
	k.keeper.Read(ctx, ops)
}

func (s lateSegment) Write(ctx context.Context, p []byte, off int) error {
	time.Sleep(20 * time.Millisecond)
	return s.Segment.Write(ctx, p, off)
}

// A checkpoint comes to its end though all objects change all the while, so that it has more of them than there is memory for at first, and
// the store takes long to make some: it has them, or says what is missing.
func TestACheckpointEndsWhileObjectsChange(t *testing.T) {
	t.Parallel()
	k := lateKeeper{newKeeper(heap.MinSegmentSize, 4000)}
	k.reopen = map[string]bool{}
	h, err := Open(t.Context(), k, Config{Local: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewClass[keptNode](h, ClassConfig{Name: "nodes", Keep: true})
	if err != nil {
		t.Fatal(err)
	}
	ps := make([]Ptr[keptNode], 80_000)
	for i := range ps {
		if ps[i], err = c.New(t.Context(), keptNode{Key: uint64(i)}); err != nil {
			t.Fatal(err)
		}
	}
	var over atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		s := h.NewScope()
		defer s.Close()
		for i := 0; !over.Load(); i++ {
			s.Enter()
			if v := ps[i%len(ps)].DerefMut(s); v != nil {
				v.Value++
			}
			s.Leave()
			if i%20_000 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := h.Checkpoint(ctx); err != nil && !errors.Is(err, errNoMemory) {
		t.Error(err)
	}
	over.Store(true)
	wg.Wait()
	closeHeap(t, h)
}
