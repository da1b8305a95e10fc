package soft_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"polder/soft"
)

// A cache that always has an answer: what is not in soft memory is rebuilt,
// once, however many ask for it.
func ExamplePool() {
	heap, err := soft.Open(soft.Config{Budget: 64 << 20}) // or Coordinator: its socket
	if err != nil {
		fmt.Println(err)
		return
	}
	defer heap.Close()
	pages, err := soft.NewPool(heap, soft.PoolConfig[string, string]{
		TTL: time.Minute,
		Rebuild: func(_ context.Context, name string) (string, error) {
			return strings.ToUpper(name), nil // a query, a rendering, a computation
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pages.Close()
	for range 3 {
		page, err := pages.GetOrRebuild(context.Background(), "home")
		fmt.Println(page, err)
	}
	fmt.Println(heap.Stats().Rebuilds, "rebuilt")
	// Output:
	// HOME <nil>
	// HOME <nil>
	// HOME <nil>
	// 1 rebuilt
}

// Pointers to values that may vanish, and what they own.
func ExamplePointers() {
	heap, err := soft.Open(soft.Config{Budget: 64 << 20})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer heap.Close()
	type post struct{ ID, Likes int64 }
	posts, err := soft.NewPointers(heap, func(_ context.Context, id int64) (post, error) {
		return post{ID: id}, nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer posts.Close()
	var p soft.Ptr[post]
	if err := posts.Init(&p, post{ID: 7, Likes: 1}); err != nil {
		fmt.Println(err)
		return
	}
	swapped, err := p.CompareAndSwap(post{ID: 7, Likes: 1}, post{ID: 7, Likes: 2})
	fmt.Println(swapped, err)
	v, err := posts.Read(context.Background(), &p, 7)
	fmt.Println(v, err)
	// Output:
	// true <nil>
	// {7 2} <nil>
}
