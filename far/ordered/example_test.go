package ordered_test

import (
	"context"
	"fmt"
	"log"

	"polder/far"
	"polder/far/ordered"
)

// Words in order: which come between two others, which is in the middle, how many are less than one.
func Example() {
	heap, err := far.NewHeap(far.NewMemStore(1<<20, 64), far.Config{Local: 4 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer heap.Close()
	words, err := ordered.NewMap[string](heap, ordered.Config[int]{Name: "words"})
	if err != nil {
		log.Fatal(err)
	}
	defer words.Free()

	ctx := context.Background()
	for i, w := range []string{"polder", "dike", "sluice", "mill", "canal"} {
		if err := words.Set(ctx, w, i); err != nil {
			log.Fatal(err)
		}
	}
	s := heap.NewScope()
	defer s.Close()
	for w, i := range words.Range(s, "d", "q") {
		fmt.Println(w, i)
	}
	if err := s.Err(); err != nil {
		log.Fatal(err)
	}
	middle, _, _, err := words.At(ctx, words.Len()/2)
	if err != nil {
		log.Fatal(err)
	}
	below, err := words.Rank(ctx, "levee")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(middle, below)
	// Output:
	// dike 1
	// mill 3
	// polder 0
	// mill 2
}
