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
