package farbench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"polder/far"
	"polder/far/remote"
	"polder/internal/child"
	"polder/pool"
	"polder/verbs/shm"
	"polder/verbs/tcp"
)

// fabrics are how a memory node in a process of its own is reached.
var fabrics = []string{"tcp", "shm"}

// startTimeout bounds the start of a node or a rival.
const startTimeout = 15 * time.Second

// patience bounds operations on a node. Where many goroutines wait for an emulated processor, operations take long,
// and are measured all the same.
const patience = time.Minute

// lender is a memory node in a process of its own, and a pool that borrows from
// it.
type lender struct {
	node *child.Process
	pool *pool.Pool
	dir  string
}

// startLender starts a node that lends so many bytes over a fabric, with more flags if there are any. polder is the
// path of the program that it runs.
func startLender(ctx context.Context, polder, fabric string, lend int64, flags ...string) (l *lender, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	l = &lender{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("cannot start a node over %s: %w", fabric, err), l.close())
		}
	}()
	addr := "127.0.0.1:0"
	if fabric == "shm" {
		if l.dir, err = os.MkdirTemp("", "polder-bench-"); err != nil {
			return l, err
		}
		addr = "unix:" + filepath.Join(l.dir, "node")
	}
	args := append([]string{"node", "--listen", addr, "--admin", "off", "--log-level", "warn", "--client-budget", "0", "--lend", fmt.Sprint(lend)}, flags...)
	if l.node, err = child.StartReady(ctx, child.Command{Path: polder, Args: args}); err != nil {
		return l, err
	}
	cfg := pool.Config{Timeout: patience}
	if fabric == "shm" {
		l.pool, err = pool.DialUnix(ctx, shm.Config{}, cfg, l.node.Addr("verbs"))
	} else {
		l.pool, err = pool.DialTCP(ctx, tcp.Config{}, cfg, l.node.Addr("verbs"))
	}
	return l, err
}

func (l *lender) store() far.Store { return remote.NewStore(l.pool) }

// close ends the node. The heaps on its store must have been closed.
func (l *lender) close() error {
	var errs []error
	if l.pool != nil {
		errs = append(errs, l.pool.Close())
	}
	if l.node != nil {
		errs = append(errs, l.node.Stop())
	}
	if l.dir != "" {
		errs = append(errs, os.RemoveAll(l.dir))
	}
	return errors.Join(errs...)
}

// rawReader reads borrowed memory as it comes, without a heap: what no far data
// structure can beat.
type rawReader struct {
	pool  *pool.Pool
	chunk *pool.Chunk
	size  int // of a read
}

// newRawReader borrows memory, and writes to all of it, for reads of size bytes.
func newRawReader(ctx context.Context, p *pool.Pool, memory int64, size int) (*rawReader, error) {
	c, err := p.Alloc(ctx, memory)
	if err != nil {
		return nil, err
	}
	data := make([]byte, 1<<20)
	for off := int64(0); off < memory; off += int64(len(data)) {
		if _, err := c.WriteContext(ctx, data[:min(int64(len(data)), memory-off)], off); err != nil {
			return nil, err
		}
	}
	return &rawReader{pool: p, chunk: c, size: size}, nil
}

// slots is how many reads of n bytes fit into the chunk side by side.
func (r *rawReader) slots(n int) int { return int(r.chunk.Size()) / n }

// rate returns how many reads at random places complete in a second while each of workers goroutines has batch of
// them under way.
func (r *rawReader) rate(ctx context.Context, workers, batch int, span time.Duration) (float64, error) {
	return crowd(workers, span, func(id int, over func() bool) (int, error) {
		ops, buf := make([]pool.Op, batch), make([]byte, batch*r.size)
		rnd := rand.New(rand.NewPCG(uint64(id), 3))
		slots := r.slots(r.size)
		n := 0
		for !over() {
			for i := range ops {
				ops[i] = pool.Op{Kind: pool.OpRead, Chunk: r.chunk,
					Off: int64(rnd.IntN(slots) * r.size), Buf: buf[i*r.size : (i+1)*r.size]}
			}
			if err := r.pool.Do(ctx, ops); err != nil {
				return n, err
			}
			n += batch
		}
		return n, nil
	})
}

// crowd lets workers goroutines work for span, and returns how much they did in a second, all together. If one fails,
// all are told to stop, and crowd returns the first error: when a node is gone, all have the same.
func crowd(workers int, span time.Duration, work func(id int, over func() bool) (int, error)) (float64, error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	var stop atomic.Bool
	total := 0
	begin := time.Now()
	timer := time.AfterFunc(span, func() { stop.Store(true) })
	defer timer.Stop()
	for id := range workers {
		wg.Go(func() {
			begun := false
			n, err := work(id, func() bool {
				last := begun && stop.Load()
				begun = true // each worker does something, however late it begins
				return last
			})
			mu.Lock()
			total += n
			if failed == nil {
				failed = err
			}
			mu.Unlock()
			if err != nil {
				stop.Store(true)
			}
		})
	}
	wg.Wait()
	return float64(total) / time.Since(begin).Seconds(), failed
}

// counter is added to by several goroutines.
type counter struct{ n atomic.Int64 }

func (c *counter) add(n int) { c.n.Add(int64(n)) }

// of is c as a part of all.
func (c *counter) of(all *counter) float64 {
	return float64(c.n.Load()) / float64(max(all.n.Load(), 1))
}
