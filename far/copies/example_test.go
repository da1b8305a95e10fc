package copies_test

import (
	"context"
	"fmt"

	"polder/far"
	"polder/far/copies"
)

// A heap whose far memory is at two of three places. With memory nodes, remote.Places makes them of a pool.
func ExampleOpen() {
	var places []copies.Place
	for _, name := range []string{"a", "b", "c"} {
		places = append(places, copies.Place{Name: name, Store: far.NewMemStore(1<<20, 64)})
	}
	store, err := copies.Open(copies.Config{Places: places, Copies: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	h, err := far.NewHeap(store, far.Config{Local: 8 << 20})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer h.Close()
	m := h.NewByteMap("values")
	value := make([]byte, 10_000)
	for i := range 2000 {
		if err := m.Set(context.Background(), fmt.Append(nil, i), far.Entry{Value: value}); err != nil {
			fmt.Println(err)
			return
		}
	}
	at := 0
	for _, p := range store.Stats().Places {
		at += p.Copies
	}
	fmt.Println("copies of each segment:", at/store.Stats().Segments)
	// Output: copies of each segment: 2
}
