package farbench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"polder/far"
	"polder/far/remote"
	"polder/measure/benchout"
)

// What far component measures with.
const (
	tableKeys    = 100_000
	tableValue   = 64
	tableBucket  = 64        // bytes of an index that a one-sided reader reads first
	columnLength = 4 << 20   // int64s
	readMemory   = 32 << 20  // that is read
	componentRAM = 128 << 20 // of the client at the node
	sumPart      = 4 << 20   // of readMemory that a caller who adds it up reads at once

	structureLocal = 8 << 20 // of a heap with a column
)

// RunComponent compares what the memory node's components do with what one-sided
// reads of the same data cost, and with the same in local memory: a miss of a hash
// table beside two reads of which the second needs the first, and the sum of a
// vector beside reading all of it. A far array, most of it evacuated, is added up and searched by reading it, and where its data
// is. And it says how much local memory a table's
// index takes that is not at the node.
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
	raw, err := newRawReader(ctx, l.pool, readMemory, tableValue)
	if err != nil {
		return err
	}
	d := remote.NewDevice(l.pool)
	if err := o.table(ctx, fabric, d, raw, l.cpu); err != nil {
		return err
	}
	if err := o.column(ctx, fabric, d, raw); err != nil {
		return err
	}
	if err := o.structure(ctx, fabric, l); err != nil {
		return err
	}
	return o.index(ctx, fabric, l)
}

// A way is one of several to get at the same thing.
type way struct {
	name string
	do   func(r *rand.Rand, buf []byte) error
}

