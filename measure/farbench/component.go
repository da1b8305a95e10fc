package farbench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"polder/far"
	"polder/measure/benchout"
)

// What far component measures with.
const (
	columnLength   = 4 << 20   // int64s
	componentRAM   = 128 << 20 // that the client may use at the node
	structureLocal = 8 << 20   // local memory of a heap with a column, or a map
	tableKeys      = 400_000   // of a map; its words do not fit into local memory
	tableValue     = 64
)

// RunComponent compares three ways to compute something from data: the memory node computes it where the data is, the
// program reads the data from there, or the data is in local memory. A far array, most of it evacuated, is added up
// and searched, and some of its elements are brought, copied and shuffled. Then keys are looked up in a map; the
// leaves of its index are far, too.
func RunComponent(ctx context.Context, o Options) error {
	for _, fabric := range fabrics {
		if err := o.component(ctx, fabric); err != nil {
			return err
		}
	}
	return nil
}

func (o *Options) component(ctx context.Context, fabric string) (err error) {
	l, err := startLender(ctx, o.Polder, fabric, 512<<20,
		"--component-memory", fmt.Sprint(componentRAM), "--component-client-memory", fmt.Sprint(componentRAM))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	if err := o.structure(ctx, fabric, l); err != nil {
		return err
	}
	if err := o.move(ctx, fabric, l); err != nil {
		return err
	}
	return o.lookup(ctx, fabric, l)
}

// A way is one of several ways to get the same result.
type way struct {
	name string
	do   func() error
}

// compare measures three ways, in turns: reading, having it computed, and local memory, in this order. It does so
// once for each number of callers in crowds.
func (o *Options) compare(what string, rounds int, span time.Duration, ways [3]way, crowds ...int) error {
	for _, callers := range crowds {
		var rates [3][]float64
		for range rounds {
			for i, w := range ways {
				rate, err := crowd(callers, span, func(id int, over func() bool) (n int, err error) {
					for ; !over() && err == nil; n++ {
						err = w.do()
					}
					return n, err
				})
				if err != nil {
					return fmt.Errorf("cannot measure %s of %s: %w", w.name, what, err)
				}
				rates[i] = append(rates[i], rate)
			}
		}
		for i, w := range ways {
			row := benchout.Row{Bench: "far component", Case: what + ", 1 caller", Metric: w.name, Unit: "ms"}
			value, better := func(rate float64) float64 { return 1e3 / rate }, benchout.Lower
			if callers > 1 {
				row.Case, row.Unit = fmt.Sprintf("%s, %d callers", what, callers), "ops/s"
				value, better = func(rate float64) float64 { return rate }, benchout.Higher
			}
			row.Value = value(median(rates[i]))
			if i == 1 {
				row = row.Against(ways[0].name, value(median(rates[0])), better)
			}
			if err := o.Out.Print(row); err != nil {
				return err
			}
		}
	}
	return nil
}

