package far

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"polder/codec"
	"polder/far/heap"
	"polder/far/object"
	"polder/far/objects"
	"polder/far/record"
	"polder/internal/ended"
	"polder/internal/failpoint"
	"polder/internal/invariants"
	"polder/internal/sizeclass"
)

func newPoints(t *testing.T, h *Heap, cfg ClassConfig) *Class[point] {
	t.Helper()
	c, err := NewClass[point](h, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// greatest is the greatest number of the classes that it has seen.
type greatest struct{ n atomic.Int64 }

func (g *greatest) see(c *objects.Class) {
	for n := int64(c.ID); ; {
		if old := g.n.Load(); old >= n || g.n.CompareAndSwap(old, n) {
			return
		}
	}
}

// Structures and classes that are freed make room for others, for ever.
func TestFreedStructuresGiveTheirNumbersBack(t *testing.T) {
	t.Parallel()
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 40)
	ctx := t.Context()
	var most greatest
	for i := range objects.MaxClasses + 100 {
		var err error
		switch i % 4 {
		case 0:
			var l *List[int64]
			if l, err = NewList[int64](h, StructureConfig{}); err == nil {
				most.see(l.tr.Class)
				err = l.PushBack(ctx, 1)
				l.Free()
			}
		case 1:
			var v *Vector[[3]byte]
			if v, err = NewVector[[3]byte](h, StructureConfig{}); err == nil {
				most.see(v.tr.Class)
				v.Free()
			}
		case 2:
			var a *Array[int32]
			if a, err = NewArray[int32](ctx, h, 5, StructureConfig{Group: 1}); err == nil {
				most.see(a.tr.Class)
				err = a.Set(ctx, 4, 4)
				a.Free()
			}
		case 3:
			c := newPoints(t, h, ClassConfig{})
			most.see(c.c)
			var p Ptr[point]
			if p, err = c.New(ctx, point{}); err == nil {
				p.Free()
				err = c.Free()
			}
		}
		if err != nil {
			t.Fatalf("structure %d: %v", i, err)
		}
	}
	if n := most.n.Load() + 1; n > 200 {
		t.Errorf("%d numbers were used where one at a time was needed", n)
	}
}

func TestThereIsALimitOfStructuresAtATime(t *testing.T) {
	if invariants.Enabled {
		return // one goroutine does much; "make plain" runs it
	}
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	for range objects.MaxClasses - 1 {
		if _, err := h.objects.NewClass(objects.Config{}, 8); err != nil {
			t.Fatal(err)
		}
	}
	last := newPoints(t, h, ClassConfig{})
	if _, err := NewStack[int](h, StructureConfig{}); err == nil || !strings.Contains(err.Error(), "16384") {
		t.Errorf("one too many: got %v, want an error that says how many there can be", err)
	}
	if err := last.Free(); err != nil {
		t.Fatal(err)
	}
	st, err := NewStack[int](h, StructureConfig{})
	if err != nil {
		t.Fatalf("after one was freed: %v", err)
	}
	st.Free()
}

// The number of a class that was freed goes to nobody as long as somebody may
// have a word with it: in a scope, and in a pass of the evacuator.
func TestNumbersAreNotUsedAgainTooSoon(t *testing.T) {
	t.Run("scope", func(t *testing.T) {
		h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
		first := newPoints(t, h, ClassConfig{})
		s := h.NewScope()
		defer s.Close()
		s.Enter()
		if err := first.Free(); err != nil {
			t.Fatal(err)
		}
		if c := newPoints(t, h, ClassConfig{}); c.c.ID == first.c.ID {
			t.Error("the number is used again while a scope is open")
		}
		s.Leave()
		if c := newPoints(t, h, ClassConfig{}); c.c.ID != first.c.ID {
			t.Errorf("got number %d, want %d, which nobody can meet any more", c.c.ID, first.c.ID)
		}
	})
	t.Run("pass", func(t *testing.T) {
		reached, goOn := make(chan struct{}), make(chan struct{})
		var once sync.Once
		failpoint.Set(func(name string) {
			if name == "far.moving" {
				once.Do(func() {
					close(reached)
					<-goOn
				})
			}
		})
		t.Cleanup(func() { failpoint.Set(nil) }) // when the heap has been closed
		h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
		first := newPoints(t, h, ClassConfig{})
		fillFar(t, h, 1000)
		h.core.Forced.Store(true)
		h.core.Logs.Wake()
		<-reached
		if err := first.Free(); err != nil {
			t.Fatal(err)
		}
		if c := newPoints(t, h, ClassConfig{}); c.c.ID == first.c.ID {
			t.Error("the number is used again during a pass")
		}
		close(goOn)
		for h.core.Pass.Passes.Load() < 2 {
			h.core.Forced.Store(true)
			h.core.Logs.Wake()
			if err := h.core.RoomSoon(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if c := newPoints(t, h, ClassConfig{}); c.c.ID != first.c.ID {
			t.Errorf("got number %d, want %d, which nobody can meet any more", c.c.ID, first.c.ID)
		}
	})
}

func TestAClassThatHasObjectsIsNotFreed(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<10), 16)
	c := newPoints(t, h, ClassConfig{Name: "points"})
	ctx := t.Context()
	var ps []Ptr[point]
	for i := range 5000 { // some are far
		p, err := c.New(ctx, point{X: int64(i)})
		if err != nil {
			t.Fatal(err)
		}
		ps = append(ps, p)
	}
	run, err := c.NewRun(ctx, 7) // which are zero
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(`cannot free class "points": %d of its objects have not been freed`, len(ps)+run.Len())
	if err := c.Free(); err == nil || err.Error() != want {
		t.Errorf("got %v, want %q", err, want)
	}
	run.Free()
	for _, p := range ps {
		p.Free()
	}
	if err := c.Free(); err != nil {
		t.Error(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a class that was freed makes objects")
		}
	}()
	_, _ = c.New(ctx, point{})
}

// What was written for one class is not taken for an object of another that has
// its number, whatever else agrees.
func TestFarObjectsOfAnOldClassAreNotThoseOfANewOne(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	old := newPoints(t, h, ClassConfig{})
	b := make([]byte, object.FarSize(old.c.Size))
	record.Put(b, record.Header{Kind: record.Object, Owner: old.c.Owner(), Number: 5}, make([]byte, old.c.Size))
	record.Record(b).SetVersion(h.core.Far.Version() + 1)
	fillFar(t, h, 10_000) // other objects are evacuated meanwhile
	check := func(c *objects.Class) error {
		return h.objects.Owner().Check(b, &heap.Want{Of: c, ID: c.Owner(), Number: 5, Size: sizeclass.Round(len(b))})
	}
	if err := check(old.c); err != nil {
		t.Fatalf("before it was freed: %v", err)
	}
	if err := old.Free(); err != nil {
		t.Fatal(err)
	}
	c := newPoints(t, h, ClassConfig{})
	for i := 0; c.c.ID != old.c.ID; c, i = newPoints(t, h, ClassConfig{}), i+1 { // until the pass is over that may meet it
		if i == objects.MaxClasses-10 {
			t.Fatalf("no other class got number %d", old.c.ID)
		}
		runtime.Gosched()
	}
	if err := check(c.c); err == nil {
		t.Error("the bytes are taken for an object of another class")
	}
}

func TestStatisticsOfFreedClassesAreKept(t *testing.T) {
	h := openObjects(t, heap.NewMemStore(tinySegment, 64), 16)
	for i := range ended.Most + 50 {
		c := newPoints(t, h, ClassConfig{Name: fmt.Sprint("class ", i)})
		c.c.Computed.Add(1)
		if err := c.Free(); err != nil {
			t.Fatal(err)
		}
	}
	again := newPoints(t, h, ClassConfig{Name: "class 7"})
	again.c.Computed.Add(10)
	var all, sevens uint64
	st := h.Stats().Classes
	for _, c := range st {
		all += c.Computed
		if c.Name == "class 7" {
			sevens += c.Computed
		}
	}
	if all != ended.Most+60 || sevens != 11 || len(st) > ended.Most+2 {
		t.Errorf("%d objects computed in %d classes, %d of those named class 7; want %d in at most %d, and 11", all, len(st), sevens, ended.Most+60, ended.Most+2)
	}
}

// Structures and classes of all sizes come and go while the evacuator runs all the
// time: everybody finds what is his, and handlers see objects of their own class.
func TestClassesThatComeAndGo(t *testing.T) {
	var dawdle atomic.Uint32
	failpoint.Set(func(string) {
		for range dawdle.Add(1) % 16 {
			runtime.Gosched()
		}
	})
	t.Cleanup(func() { failpoint.Set(nil) })
	h := openObjects(t, heap.NewMemStore(tinySegment, 1<<12), 40)
	ctx := t.Context()
	stop := make(chan struct{})
	var most greatest
	var tormentor, wg sync.WaitGroup
	tormentor.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				h.core.Forced.Store(true)
				h.core.Logs.Wake()
				runtime.Gosched()
			}
		}
	})
	rounds := 30
	if invariants.Enabled { // "make plain" has them all
		rounds = 15
	}
	for id := range 6 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(id), 5))
			for round := 0; round < rounds && !t.Failed(); round++ {
				var err error
				switch r.IntN(3) {
				case 0:
					err = comeAndGo[[24]byte](ctx, h, &most, byte(id*30+round), r.IntN(600))
				case 1:
					err = comeAndGo[[1000]byte](ctx, h, &most, byte(id*30+round), 200+r.IntN(400))
				case 2:
					err = comeAndGoInAList(ctx, h, &most, int64(id*30+round), r.IntN(3000))
				}
				if err != nil {
					t.Errorf("worker %d, round %d: %v", id, round, err)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	tormentor.Wait()
	if n := most.n.Load() + 1; n > 150 {
		t.Errorf("%d numbers were used for 180 classes, of which 6 were there at a time", n)
	}
	if st := h.Stats(); st.Fetches == 0 || st.Passes == 0 {
		t.Errorf("the test tested nothing: %+v", st)
	}
}

func comeAndGo[T any](ctx context.Context, h *Heap, most *greatest, mark byte, n int) error {
	var wrong atomic.Int64
	handler := func(o []byte) {
		if len(o) != sizeOf[T]() || o[0] != mark || o[len(o)-1] != mark {
			wrong.Add(1)
		}
	}
	c, err := NewClass[T](h, ClassConfig{Evacuating: handler, Fetched: handler})
	if err != nil {
		return err
	}
	most.see(c.c)
	var v T
	for i := range codec.Bytes(&v) {
		codec.Bytes(&v)[i] = mark
	}
	ps := make([]Ptr[T], n)
	for i := range ps {
		if ps[i], err = c.New(ctx, v); err != nil {
			return err
		}
	}
	for i, p := range ps {
		got, err := p.Load(ctx)
		if err != nil {
			return err
		}
		if string(codec.Bytes(&got)) != string(codec.Bytes(&v)) {
			return fmt.Errorf("object %d of mark %d: got %v", i, mark, got)
		}
		p.Free()
	}
	if n := wrong.Load(); n > 0 {
		return fmt.Errorf("handlers were given %d objects that are not of their class", n)
	}
	return c.Free()
}

func comeAndGoInAList(ctx context.Context, h *Heap, most *greatest, mark int64, n int) error {
	l, err := NewList[int64](h, StructureConfig{Group: 1 << (mark % 7)})
	if err != nil {
		return err
	}
	defer l.Free()
	most.see(l.tr.Class)
	for i := range int64(n) {
		if err := l.PushBack(ctx, mark<<32|i); err != nil {
			return err
		}
	}
	for i := range int64(n) {
		if v, ok, err := l.PopFront(ctx); v != mark<<32|i || !ok || err != nil {
			return fmt.Errorf("element %d of list %d: got %x, %v, %v", i, mark, v, ok, err)
		}
	}
	return nil
}
