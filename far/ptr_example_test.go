package far_test

import (
	"context"
	"fmt"
	"log"

	"polder/far"
)

// A program keeps more accounts than its budget of local memory holds.
func ExamplePtr() {
	type account struct {
		Owner   [16]byte
		Balance int64
	}
	heap, err := far.NewHeap(far.NewMemStore(1<<20, 64), far.Config{Local: far.MinLocal})
	if err != nil {
		log.Fatal(err)
	}
	defer heap.Close()
	accounts, err := far.NewClass[account](heap, far.ClassConfig{Name: "accounts"})
	if err != nil {
		log.Fatal(err)
	}
	p, err := accounts.New(context.Background(), account{Balance: 100})
	if err != nil {
		log.Fatal(err)
	}

	s := heap.NewScope() // once for every goroutine
	defer s.Close()

	s.Enter() // what is dereferenced stays until Leave
	if a := p.DerefMut(s); a != nil {
		a.Balance -= 30
	}
	fmt.Println(p.Deref(s).Balance, s.Err())
	s.Leave()

	p.Free()
	// Output: 70 <nil>
}
