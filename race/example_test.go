package race_test

import (
	"context"
	"fmt"
	"log"

	"polder/memnode"
	"polder/pool"
	"polder/race"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// lend starts a memory node on this host, as "polder node" does.
func lend() (addr string, stop func()) {
	dev, err := tcp.NewDevice(softnic.Config{})
	if err != nil {
		log.Fatal(err)
	}
	node, err := memnode.New(dev, memnode.Config{Lend: 16 << 20, ChunkSize: 64 << 10})
	if err != nil {
		log.Fatal(err)
	}
	l, err := tcp.Listen(dev, "127.0.0.1:0", tcp.Config{})
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- node.Serve(l) }()
	return l.Addr(), func() {
		node.Close()
		<-done
		dev.Close()
	}
}

func Example() {
	addr, stop := lend()
	defer stop()
	ctx := context.Background()
	p, err := pool.Dial(ctx, addr)
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()

	t, err := race.New(ctx, p)
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close(ctx)
	for _, city := range []string{"Lelystad", "Almere", "Emmeloord"} {
		if err := t.Put(ctx, []byte(city), []byte("Flevoland")); err != nil {
			log.Fatal(err)
		}
	}
	if _, err := t.Delete(ctx, []byte("Almere")); err != nil {
		log.Fatal(err)
	}
	for _, city := range []string{"Lelystad", "Almere"} {
		value, found, err := t.Get(ctx, []byte(city), nil)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %q, %v\n", city, value, found)
	}
	// Output:
	// Lelystad: "Flevoland", true
	// Almere: "", false
}
