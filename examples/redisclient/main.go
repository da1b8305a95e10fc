// Command redisclient talks to Polder as to any Redis server.
//
// Start a server, then this:
//
//	go run ./cmd/polder up
//	go run ./examples/redisclient
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:6379", "address of the server")
	flag.Parse()
	if err := run(context.Background(), *addr); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, addr string) (err error) {
	c := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { err = errors.Join(err, c.Close()) }()

	if err := c.Set(ctx, "session:42", "anna", 10*time.Minute).Err(); err != nil {
		return err
	}
	name, err := c.Get(ctx, "session:42").Result()
	if err != nil {
		return err
	}
	ttl, err := c.TTL(ctx, "session:42").Result()
	if err != nil {
		return err
	}
	fmt.Printf("session:42 is %s for another %v\n", name, ttl)

	// A pipeline: the server fetches all its far entries in one batch.
	pipe := c.Pipeline()
	for i := range 100 {
		pipe.HSet(ctx, fmt.Sprint("user:", i), "name", fmt.Sprint("user ", i), "visits", i)
	}
	visits := pipe.HIncrBy(ctx, "user:7", "visits", 1)
	if _, err := pipe.Exec(ctx); err != nil {
		return err
	}
	fmt.Println("user:7 has", visits.Val(), "visits")

	// An error reply that begins with LOST means that the value was in the
	// memory of a node that is gone; the key can be set again.
	if _, err := c.Get(ctx, "no such key").Result(); errors.Is(err, redis.Nil) {
		fmt.Println("no such key is, as it says, not there")
	}
	return nil
}
