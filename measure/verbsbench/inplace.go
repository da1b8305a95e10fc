package verbsbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"polder/measure/benchout"
	"polder/memnode"
	"polder/pool"
	"polder/verbs"
	"polder/verbs/shm"
	"polder/verbs/softnic"
)

// inPlace measures the cases on a chunk of a node on this machine, by turns with
// plain code that does the same on ordinary memory of this process.
func (b *bench) inPlace() (err error) {
	dir, err := os.MkdirTemp("", "polder-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	dev, err := shm.NewDevice(softnic.Config{})
	if err != nil {
		return err
	}
	defer dev.Close()
	node, err := memnode.New(dev, memnode.Config{Manager: memnode.MemFD, Lend: chunk, ChunkSize: chunk})
	if err != nil {
		return err
	}
	l, err := shm.Listen(dev, filepath.Join(dir, "node.sock"), shm.Config{})
	if err != nil {
		return errors.Join(err, node.Close())
	}
	served := make(chan error, 1)
	go func() { served <- node.Serve(l) }()
	defer func() { err = errors.Join(err, node.Close(), <-served) }()
	p, err := pool.Dial(b.ctx, l.Addr())
	if err != nil {
		return err
	}
	defer p.Close()
	c, err := p.Alloc(b.ctx, int64(p.ChunkSize()))
	if err != nil {
		return err
	}
	for _, bc := range cases() {
		if err := b.measureInPlace(bc, c); err != nil {
			return fmt.Errorf("%v: %w", bc, err)
		}
	}
	return nil
}

// chunk is how many bytes of memory are accessed in place: more than any operation
// has, and less than a second-level cache.
const chunk = 256 << 10

// measureInPlace measures a case on a chunk and on plain memory, by turns, and
// prints the medians.
func (b *bench) measureInPlace(bc bcase, c *pool.Chunk) error {
	contestants := [2]func(i int) error{onChunk(bc, c), onMemory(bc)}
	var ns [2][]float64
	for range b.rounds {
		for i, f := range contestants {
			if err := b.ctx.Err(); err != nil {
				return err
			}
			v, err := each(b.span, f)
			if err != nil {
				return err
			}
			ns[i] = append(ns[i], v)
		}
	}
	row := benchout.Row{Bench: "verbs", Case: "shm in place " + bc.String(), Metric: "operation", Value: median(ns[0]), Unit: "ns"}
	return b.out.Print(row.Against("plain memory", median(ns[1]), benchout.Lower))
}

// onChunk returns a function that does the case on c: call i at place i, and from
// the beginning again after the last place.
func onChunk(bc bcase, c *pool.Chunk) func(i int) error {
	buf, places := make([]byte, bc.size), chunk/bc.size
	switch bc.op {
	case verbs.OpRead:
		return func(i int) error {
			_, err := c.ReadAt(buf, int64(i%places*bc.size))
			return err
		}
	case verbs.OpWrite:
		return func(i int) error {
			_, err := c.WriteAt(buf, int64(i%places*bc.size))
			return err
		}
	}
	ctx := context.Background()
	return func(i int) error {
		_, _, err := c.CompareAndSwap(ctx, int64(i%places*bc.size), 0, 0)
		return err
	}
}

// onMemory returns a function that does the case on memory of its own, at the same
// places.
func onMemory(bc bcase) func(i int) error {
	buf, places := make([]byte, bc.size), chunk/bc.size
	memory, words := make([]byte, chunk), make([]atomic.Uint64, chunk/8)
	switch bc.op {
	case verbs.OpRead:
		return func(i int) error {
			copy(buf, memory[i%places*bc.size:])
			return nil
		}
	case verbs.OpWrite:
		return func(i int) error {
			copy(memory[i%places*bc.size:][:bc.size], buf)
			return nil
		}
	}
	return func(i int) error {
		words[i%places].CompareAndSwap(0, 0)
		return nil
	}
}

// each calls f for about d, and returns how many nanoseconds a call took.
func each(d time.Duration, f func(i int) error) (float64, error) {
	const batch = 64 // calls between two looks at the clock
	start := time.Now()
	for n := 0; ; {
		for range batch {
			if err := f(n); err != nil {
				return 0, err
			}
			n++
		}
		if took := time.Since(start); took > d {
			return float64(took.Nanoseconds()) / float64(n), nil
		}
	}
}
