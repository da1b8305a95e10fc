package far_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"time"

	"polder/far"
)

// A map of 32 MB on a budget of 4 MiB: what is not used goes to the store, and
// comes back when it is asked for.
func Example() {
	heap, err := far.NewHeap(far.NewMemStore(1<<20, 64), far.Config{Local: 4 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer heap.Close()
	m := heap.NewByteMap("pages")

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i := range 32 {
		e := far.Entry{Value: make([]byte, 1_000_000), Tag: uint8(i)}
		if err := m.Set(ctx, fmt.Append(nil, "page ", i), e); err != nil {
			log.Fatal(err)
		}
	}
	e, err := m.Get(ctx, []byte("page 0"), nil)
	if err != nil {
		log.Fatal(err)
	}
	_, err = m.Get(ctx, []byte("page 32"), nil)
	s := heap.Stats()
	fmt.Println(len(e.Value), m.Len(), errors.Is(err, far.ErrNotFound), s.Resident <= s.Budget)
	// Output: 1000000 32 true true
}

// Update reads and writes an entry as one.
func ExampleByteMap_Update() {
	heap, err := far.NewHeap(far.NewMemStore(1<<20, 64), far.Config{Local: 4 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer heap.Close()
	m := heap.NewByteMap("lists")
	ctx := context.Background()
	for _, s := range []string{"a", "b", "c"} {
		err := m.Update(ctx, []byte("letters"), func(old far.Entry, found bool) (far.Entry, far.Verdict, error) {
			old.Value = append([]byte(s), old.Value...)
			return old, far.Put, nil
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	e, err := m.Get(ctx, []byte("letters"), nil)
	fmt.Println(string(e.Value), err)
	// Output: cba <nil>
}

// A map keeps structs with strings and slices, too.
func ExampleMap() {
	heap, err := far.NewHeap(far.NewMemStore(1<<20, 64), far.Config{Local: far.MinLocal})
	if err != nil {
		log.Fatal(err)
	}
	defer heap.Close()
	type user struct {
		Name  string
		Mails []string
	}
	users, err := far.NewMap(heap, far.MapConfig[int, user]{Name: "users"})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	if err := users.Set(ctx, 7, user{"Ada", []string{"ada@example.org"}}); err != nil {
		log.Fatal(err)
	}
	ada, ok, err := users.Get(ctx, 7)
	fmt.Println(ada.Name, ada.Mails, ok, err)
	// Output: Ada [ada@example.org] true <nil>
}

// A long text is looked through where it lies, and not copied.
func ExampleMap_Deref() {
	heap, err := far.NewHeap(far.NewMemStore(1<<20, 64), far.Config{Local: far.MinLocal})
	if err != nil {
		log.Fatal(err)
	}
	defer heap.Close()
	pages, err := far.NewMap(heap, far.MapConfig[string, string]{Name: "pages"})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	if err := pages.Set(ctx, "/", strings.Repeat("far and local, ", 1000)); err != nil {
		log.Fatal(err)
	}
	err = heap.Do(ctx, func(s *far.Scope) error {
		if page := pages.Deref(s, "/"); page != nil {
			fmt.Println(strings.Count(*page, "far"))
		}
		return s.Err()
	})
	fmt.Println(err)
	// Output:
	// 1000
	// <nil>
}

// Samples that do not fit into memory are put in another order for every pass of a training, and then read one after the other.
func ExampleShuffle() {
	heap, err := far.NewHeap(far.NewMemStore(1<<20, 64), far.Config{Local: far.MinLocal})
	if err != nil {
		log.Fatal(err)
	}
	defer heap.Close()
	type sample struct {
		Label  int32
		Pixels [63]float32
	}
	const n = 50_000
	ctx := context.Background()
	samples, err := far.NewArray[sample](ctx, heap, n, far.StructureConfig{Name: "samples"})
	if err != nil {
		log.Fatal(err)
	}
	for i := range n {
		if err := samples.Set(ctx, i, sample{Label: int32(i)}); err != nil {
			log.Fatal(err)
		}
	}
	order, err := far.NewVector[int32](heap, far.StructureConfig{Name: "order"})
	if err != nil {
		log.Fatal(err)
	}
	pass, err := far.NewArray[sample](ctx, heap, n, far.StructureConfig{Name: "this pass"})
	if err != nil {
		log.Fatal(err)
	}
	for i := range int32(n) { // a real one is drawn at random
		if err := order.Append(ctx, n-1-i); err != nil {
			log.Fatal(err)
		}
	}
	if err := far.Shuffle(ctx, pass, samples, order); err != nil {
		log.Fatal(err)
	}
	first, err := pass.Get(ctx, 0)
	fmt.Println(first.Label, err)
	// Output: 49999 <nil>
}

// Of many trips those that cost much are set aside.
func ExampleCopy() {
	heap, err := far.NewHeap(far.NewMemStore(1<<20, 64), far.Config{Local: far.MinLocal})
	if err != nil {
		log.Fatal(err)
	}
	defer heap.Close()
	type trip struct {
		ID   uint64
		Fare float64
	}
	ctx := context.Background()
	trips, err := far.NewVector[trip](heap, far.StructureConfig{Name: "trips"})
	if err != nil {
		log.Fatal(err)
	}
	for i := range uint64(100_000) {
		if err := trips.Append(ctx, trip{i, float64(i % 1000)}); err != nil {
			log.Fatal(err)
		}
	}
	dear := far.FieldOf(func(t *trip) *float64 { return &t.Fare }).Is(far.IfGreaterOrEqual, 999)
	n, err := far.Count(ctx, trips, dear)
	if err != nil {
		log.Fatal(err)
	}
	aside, err := far.NewArray[trip](ctx, heap, n, far.StructureConfig{Name: "dear trips"})
	if err != nil {
		log.Fatal(err)
	}
	n, err = far.Copy(ctx, aside, trips, dear)
	fmt.Println(n, err)
	// Output: 100 <nil>
}
