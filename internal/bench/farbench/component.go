package farbench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"polder/far"
	"polder/far/remote"
	"polder/internal/benchout"
	"polder/pool"
)

// What far component measures with.
const (
	tableKeys    = 100_000
	tableValue   = 64
	tableBucket  = 64        // bytes of an index that a one-sided reader reads first
	columnLength = 4 << 20   // int64s
	readMemory   = 32 << 20  // that is read
	componentRAM = 128 << 20 // of the client at the node
)

// RunComponent compares what the memory node's components do with what one-sided
// reads of the same data cost: a miss of a hash table beside two reads of which
// the second needs the first, and the sum of a vector beside reading all of
// it.
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
	if err := o.table(ctx, fabric, d, raw); err != nil {
		return err
	}
	return o.column(ctx, fabric, d, raw)
}

// table measures misses.
func (o *Options) table(ctx context.Context, fabric string, d far.Device, raw *rawReader) error {
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
	get := func(r *rand.Rand, buf []byte) error {
		_, err := t.Get(ctx, tableKey(r.IntN(tableKeys)), buf[:0])
		return err
	}
	twice := func(r *rand.Rand, buf []byte) error { return raw.dependent(ctx, r, buf) }
	rounds, span := 15, 500*time.Millisecond
	if o.Short {
		rounds, span = 5, 300*time.Millisecond
	}
	for _, workers := range []int{1, 64} {
		var rates [2][]float64
		for range rounds {
			for i, f := range []func(*rand.Rand, []byte) error{get, twice} {
				rate, err := crowd(workers, span, func(id int, over func() bool) (n int, err error) {
					r, buf := rand.New(rand.NewPCG(uint64(id), 4)), make([]byte, 4096)
					for ; !over() && err == nil; n++ {
						err = f(r, buf)
					}
					return n, err
				})
				if err != nil {
					return err
				}
				rates[i] = append(rates[i], rate)
			}
		}
		ours, theirs := median(rates[0]), median(rates[1])
		row := benchout.Row{Bench: "far component", Case: fmt.Sprintf("%s, table get %d B, %d at once", fabric, tableValue, workers)}
		if workers == 1 {
			row.Metric, row.Value, row.Unit = "mean", 1e6/ours, "us"
			row = row.Against("two dependent READs", 1e6/theirs, benchout.Lower)
		} else {
			row.Metric, row.Value, row.Unit = "rate", ours/1e3, "kops/s"
			row = row.Against("two dependent READs", theirs/1e3, benchout.Higher)
		}
		if err := o.Out.Print(row); err != nil {
			return err
		}
	}
	return t.Close(ctx)
}

func tableKey(k int) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(k)) }

// dependent reads a bucket and then, where that says, an entry.
func (r *rawReader) dependent(ctx context.Context, rnd *rand.Rand, buf []byte) error {
	c := r.chunks[rnd.IntN(len(r.chunks))]
	slots := r.pool.ChunkSize() / tableBucket
	if _, err := c.ReadContext(ctx, buf[:tableBucket], int64(rnd.IntN(slots)*tableBucket)); err != nil {
		return err
	}
	at := (binary.LittleEndian.Uint64(buf) + rnd.Uint64()) % uint64(slots)
	_, err := c.ReadContext(ctx, buf[:tableValue], int64(at)*tableBucket)
	return err
}

// column measures sums.
func (o *Options) column(ctx context.Context, fabric string, d far.Device, raw *rawReader) error {
	v, err := far.NewRemoteVector[int64](ctx, d)
	if err != nil {
		return err
	}
	part := make([]int64, 1<<16)
	for i := 0; i < columnLength; i += len(part) {
		for k := range part {
			part[k] = int64(i + k)
		}
		if err := v.Write(ctx, i, part); err != nil {
			return err
		}
	}
	const sum = int64(columnLength) * (columnLength - 1) / 2
	rounds := 21
	if o.Short {
		rounds = 9
	}
	buf := make([]byte, 4*raw.pool.ChunkSize())
	for _, c := range []struct {
		name  string
		where far.Where[int64]
	}{{"sum of 32 MiB", far.Where[int64]{}}, {"sum of 32 MiB where an element is less", far.Where[int64]{If: far.IfLess, Operand: columnLength / 2}}} {
		var times [2][]float64
		for range rounds {
			begin := time.Now()
			s, err := v.Aggregate(ctx, c.where)
			if err != nil {
				return err
			}
			if c.where.If == far.IfAll && s.SumInt != sum {
				return fmt.Errorf("the sum is %d, want %d", s.SumInt, sum)
			}
			times[0] = append(times[0], time.Since(begin).Seconds()*1e3)
			begin = time.Now()
			if err := raw.sumAll(ctx, buf, c.where); err != nil {
				return err
			}
			times[1] = append(times[1], time.Since(begin).Seconds()*1e3)
		}
		row := benchout.Row{Bench: "far component", Case: fabric + ", " + c.name, Metric: "median", Value: median(times[0]), Unit: "ms"}
		if err := o.Out.Print(row.Against("reading all of it", median(times[1]), benchout.Lower)); err != nil {
			return err
		}
	}
	return v.Close(ctx)
}

// sumAll reads everything, four chunks at a time, and adds it up.
func (r *rawReader) sumAll(ctx context.Context, buf []byte, where far.Where[int64]) error {
	var ops [4]pool.Op
	var total int64
	size := r.pool.ChunkSize()
	for i := 0; i < len(r.chunks); {
		n := 0
		for ; n < len(ops) && i < len(r.chunks); n, i = n+1, i+1 {
			ops[n] = pool.Op{Kind: pool.OpRead, Chunk: r.chunks[i], Buf: buf[n*size : (n+1)*size]}
		}
		if err := r.pool.Do(ctx, ops[:n]); err != nil {
			return err
		}
		for b := buf[:n*size]; len(b) >= 8; b = b[8:] {
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