// structure measures sums of an array, and a search in it. Most of the array is far: it is read, or the node computes
// where it is.
func (o *Options) structure(ctx context.Context, fabric string, l *lender) (err error) {
	heap, err := far.NewHeap(l.store(), far.Config{Local: structureLocal})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, heap.Close()) }()
	a, err := far.NewArray[int64](ctx, heap, columnLength, far.StructureConfig{Name: "column"})
	if err != nil {
		return err
	}
	local := make([]int64, columnLength)
	for i := range local {
		local[i] = int64(i)
	}
	if err := a.Write(ctx, local, 0); err != nil {
		return err
	}
	x := far.Itself[int64]()
	rounds, span, crowds := 7, 300*time.Millisecond, []int{1, 16}
	if o.Short { // with 16 callers that read at once, a read takes many seconds
		rounds, span, crowds = 3, 100*time.Millisecond, crowds[:1]
	}
	for _, c := range []struct {
		name   string
		least  int64 // the least element that counts
		search bool
	}{
		{"array, sum of 32 MiB", 0, false},
		{"array, sum where not less", columnLength / 2, false},
		{"array, search for one in 1000", columnLength - columnLength/1000, true},
	} {
		want := int64(columnLength-1)*columnLength/2 - (c.least-1)*c.least/2
		check := func(sum int64, err error) error {
			if err == nil && sum != want {
				err = fmt.Errorf("the sum is %d, want %d", sum, want)
			}
			return err
		}
		conditions := []far.Condition[int64]{x.Is(far.IfGreaterOrEqual, c.least)}
		if c.least == 0 {
			conditions = nil
		}
		if err := o.compare(fabric+", "+c.name, rounds, span, [3]way{
			{"read", func() error {
				var sum int64
				s := heap.NewScope()
				defer s.Close()
				s.SetContext(ctx)
				for _, chunk := range a.StreamChunks(s, 0, a.Len()) {
					for _, v := range chunk {
						if v >= c.least {
							sum += v
						}
					}
				}
				return check(sum, s.Err())
			}},
			{"computed", func() error {
				if c.search { // each element is its own index
					var sum int64
					for i, err := range far.Filter(ctx, a, conditions...) {
						if err != nil {
							return err
						}
						sum += int64(i)
					}
					return check(sum, nil)
				}
				s, err := far.Aggregate(ctx, a, x, conditions...)
				return check(s.SumInt, err)
			}},
			{"local", func() error {
				var sum int64
				for _, v := range local {
					if v >= c.least {
						sum += v
					}
				}
				return check(sum, nil)
			}},
		}, crowds...); err != nil {
			return err
		}
	}
	return nil
}

// move measures bringing elements of an array, most of which is far, to local memory or to another array: random
// elements, and elements that meet a condition. Either the objects with the elements are read, or the node takes the
// elements out of them where they are.
func (o *Options) move(ctx context.Context, fabric string, l *lender) (err error) {
	const some, shuffled = 4096, 1 << 16
	local, indices, vs := make([]int64, columnLength), make([]int, shuffled), make([]int64, shuffled)
	for i := range local {
		local[i] = int64(i) * 7 % 1000
	}
	for k := range indices {
		indices[k] = rand.IntN(columnLength)
		vs[k] = int64(indices[k])
	}
	var src, order, dst [2]*far.Array[int64] // of each heap
	for i, s := range []far.Store{struct{ far.Store }{l.store()}, l.store()} {
		heap, failed := far.NewHeap(s, far.Config{Local: structureLocal})
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, heap.Close()) }()
		for _, a := range []struct {
			to   **far.Array[int64]
			name string
			vs   []int64
		}{{&src[i], "column", local}, {&order[i], "order", vs}, {&dst[i], "moved", vs}} {
			if *a.to, err = far.NewArray[int64](ctx, heap, len(a.vs), far.StructureConfig{Name: a.name}); err == nil {
				err = (*a.to).Write(ctx, a.vs, 0)
			}
			if err != nil {
				return err
			}
		}
	}
	x := far.Itself[int64]()
	rounds, span := 7, 400*time.Millisecond
	if o.Short {
		rounds, span = 3, 100*time.Millisecond
	}
	for _, c := range []struct {
		name  string
		far   func(i int) error // in heap i
		local func()
	}{
		{fmt.Sprintf("gather of %d at random", some), func(i int) error {
			for k := range some {
				indices[k] = rand.IntN(columnLength)
			}
			err := far.Gather(ctx, vs[:some], src[i], indices[:some])
			for k, at := range indices[:some] {
				if err == nil && vs[k] != local[at] {
					err = fmt.Errorf("element %d is %d, want %d", at, vs[k], local[at])
				}
			}
			return err
		}, func() {
			for k := range some {
				indices[k] = rand.IntN(columnLength)
				vs[k] = local[indices[k]]
			}
		}},
		{fmt.Sprintf("shuffle of %d at random", shuffled), func(i int) error {
			return far.Shuffle(ctx, dst[i], src[i], order[i])
		}, func() {
			for k, i := range indices {
				vs[k] = local[i]
			}
		}},
		{"copy of one in 1000", func(i int) error {
			n, err := far.Copy(ctx, dst[i], src[i], x.Is(far.IfEqual, 42))
			if want := (columnLength - 6 + 999) / 1000; err == nil && n != want { // every 1000th from 6 on
				err = fmt.Errorf("%d elements were copied, want %d", n, want)
			}
			return err
		}, func() {
			n := 0
			for _, v := range local {
				if v == 42 {
					vs[n] = v
					n++
				}
			}
		}},
	} {
		if err := o.compare(fabric+", "+c.name, rounds, span, [3]way{
			{"read", func() error { return c.far(0) }},
			{"computed", func() error { return c.far(1) }},
			{"local", func() error { c.local(); return nil }},
		}, 1); err != nil { // with 16 callers that read at once, a read takes many seconds
			return err
		}
	}
	return nil
}

