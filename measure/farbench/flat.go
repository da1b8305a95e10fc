package farbench

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"
)

// job is work on memory. This process does it on a mapping, a swapped process on its own memory (see swapped).
type job struct {
	Do      string // fill, touch or check the objects of Size bytes that lie in the memory
	Size    int
	First   int           // how many of them are checked; all if it is 0
	Threads int           // that touch objects
	Span    time.Duration // for how long
	Update  bool          // objects that are touched are written, too
	Turn    int           // seeds the choice of objects

	Program  string // the name of one of programs; then Do is prepare, run or check
	Accesses int    // how many pages are read, by programs that read pages in an order
}

// result is what a job has found.
type result struct {
	Rate  float64 // objects touched in a second
	Count int64   // objects touched; after a check, the sum of the objects' versions
	Sum   uint64  // what the program has found
	Took  float64 // how long the program ran, in milliseconds
	Err   string  // of a swapped process
}

// with does the job, which is one of programs, on mem.
func (j job) with(mem []byte, programs []program) (r result, err error) {
	i := slices.IndexFunc(programs, func(p program) bool { return p.name == j.Program })
	if i < 0 {
		return r, fmt.Errorf("there is no program %q", j.Program)
	}
	switch p := programs[i]; {
	case j.Do == "prepare":
		p.prepare(mem)
	case j.Do == "run":
		begin := time.Now()
		r.Sum = p.run(mem)
		r.Took = float64(time.Since(begin).Nanoseconds()) / 1e6
	case p.check != nil:
		err = p.check(mem)
	}
	return r, err
}

// do does the job, which is about objects, on mem.
func (j job) do(ctx context.Context, mem []byte) (r result, err error) {
	n := len(mem) / j.Size
	at := func(i int) []byte { return mem[i*j.Size:][:j.Size] }
	switch j.Do {
	case "fill":
		for i := range n {
			if i%1024 == 0 && ctx.Err() != nil {
				return r, context.Cause(ctx)
			}
			fillObject(at(i), i)
		}
	case "touch":
		// A thread that waits for a page keeps its processor.
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(j.Threads + runtime.NumCPU()))
		r.Rate, r.Count, err = j.touches(n, func(int) func(int) error {
			return func(i int) error { _, err := touchObject(at(i), i, j.Update); return err }
		})
	case "check":
		for i := range min(cmp.Or(j.First, n), n) {
			version, err := touchObject(at(i), i, false)
			if err != nil {
				return r, err
			}
			r.Count += int64(version)
		}
	}
	return r, err
}

// touches has j.Threads goroutines touch random ones of n objects. Each uses the function that start returns for it.
// No two write to an object at the same time.
func (j job) touches(n int, start func(thread int) func(i int) error) (rate float64, count int64, err error) {
	var total counter
	locks := make([]sync.Mutex, 1<<14)
	rate, err = crowd(j.Threads, j.Span, func(id int, over func() bool) (int, error) {
		r := rand.New(rand.NewPCG(uint64(id), uint64(j.Turn)))
		touch, done := start(id), 0
		for ; !over(); done++ {
			i := r.IntN(n)
			lock := &locks[i%len(locks)]
			if j.Update {
				lock.Lock()
			}
			err := touch(i)
			if j.Update {
				lock.Unlock()
			}
			if err != nil {
				return done, err
			}
		}
		total.add(done)
		return done, nil
	})
	return rate, total.n.Load(), err
}

// objectBase is the random number of which the words of object i are made: what is far cannot be compressed.
func objectBase(i int) uint64 { return rand.NewPCG(uint64(i), 17).Uint64() }

// fillObject makes b object i, in version 0: its word k is 2k+1 times the object's base, plus the version.
func fillObject(b []byte, i int) {
	base := objectBase(i)
	for k := 0; k < len(b); k += 8 {
		binary.LittleEndian.PutUint64(b[k:], base*uint64(k/4+1))
	}
}

// touchObject reads all of object i, and, with update, makes it its next version. It returns the version that it has
// read.
func touchObject(b []byte, i int, update bool) (version uint64, err error) {
	base, words, sum := objectBase(i), uint64(len(b)/8), uint64(0)
	version = binary.LittleEndian.Uint64(b) - base
	if update {
		for ; len(b) >= 8; b = b[8:] {
			w := binary.LittleEndian.Uint64(b)
			binary.LittleEndian.PutUint64(b, w+1)
			sum += w
		}
	} else {
		for ; len(b) >= 8; b = b[8:] {
			sum += binary.LittleEndian.Uint64(b)
		}
	}
	if version >= 1<<32 || sum != base*words*words+version*words {
		return 0, fmt.Errorf("object %d of %d bytes is not what was written to it: version %d, sum %d", i, 8*words, version, sum)
	}
	return version, nil
}
