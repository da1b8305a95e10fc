package pool_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"strings"

	"polder/memnode"
	"polder/pool"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// lend starts a memory node on this host, as "polder node" does.
func lend() (addr string, stop func()) {
	dev, err := tcp.NewDevice(softnic.Config{})
	if err != nil {
		log.Fatal(err)
	}
	node, err := memnode.New(dev, memnode.Config{Lend: 64 << 20})
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

func ExampleDial() {
	addr, stop := lend()
	defer stop()

	ctx := context.Background()
	p, err := pool.Dial(ctx, addr)
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()

	chunk, err := p.Alloc(ctx, 1<<20)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := chunk.WriteAt([]byte("far away"), 4096); err != nil {
		log.Fatal(err)
	}
	buf := make([]byte, 8)
	if _, err := chunk.ReadAt(buf, 4096); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, of %d bytes\n", buf, chunk.Size())
	// Output: far away, of 1048576 bytes
}

func ExampleChunk_CompareAndSwap() {
	addr, stop := lend()
	defer stop()
	ctx := context.Background()
	p, err := pool.Dial(ctx, addr)
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	chunk, err := p.Alloc(ctx, 1<<20)
	if err != nil {
		log.Fatal(err)
	}

	prev, swapped, err := chunk.CompareAndSwap(ctx, 0, 0, 41)
	fmt.Println(prev, swapped, err)
	prev, err = chunk.FetchAdd(ctx, 0, 1)
	fmt.Println(prev, err)
	prev, swapped, err = chunk.CompareAndSwap(ctx, 0, 41, 0)
	fmt.Println(prev, swapped, err)
	// Output:
	// 0 true <nil>
	// 41 <nil>
	// 42 false <nil>
}

func ExamplePool_Do() {
	addr, stop := lend()
	defer stop()
	ctx := context.Background()
	p, err := pool.Dial(ctx, addr)
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	a, err := p.Alloc(ctx, 1<<20)
	if err != nil {
		log.Fatal(err)
	}
	b, err := p.Alloc(ctx, 1<<20)
	if err != nil {
		log.Fatal(err)
	}

	// One round trip for all of them.
	ops := []pool.Op{
		{Kind: pool.OpWrite, Chunk: a, Off: 100, Buf: []byte("one")},
		{Kind: pool.OpWrite, Chunk: b, Off: 200, Buf: []byte("two")},
		{Kind: pool.OpFetchAdd, Chunk: b, Off: 0, New: 2},
		{Kind: pool.OpRead, Chunk: a, Off: int64(a.Size()), Buf: make([]byte, 1)},
	}
	fmt.Println(p.Do(ctx, ops) != nil)
	for _, op := range ops {
		fmt.Println(op.Kind, op.Err == nil)
	}
	// Output:
	// true
	// write true
	// write true
	// fetch-add true
	// read false
}

// A chunk is an io.ReaderAt and an io.WriterAt over memory of any size, here larger
// than what the node lends at a time.
func ExamplePool_Alloc() {
	addr, stop := lend()
	defer stop()
	ctx := context.Background()
	p, err := pool.Dial(ctx, addr)
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()

	chunk, err := p.Alloc(ctx, 10<<20)
	if err != nil {
		log.Fatal(err)
	}
	line := strings.NewReader("a file could be copied here\n")
	if _, err := io.Copy(io.NewOffsetWriter(chunk, 3<<20), line); err != nil {
		log.Fatal(err)
	}
	got, err := bufio.NewReader(io.NewSectionReader(chunk, 3<<20, chunk.Size())).ReadString('\n')
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d bytes: %s", chunk.Size(), got)
	if _, err := p.Alloc(ctx, 100<<20); errors.Is(err, pool.ErrNoMemory) {
		fmt.Println("so much is not there, and nothing is taken of it")
	}
	if err := chunk.Free(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 10485760 bytes: a file could be copied here
	// so much is not there, and nothing is taken of it
}
