package disk_test

import (
	"context"
	"fmt"
	"os"

	"polder/far"
	"polder/far/disk"
)

// A map that is larger than its memory, and is there again after the program has ended.
func Example() {
	dir, err := os.MkdirTemp("", "polder")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	for run := range 2 {
		store, err := disk.Open(disk.Config{Dir: dir, Size: 1 << 30})
		if err != nil {
			panic(err)
		}
		heap, err := far.Open(ctx, store, far.Config{Local: 8 << 20})
		if err != nil {
			panic(err)
		}
		words := heap.NewByteMap("words")
		if run == 0 {
			err = words.Set(ctx, []byte("polder"), far.Entry{Value: []byte("land won from the water")})
		} else {
			var e far.Entry
			e, err = words.Get(ctx, []byte("polder"), nil)
			fmt.Printf("%s\n", e.Value)
		}
		if err != nil {
			panic(err)
		}
		if err := heap.Close(); err != nil {
			panic(err)
		}
		if err := store.Close(); err != nil {
			panic(err)
		}
	}
	// Output: land won from the water
}
