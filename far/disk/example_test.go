package disk_test

import (
	"bytes"
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

// A list of objects and a vector that are there again after the program has ended.
func Example_objects() {
	type station struct {
		Name [16]byte
		Next far.Ref[station]
	}
	dir, err := os.MkdirTemp("", "polder")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	for run := range 2 {
		store, err := disk.Open(disk.Config{Dir: dir, Size: 1 << 30})
		must(err)
		heap, err := far.Open(ctx, store, far.Config{Local: 8 << 20})
		must(err)
		stations, err := far.NewClass[station](heap, far.ClassConfig{Name: "stations", Keep: true})
		must(err)
		delays, err := far.NewVector[float64](heap, far.StructureConfig{Name: "delays", Keep: true})
		must(err)
		if run == 0 {
			var next far.Ref[station]
			for _, name := range []string{"Utrecht", "Gouda", "Delft"} {
				s := station{Next: next}
				copy(s.Name[:], name)
				p, err := stations.New(ctx, s)
				must(err)
				next = p.Ref()
			}
			must(stations.SetNamed("first", next.Ptr(heap)))
			must(delays.Append(ctx, 1.5, 4))
		} else {
			for p, _ := stations.Named("first"); !p.IsNil(); {
				s, err := p.Load(ctx)
				must(err)
				fmt.Printf("%s ", bytes.TrimRight(s.Name[:], "\x00"))
				p = s.Next.Ptr(heap)
			}
			d, err := delays.Get(ctx, 1)
			must(err)
			fmt.Println(d)
		}
		must(heap.Close())
		must(store.Close())
	}
	// Output: Delft Gouda Utrecht 4
}
