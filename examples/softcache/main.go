// Command softcache keeps results that are expensive to compute in memory that
// nobody needs at the moment.
//
//	go run ./examples/softcache
//
// With a coordinator, the cache grows into whatever memory is idle on this
// host, and gives it back when somebody else needs it:
//
//	go run ./cmd/polder coordinator --socket /tmp/soft.sock
//	go run ./examples/softcache -coordinator /tmp/soft.sock
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"time"

	"polder/soft"
)

func main() {
	coordinator := flag.String("coordinator", "", "path of the coordinator's socket; without it, the cache has 32 MiB")
	flag.Parse()
	if err := run(context.Background(), *coordinator); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, coordinator string) (err error) {
	// The memory: 32 MiB, until a coordinator says otherwise.
	heap, err := soft.Open(soft.Config{Budget: 32 << 20, Coordinator: coordinator})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, heap.Close()) }()

	// A cache in this memory. A value that is not there, or not there any more, is
	// computed: once, however many goroutines ask for it at the same time.
	digests, err := soft.NewPool(heap, soft.PoolConfig[int, [4096]byte]{
		Name: "digests",
		TTL:  time.Hour,
		Rebuild: func(_ context.Context, key int) (page [4096]byte, err error) {
			sum := sha256.Sum256(fmt.Append(nil, key))
			for i := 0; i < len(page); i += len(sum) {
				copy(page[i:], sum[:])
				sum = sha256.Sum256(sum[:])
			}
			return page, nil
		},
	})
	if err != nil {
		return err
	}
	defer digests.Close()

	// Ask for twice as many pages as there is memory for, some more often than others.
	const requests = 100_000
	often := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.05, 1, 16_383)
	for range requests {
		key := int(often.Uint64())
		page, err := digests.GetOrRebuild(ctx, key)
		if err != nil {
			return err
		}
		if want := sha256.Sum256(fmt.Append(nil, key)); string(page[:32]) != string(want[:]) {
			return fmt.Errorf("page %d is another one", key)
		}
	}
	s := heap.Stats()
	fmt.Printf("%d requests, %d hits\n", requests, s.Hits)
	fmt.Printf("%d pages were computed, which took %v; the cache may use %d MiB now\n",
		s.Rebuilds, s.RebuildTime.Round(time.Millisecond), s.Budget>>20)
	return nil
}