// lookup measures reads of random keys, one or 256 in a call, from a map whose index is far. Either the leaf and then
// the entry are read, or the node finds the entry where the leaf is.
func (o *Options) lookup(ctx context.Context, fabric string, l *lender) (err error) {
	type value [tableValue]byte
	open := func(s far.Store) (*far.Heap, *far.Map[uint64, value], error) {
		heap, err := far.NewHeap(s, far.Config{Local: structureLocal})
		if err != nil {
			return nil, nil, err
		}
		m, err := far.NewMap(heap, far.MapConfig[uint64, value]{})
		for k := uint64(0); k < tableKeys && err == nil; k++ {
			err = m.Set(ctx, k, value{byte(k)})
		}
		return heap, m, err
	}
	var maps [2]*far.Map[uint64, value]
	for i, s := range []far.Store{struct{ far.Store }{l.store()}, l.store()} {
		heap, m, failed := open(s)
		if heap != nil {
			defer func() { err = errors.Join(err, heap.Close()) }()
		}
		if failed != nil {
			return failed
		}
		maps[i] = m
	}
	local := make(map[uint64]value)
	for k := range uint64(tableKeys) {
		local[k] = value{byte(k)}
	}
	rounds, span := 15, 400*time.Millisecond
	if o.Short {
		rounds, span = 5, 150*time.Millisecond
	}
	for _, n := range []int{1, 256} {
		type some struct {
			keys []uint64
			vs   []value
			ok   []bool
		}
		pool := sync.Pool{New: func() any { return &some{make([]uint64, n), make([]value, n), make([]bool, n)} }}
		read := func(get func(s *some) error) func() error {
			return func() error {
				s := pool.Get().(*some)
				defer pool.Put(s)
				for i := range s.keys {
					s.keys[i] = rand.Uint64N(tableKeys)
				}
				err := get(s)
				for i, k := range s.keys {
					if err == nil && (!s.ok[i] || s.vs[i][0] != byte(k)) {
						err = fmt.Errorf("key %d is %v, %v", k, s.vs[i][0], s.ok[i])
					}
				}
				return err
			}
		}
		from := func(m *far.Map[uint64, value]) func() error {
			return read(func(s *some) (err error) {
				if n == 1 {
					s.vs[0], s.ok[0], err = m.Get(ctx, s.keys[0])
					return err
				}
				return m.GetMany(ctx, s.keys, s.vs, s.ok)
			})
		}
		if err := o.compare(fmt.Sprintf("%s, lookup of %d", fabric, n), rounds, span, [3]way{
			{"read", from(maps[0])},
			{"computed", from(maps[1])},
			{"local", read(func(s *some) error {
				for i, k := range s.keys {
					s.vs[i], s.ok[i] = local[k]
				}
				return nil
			})},
		}, 1, 16); err != nil {
			return err
		}
	}
	return nil
}