// compare measures one-sided reads, a component and local memory, in this order,
// with one caller and with several, in turns. If there is a clock of CPU time, it
// also measures what an operation takes of that: on a machine that others use it
// is steadier than the time.
func (o *Options) compare(what, unit string, scale float64, rounds int, span time.Duration, ways [3]way, clock func() (time.Duration, error)) error {
	for _, callers := range []int{1, 16} {
		var rates [3][]float64
		var cpu [3]time.Duration
		var ops [3]float64
		for range rounds {
			for i, w := range ways {
				var before, after time.Duration
				var err error
				if clock != nil {
					if before, err = clock(); err != nil {
						return err
					}
				}
				begin := time.Now()
				rate, err := crowd(callers, span, func(id int, over func() bool) (n int, err error) {
					r, buf := rand.New(rand.NewPCG(uint64(id), 4)), make([]byte, sumPart)
					for ; !over() && err == nil; n++ {
						err = w.do(r, buf)
					}
					return n, err
				})
				if err != nil {
					return fmt.Errorf("cannot measure %s of %s: %w", w.name, what, err)
				}
				rates[i] = append(rates[i], rate)
				ops[i] += rate * time.Since(begin).Seconds()
				if clock != nil {
					if after, err = clock(); err != nil {
						return err
					}
				}
				cpu[i] += after - before
			}
		}
		for i, w := range ways {
			row := benchout.Row{Bench: "far component", Case: what + ", 1 caller", Metric: w.name, Unit: unit}
			value, better := func(rate float64) float64 { return scale / rate }, benchout.Lower
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
			if i == 1 && clock != nil {
				perOp := func(i int) float64 { return float64(cpu[i].Microseconds()) / ops[i] }
				row.Metric, row.Value, row.Unit = "its CPU time", perOp(1), "us/op"
				if err := o.Out.Print(row.Against(ways[0].name, perOp(0), benchout.Lower)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// structure measures sums of an array in a heap, and a search in it, of which most is far: by reading it and by having it
// computed where it is.
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
	rounds, span := 7, 300*time.Millisecond
	if o.Short {
		rounds, span = 3, 100*time.Millisecond
	}
	for _, c := range []struct {
		name   string
		least  int64 // that counts
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
		if err := o.compare(fabric+", "+c.name, "ms", 1e3, rounds, span, [3]way{
			{"read", func(*rand.Rand, []byte) error {
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
			{"computed", func(*rand.Rand, []byte) error {
				if c.search { // its elements are their indices
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
			{"local", func(*rand.Rand, []byte) error {
				var sum int64
				for _, v := range local {
					if v >= c.least {
						sum += v
					}
				}
				return check(sum, nil)
			}},
		}, nil); err != nil { // the node is a process of its own
			return err
		}
	}
	return nil
}

// table measures misses.
func (o *Options) table(ctx context.Context, fabric string, d far.Device, raw *rawReader, clock func() (time.Duration, error)) error {
	t, err := far.NewRemoteTable(ctx, d)
	if err != nil {
		return err
	}
	value := make([]byte, tableValue)
	if _, err := crowd(16, time.Hour, func(id int, over func() bool) (int, error) {
		for k := id; k < tableKeys && !over(); k += 16 {
			if err := t.Put(ctx, tableKey(k), value); err != nil {
				return 0, err
			}
		}
		return 0, nil
	}); err != nil {
		return err
	}
	var mu sync.RWMutex
	local := make(map[[8]byte][]byte)
	for k := range tableKeys {
		local[[8]byte(tableKey(k))] = make([]byte, tableValue)
	}
	rounds, span := 15, 400*time.Millisecond
	if o.Short {
		rounds, span = 5, 150*time.Millisecond
	}
	if err := o.compare(fabric+", lookup of 64 B", "us", 1e6, rounds, span, [3]way{
		{"two READs", func(r *rand.Rand, buf []byte) error { return raw.dependent(ctx, r, buf) }},
		{"component", func(r *rand.Rand, buf []byte) error {
			binary.LittleEndian.PutUint64(buf, uint64(r.IntN(tableKeys)))
			_, err := t.Get(ctx, buf[:8], buf[8:8])
			return err
		}},
		{"local", func(r *rand.Rand, buf []byte) error {
			binary.LittleEndian.PutUint64(buf, uint64(r.IntN(tableKeys)))
			mu.RLock()
			defer mu.RUnlock()
			if copy(buf[8:], local[[8]byte(buf)]) != tableValue {
				return errors.New("a key is missing")
			}
			return nil
		}},
	}, clock); err != nil {
		return err
	}
	return t.Close(ctx)
}

func tableKey(k int) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(k)) }

// index says what the index of a map costs that keeps it here.
func (o *Options) index(ctx context.Context, fabric string, l *lender) (err error) {
	heap, err := far.NewHeap(l.store(), far.Config{Local: 32 << 20})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, heap.Close()) }()
	m, err := far.NewMap(heap, far.MapConfig[uint64, [tableValue]byte]{})
	if err != nil {
		return err
	}
	for k := range uint64(tableKeys) {
		if err := m.Set(ctx, k, [tableValue]byte{}); err != nil {
			return err
		}
	}
	perKey := float64(heap.Stats().Index) / tableKeys
	return o.Out.Print(benchout.Row{
		Bench: "far component", Case: fabric + ", local index", Metric: "component", Unit: "B/key",
	}.Against("far.Map", perKey, benchout.Lower))
}

// dependent reads a bucket and then, where that says, an entry.
func (r *rawReader) dependent(ctx context.Context, rnd *rand.Rand, buf []byte) error {
	slots := r.slots(tableBucket)
	if _, err := r.chunk.ReadContext(ctx, buf[:tableBucket], int64(rnd.IntN(slots)*tableBucket)); err != nil {
		return err
	}
	at := (binary.LittleEndian.Uint64(buf) + rnd.Uint64()) % uint64(slots)
	_, err := r.chunk.ReadContext(ctx, buf[:tableValue], int64(at)*tableBucket)
	return err
}

// column measures sums.
func (o *Options) column(ctx context.Context, fabric string, d far.Device, raw *rawReader) error {
	v, err := far.NewRemoteVector[int64](ctx, d)
	if err != nil {
		return err
	}
	local := make([]int64, columnLength)
	for i := range local {
		local[i] = int64(i)
	}
	if err := v.Write(ctx, 0, local); err != nil {
		return err
	}
	rounds, span := 7, 300*time.Millisecond
	if o.Short {
		rounds, span = 3, 100*time.Millisecond
	}
	for _, c := range []struct {
		name  string
		where far.Where[int64]
		sum   int64
	}{
		{"sum of 32 MiB", far.Where[int64]{}, int64(columnLength) * (columnLength - 1) / 2},
		{"sum where less", far.Where[int64]{If: far.IfLess, Operand: columnLength / 2}, int64(columnLength/2) * (columnLength/2 - 1) / 2},
	} {
		check := func(sum int64) error {
			if sum != c.sum {
				return fmt.Errorf("the sum is %d, want %d", sum, c.sum)
			}
			return nil
		}
		if err := o.compare(fabric+", "+c.name, "ms", 1e3, rounds, span, [3]way{
			{"READ all", func(_ *rand.Rand, buf []byte) error { return raw.sumAll(ctx, buf, c.where) }},
			{"component", func(*rand.Rand, []byte) error {
				s, err := v.Aggregate(ctx, c.where)
				return errors.Join(err, check(s.SumInt))
			}},
			{"local", func(*rand.Rand, []byte) error {
				var sum int64
				for _, x := range local {
					if c.where.If == far.IfAll || x < c.where.Operand {
						sum += x
					}
				}
				return check(sum)
			}},
		}, nil); err != nil { // the vector is in a process of its own

			return err
		}
	}
	return v.Close(ctx)
}

// sumAll reads everything, as much at a time as there is room for in buf, and adds it
// up.
func (r *rawReader) sumAll(ctx context.Context, buf []byte, where far.Where[int64]) error {
	var total int64
	for off := int64(0); off < r.chunk.Size(); {
		n, err := r.chunk.ReadContext(ctx, buf, off)
		if err != nil && err != io.EOF {
			return err
		}
		off += int64(n)
		for b := buf[:n]; len(b) >= 8; b = b[8:] {
			x := int64(binary.LittleEndian.Uint64(b))
			if where.If == far.IfAll || x < where.Operand {
				total += x
			}
		}
	}
	if total != 0 {
		return fmt.Errorf("the sum of zeros is %d", total)
	}
	return nil
}
