package malloc_test

import (
	"context"
	"fmt"
	"log"

	"polder/memnode"
	"polder/pool"
	"polder/pool/finemem"
	"polder/pool/malloc"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// lend starts a memory node on this host, as "polder node --manager finemem --chunk
// 4KiB" does.
func lend() (addr string, stop func()) {
	dev, err := tcp.NewDevice(softnic.Config{})
	if err != nil {
		log.Fatal(err)
	}
	node, err := memnode.New(dev, memnode.Config{Lend: 16 << 20, ChunkSize: 4096, Manager: finemem.Name})
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
	p, err := pool.DialTCP(ctx, tcp.Config{}, pool.Config{Manager: finemem.Manager{}}, addr)
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()

	heap, err := malloc.New(p, malloc.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer heap.Close(ctx)
	b, err := heap.Alloc(ctx, 13)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := b.Chunk.WriteContext(ctx, []byte("thirteen here"), b.Off); err != nil {
		log.Fatal(err)
	}
	got := make([]byte, b.Size)
	if _, err := b.Chunk.ReadContext(ctx, got, b.Off); err != nil {
		log.Fatal(err)
	}
	s := heap.Stats()
	fmt.Printf("%s: %d bytes live, %d taken from the node\n", got, s.Live, s.Taken)
	if err := heap.Free(ctx, b); err != nil {
		log.Fatal(err)
	}
	// Output: thirteen here: 13 bytes live, 4096 taken from the node
}
