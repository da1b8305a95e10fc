// Command farmap keeps more data in a map than its memory budget holds.
//
// Start a node, then this:
//
//	go run ./cmd/polder node --lend 1GiB
//	go run ./examples/farmap
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"

	"polder/far"
	"polder/far/remote"
	"polder/pool"
)

func main() {
	node := flag.String("node", "127.0.0.1:7070", "address of a memory node")
	flag.Parse()
	if err := run(context.Background(), *node); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, node string) (err error) {
	// Borrow memory from one or more nodes.
	lent, err := pool.Dial(ctx, node)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lent.Close()) }()

	// A heap with 16 MiB of this process's memory, and the rest borrowed.
	heap, err := far.NewHeap(remote.NewStore(lent), far.Config{Local: 16 << 20})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, heap.Close()) }()
	pages := heap.NewByteMap("pages")

	// Store eight times the budget.
	const n, size = 32_768, 4 << 10
	page := make([]byte, size)
	for i := range n {
		key := fmt.Appendf(nil, "page:%d", i)
		copy(page, key)
		if err := pages.Set(ctx, key, far.Entry{Value: page}); err != nil {
			return err
		}
	}

	// Read it back. An entry that is local is copied. An entry that is far is
	// fetched, and nothing else with it: once, however many goroutines ask for it.
	var buf []byte
	for i := range n {
		key := fmt.Appendf(nil, "page:%d", i)
		e, err := pages.Get(ctx, key, buf[:0])
		if err != nil {
			return err
		}
		buf = e.Value
		if len(e.Value) != size || !bytes.HasPrefix(e.Value, key) {
			return fmt.Errorf("%s is not what was stored", key)
		}
	}

	s := heap.Stats()
	fmt.Printf("%d pages, %d MiB, all read back; %d MiB of memory were used here, %d entries were fetched\n",
		pages.Len(), n*size>>20, s.Resident>>20, s.Fetches)
	return nil
}
