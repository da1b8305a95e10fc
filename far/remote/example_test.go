package remote_test

import (
	"context"
	"fmt"
	"log"

	"polder/far"
	"polder/far/remote"
	"polder/memnode"
	"polder/memnode/component"
	"polder/pool"
	"polder/verbs/softnic"
	"polder/verbs/tcp"
)

// startNode lends memory, with components, as polder node does.
func startNode() (addr string, stop func()) {
	dev, err := tcp.NewDevice(softnic.Config{})
	if err != nil {
		log.Fatal(err)
	}
	node, err := memnode.New(dev, memnode.Config{Lend: 64 << 20, Components: component.Config{Memory: 16 << 20}})
	if err != nil {
		log.Fatal(err)
	}
	listener, err := tcp.Listen(dev, "127.0.0.1:0", tcp.Config{})
	if err != nil {
		log.Fatal(err)
	}
	go node.Serve(listener)
	return listener.Addr(), func() { node.Close(); dev.Close() }
}

// A column of numbers that is mostly far is added up where it lies, here at a node over TCP: what is local is
// looked through here, what is far at the node.
func ExampleNewStore() {
	addr, stop := startNode() // or polder node --component-memory 16MiB
	defer stop()
	ctx := context.Background()
	p, err := pool.Dial(ctx, addr)
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	heap, err := far.NewHeap(remote.NewStore(p), far.Config{Local: 4 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer heap.Close()
	type trip struct {
		Miles float32
		Zone  int32
		Fare  float64
	}
	trips, err := far.NewVector[trip](heap, far.StructureConfig{Name: "trips"})
	if err != nil {
		log.Fatal(err)
	}
	day := make([]trip, 1000)
	for range 500 { // 8 MB
		for i := range day {
			day[i] = trip{Miles: float32(i % 20), Zone: int32(i % 7), Fare: float64(3 + i%20)}
		}
		if err := trips.Append(ctx, day...); err != nil {
			log.Fatal(err)
		}
	}

	miles := far.FieldOf(func(t *trip) *float32 { return &t.Miles })
	fare := far.FieldOf(func(t *trip) *float64 { return &t.Fare })
	long, err := far.Aggregate(ctx, trips, fare, miles.Is(far.IfGreaterOrEqual, 19))
	fmt.Println(long.Count, long.SumFloat/float64(long.Count), err)
	for i, err := range far.Filter(ctx, trips, fare.Is(far.IfLess, 4), far.Within[trip](100, 140)) {
		fmt.Println(i, err)
	}
	fmt.Println(trips.Stats().Computed > 0)
	// Output:
	// 25000 22 <nil>
	// 100 <nil>
	// 120 <nil>
	// true
}
