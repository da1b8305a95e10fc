// Command farpagerank ranks the nodes of a graph that is larger than its memory. The
// graph comes from a file with a line "from to" for every edge, or is made up.
//
//	go run ./examples/farpagerank
//	go run ./examples/farpagerank -node 127.0.0.1:7070 graph.edges
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"slices"
	"strings"

	"polder/far"
	"polder/far/remote"
	"polder/pool"
)

func main() {
	node := flag.String("node", "", "address of a memory node; without one, far memory is this process's own")
	flag.Parse()
	if err := run(context.Background(), *node, strings.Join(flag.Args(), " "), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, node, file string, out io.Writer) error {
	var store far.Store = far.NewMemStore(1<<20, 256)
	if node != "" {
		lent, err := pool.Dial(ctx, node)
		if err != nil {
			return err
		}
		defer lent.Close()
		store = remote.NewStore(lent)
	}
	heap, err := far.NewHeap(store, far.Config{Local: 8 << 20})
	if err != nil {
		return err
	}
	defer heap.Close()
	edges, err := far.NewVector[[2]uint32](heap, far.StructureConfig{Name: "edges", Group: 512})
	var degree []float64 // of every node, on the Go heap: there are many more edges
	if err != nil {
		return err
	}
	err = read(file, func(from, to uint32) error {
		degree = append(degree, make([]float64, max(0, int(max(from, to))+1-len(degree)))...)
		degree[from]++
		return edges.Append(ctx, [2]uint32{from, to})
	})
	n, next := float64(len(degree)), make([]float64, len(degree))
	rank := slices.Repeat([]float64{1 / n}, len(degree))
	for s, round := heap.NewScope(), 0; round < 10 && err == nil; round++ {
		clear(next)
		// Chunks come in order, so they are fetched before they are needed.
		for _, part := range edges.StreamChunks(s, 0, edges.Len()) {
			for _, e := range part {
				next[e[1]] += rank[e[0]] / degree[e[0]]
			}
		}
		err = s.Err()
		for i := range rank {
			rank[i] = 0.15/n + 0.85*next[i]
		}
	}
	if err != nil || n == 0 {
		return err
	}
	best := slices.Max(rank)
	_, err = fmt.Fprintf(out, "%d nodes, %d edges; node %d has the highest rank, %.6f.\n%s", len(rank), edges.Len(), slices.Index(rank, best), best, heap.Explain())
	return err
}

// read calls edge for every edge of a file, or, without a file, of a made-up graph of 2,000,000 edges.
func read(file string, edge func(from, to uint32) error) (err error) {
	if r := rand.New(rand.NewPCG(1, 1)); file == "" {
		for i := 0; i < 2_000_000 && err == nil; i++ {
			err = edge(r.Uint32N(50_000), min(r.Uint32N(50_000), r.Uint32N(50_000)))
		}
		return err
	}
	text, err := os.ReadFile(file)
	for line := range bytes.Lines(text) {
		var from, to uint32
		if _, err := fmt.Sscan(string(line), &from, &to); err != nil || max(from, to) >= 1<<24 {
			return fmt.Errorf("%s: %q is not two numbers less than 1<<24", file, line)
		} else if err := edge(from, to); err != nil {
			return err
		}
	}
	return err
}
