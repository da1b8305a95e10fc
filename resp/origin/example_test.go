package origin_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"github.com/redis/go-redis/v9"

	"polder/internal/child"
	"polder/resp/origin"
	"polder/soft"
)

// A cache in 16 MiB of idle memory before a Redis.
func Example() {
	ctx := context.Background()
	elsewhere, err := child.StartRedis(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer elsewhere.Close()

	heap, err := soft.Open(soft.Config{Budget: 16 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer heap.Close()
	url, err := origin.ParseURL("redis://" + elsewhere.Addr)
	if err != nil {
		log.Fatal(err)
	}
	cache, err := origin.New(origin.Config{Heap: heap, URL: url})
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go cache.Serve(lis)

	c := redis.NewClient(&redis.Options{Addr: lis.Addr().String()})
	defer c.Close()
	fmt.Println(c.Set(ctx, "greeting", "hello", 0).Result())
	fmt.Println(c.Get(ctx, "greeting").Result()) // fetched
	fmt.Println(c.Get(ctx, "greeting").Result()) // from memory
	// Output:
	// OK <nil>
	// hello <nil>
	// hello <nil>
}
