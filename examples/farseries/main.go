// Command farseries keeps a day of a web server's requests in two ordered maps that are larger
// than its memory: by time, and by how long the requests took. The requests of a minute are a
// range of the first map, and a percentile is a rank of the second.
//
//	go run ./examples/farseries
//	go run ./examples/farseries -node 127.0.0.1:7070
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"time"

	"polder/far"
	"polder/far/ordered"
	"polder/far/remote"
	"polder/pool"
)

// request is a line of the log. As a value of a far map it may hold strings.
type request struct {
	Path   string
	Status int16
	Took   time.Duration
}

func main() {
	node := flag.String("node", "", "address of a memory node; without one, far memory is this process's own")
	n := flag.Int("requests", 200_000, "of the day")
	flag.Parse()
	if err := run(context.Background(), *node, *n, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, node string, n int, out io.Writer) error {
	var store far.Store = far.NewMemStore(1<<20, 256)
	if node != "" {
		lent, err := pool.Dial(ctx, node)
		if err != nil {
			return err
		}
		defer lent.Close()
		store = remote.NewStore(lent)
	}
	heap, err := far.NewHeap(store, far.Config{Local: 4 << 20})
	if err != nil {
		return err
	}
	defer heap.Close()
	byTime, err := ordered.NewMap[int64](heap, ordered.Config[request]{Name: "by time"}) // in nanoseconds
	if err != nil {
		return err
	}
	// The keys are microseconds in the upper bits, and a number in the lower bits that makes the key unique.
	byTook, err := ordered.NewMap[uint64](heap, ordered.Config[int64]{Name: "by duration"})
	if err != nil {
		return err
	}
	midnight := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		at := midnight.Add(time.Duration(i) * 24 * time.Hour / time.Duration(n)).UnixNano()
		q := request{Path: fmt.Sprintf("/item/%d", r.IntN(5000)), Status: 200, Took: time.Duration(r.ExpFloat64() * float64(20*time.Millisecond))}
		if r.IntN(200) == 0 {
			q.Status, q.Took = 503, q.Took+time.Second
		}
		if err := byTime.Set(ctx, at, q); err != nil {
			return err
		}
		if err := byTook.Set(ctx, uint64(q.Took.Microseconds())<<32|uint64(i), at); err != nil {
			return err
		}
	}

	s := heap.NewScope()
	defer s.Close()
	noon, failed, all := midnight.Add(12*time.Hour), 0, 0
	for _, q := range byTime.Range(s, noon.UnixNano(), noon.Add(time.Minute).UnixNano()) {
		if all++; q.Status >= 500 {
			failed++
		}
	}
	if err := s.Err(); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d requests, %d in the minute from noon on, of which %d failed\n", byTime.Len(), all, failed)
	for _, percent := range []int{50, 99} {
		took, _, _, err := byTook.At(ctx, byTook.Len()*percent/100)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%d%% took less than %v\n", percent, time.Duration(took>>32)*time.Microsecond)
	}
	second, err := byTook.Rank(ctx, uint64(time.Second.Microseconds())<<32)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d took a second or more; the slowest:\n", byTook.Len()-second)
	slowest := 0
	for _, at := range byTook.Backward(s) {
		q, _, err := byTime.Get(ctx, at)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "\t%s %d %s %v\n", time.Unix(0, at).UTC().Format(time.TimeOnly), q.Status, q.Path, q.Took.Round(time.Microsecond))
		if slowest++; slowest == 3 {
			break
		}
	}
	if err := s.Err(); err != nil {
		return err
	}
	_, err = io.WriteString(out, heap.Explain())
	return err
}
