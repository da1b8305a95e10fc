package farbench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"polder/far"
	"polder/measure/benchout"
	"polder/pages/region"
)

// pagingScale is how large a run of far paging is.
type pagingScale struct {
	data   int64 // bytes of objects, a quarter of which is local
	sizes  []int // of objects: 64, 256, 1024 or 4096 bytes
	rounds int
	span   time.Duration // of a round
	timed  int           // accesses whose time is taken
	swap   bool          // the kernel's swapping is measured, too
}

// RunPaging measures a program that reads, or reads and writes, objects of 64 B to 4 KiB at random. They are far
// objects; or they lie in pages of 4 KiB that polder pager serves; or, where there is the right to make control
// groups, in memory that the kernel swaps out: to zram if there is some, and by polder swap to a node if there is an
// NBD client. A quarter of what the objects take is local: for far objects that includes their headers and pointers,
// and the pager has its least memory besides. RunPaging prints how many objects are accessed in a second, how many
// bytes are moved for each byte that the program reads or writes (the paper's figure 1), and how long an access takes
// that finds nothing local, beside a raw READ of the object (figures 2 and 12b).
//
// Each contestant has the number of threads, or goroutines, with which it is the fastest: several numbers are tried
// first. Rounds of the contestants alternate.
func RunPaging(ctx context.Context, o Options) error {
	s := pagingScale{data: 256 << 20, sizes: []int{64, 256, 1024, 4096}, rounds: 5, span: 300 * time.Millisecond, timed: 10_000, swap: true}
	if o.Short {
		s = pagingScale{data: 32 << 20, sizes: []int{64, 4096}, rounds: 3, span: 100 * time.Millisecond, timed: 2_000, swap: true}
	}
	if err := s.run(ctx, o); err != nil {
		return fmt.Errorf("cannot run the benchmark of objects and pages: %w", err)
	}
	return nil
}

func (s pagingScale) run(ctx context.Context, o Options) (err error) {
	paged := region.Supported()
	if paged != nil {
		o.note(fmt.Sprintf("the comparison with pages is left out: %v", paged))
	}
	if !s.swap {
		return s.all(ctx, o, fabrics, paged == nil, nil)
	}
	z, err := newZram(ctx, s.data)
	switch {
	case err == nil:
		err = s.all(ctx, o, fabrics, paged == nil, &swapping{name: "kernel swap, zram", disk: z})
		err = errors.Join(err, z.close())
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		o.note(fmt.Sprintf("the kernel cannot swap to zram here: the comparison with it is left out: %v", err))
		err = s.all(ctx, o, fabrics, paged == nil, nil)
	}
	if err != nil {
		return err
	}
	d, err := newBorrowed(ctx, o.Polder, s.data)
	switch {
	case err == nil:
		err = s.all(ctx, o, []string{"tcp"}, false, &swapping{name: "kernel swap, NBD", disk: d})
		return errors.Join(err, d.close())
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	o.note(fmt.Sprintf("the kernel cannot swap to NBD here: the comparison with it is left out: %v", err))
	return nil
}

// all compares objects of all sizes with pages, if pages is set, and with the kernel's swapping, if swap is not nil
// and the kernel can swap enough out.
func (s pagingScale) all(ctx context.Context, o Options, fabrics []string, pages bool, swap *swapping) error {
	for _, size := range s.sizes {
		for _, fabric := range fabrics {
			err := errSwapped
			if swap != nil {
				if err = s.beside(ctx, o, fabric, size, pages, *swap); errors.Is(err, errSwapped) {
					o.note(fmt.Sprintf("%s, %d B: the comparison with %s is left out: %v", fabric, size, swap.name, err))
				}
			}
			switch {
			case !errors.Is(err, errSwapped):
			case pages:
				err = s.compare(ctx, o, fabric, size, true, nil)
			default:
				err = nil
			}
			if err != nil {
				return fmt.Errorf("%s, objects of %d B: %w", fabric, size, err)
			}
		}
	}
	return nil
}

// beside is compare with a process whose memory is swapped out. It prints nothing if there is an
// error.
func (s pagingScale) beside(ctx context.Context, o Options, fabric string, size int, pages bool, swap swapping) error {
	p, err := startSwapped(o.Polder, s.data, s.data/4)
	if err != nil {
		return err
	}
	var held heldRows
	out := o.Out
	o.Out = &held
	swap.swapped = p
	err = s.compare(ctx, o, fabric, size, pages, &swap)
	if err = errors.Join(err, p.close()); err != nil {
		return err
	}
	return printAll(out, held)
}

// heldRows are rows to be printed later.
type heldRows []benchout.Row

func (h *heldRows) Print(r benchout.Row) error {
	*h = append(*h, r)
	return nil
}

// contestant is what objects lie in.
type contestant interface {
	do(ctx context.Context, j job) (result, error)
	moved() (int64, error) // bytes, since the start
}

// side is a contestant and what was measured.
type side struct {
	contestant
	name    string
	tried   []int // numbers of threads
	updates int64 // that were made
	rates   []float64
	used    int64 // bytes that the program read or wrote
	bytes   int64 // bytes that were moved for that
}

// compare lets contestants access objects of a size: far objects, pages if pages is set, and a process that is
// swapped out if swap is not nil.
func (s pagingScale) compare(ctx context.Context, o Options, fabric string, size int, pages bool, swap *swapping) (err error) {
	l, err := startLender(ctx, o.Polder, fabric, 8*s.data)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	objects, err := openObjects(ctx, l.store(), max(s.data/4, far.MinLocal), s.data, size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, objects.close()) }()
	sides := []*side{{contestant: objects, name: "objects", tried: []int{2, 16, 128, 512}}}
	if pages {
		pager, err := startPager(ctx, o.Polder, l, s.data)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, pager.close()) }()
		if err := s.misses(ctx, o, fabric, size, l, pager, objects); err != nil {
			return err
		}
		r, err := pager.mapping(ctx, s.data, s.data/4)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.Close()) }()
		sides = append(sides, &side{contestant: paging{r, pager}, name: "pages", tried: []int{1, 4, 16}})
	}
	if swap != nil {
		sides = append(sides, &side{contestant: swap, name: swap.name, tried: []int{1, 2, 4}})
	}
	for _, c := range sides[1:] {
		if _, err := c.do(ctx, job{Do: "fill", Size: size}); err != nil {
			return err
		}
	}
	for _, c := range sides { // so that what was written is far
		if _, err := c.do(ctx, job{Do: "check", Size: size, First: int(s.data) / size / 3}); err != nil {
			return err
		}
	}
	for _, update := range []bool{false, true} {
		if err := s.throughput(ctx, o, fmt.Sprintf("%s, %d B, %s", fabric, size, map[bool]string{false: "read", true: "update"}[update]), sides, job{Do: "touch", Size: size, Span: s.span, Update: update}); err != nil {
			return err
		}
	}
	for _, c := range sides {
		r, err := c.do(ctx, job{Do: "check", Size: size})
		if err == nil && r.Count != c.updates {
			err = fmt.Errorf("the objects have %d versions, after %d updates", r.Count, c.updates)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

// clearly is how many times as fast a larger number of threads has to be.
const clearly = 1.05

// throughput has the sides touch objects, by turns.
func (s pagingScale) throughput(ctx context.Context, o Options, name string, sides []*side, j job) error {
	run := func(c *side, j job) (result, error) {
		r, err := c.do(ctx, j)
		if j.Update {
			c.updates += r.Count
		}
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", c.name, err)
		}
		return r, err
	}
	threads := make([]int, len(sides))
	for i, c := range sides {
		best := 0.0
		for _, n := range c.tried {
			j := j
			j.Threads, j.Turn, j.Span = n, -n, s.span
			r, err := run(c, j)
			if err != nil {
				return err
			}
			if r.Rate > clearly*best { // more of them are no better if it is by chance
				threads[i], best = n, r.Rate
			}
		}
		c.rates, c.used, c.bytes = nil, 0, 0
		warm := j
		warm.Threads, warm.Turn, warm.Span = threads[i], -1, time.Duration(s.rounds)*s.span
		if _, err := run(c, warm); err != nil {
			return err
		}
	}
	use := int64(j.Size)
	if j.Update {
		use *= 2
	}
	for j.Turn = range s.rounds {
		for i, c := range sides {
			j := j
			j.Threads = threads[i]
			before, err := c.moved()
			if err != nil {
				return err
			}
			r, err := run(c, j)
			if err != nil {
				return err
			}
			after, err := c.moved()
			if err != nil {
				return err
			}
			c.rates = append(c.rates, r.Rate)
			c.used += use * r.Count
			c.bytes += after - before
		}
	}
	row := benchout.Row{Bench: "far paging", Case: name, Metric: "objects", Unit: "op/s", Value: median(sides[0].rates)}
	moved := benchout.Row{Bench: "far paging", Case: name, Metric: "bytes moved", Unit: "/ byte", Value: float64(sides[0].bytes) / float64(sides[0].used)}
	var rows []benchout.Row
	for i, c := range sides[1:] {
		rows = append(rows, row.Against(fmt.Sprintf("%s, %d threads to %d", c.name, threads[i+1], threads[0]), median(c.rates), benchout.Higher),
			moved.Against(c.name, float64(c.bytes)/float64(c.used), benchout.Lower))
	}
	return printAll(o.Out, rows)
}

// misses measures single accesses that find nothing local.
func (s pagingScale) misses(ctx context.Context, o Options, fabric string, size int, l *lender, pager *pager, objects objects) (err error) {
	data := s.data / 4
	raw, err := newRawReader(ctx, l.pool, data, size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, raw.chunk.Free(ctx)) }()
	r, err := pager.mapping(ctx, data, 0)
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := (paging{r, pager}).do(ctx, job{Do: "fill", Size: size}); err != nil {
		return err
	}
	mem, buf := r.Bytes(), make([]byte, size)
	var took [3][]float64
	n, rnd := int(data)/size, rand.New(rand.NewPCG(uint64(size), 5))
	touch, done := objects.toucher(ctx)
	defer done()
	for range s.timed {
		i := rnd.IntN(n)
		far := rnd.IntN(int(s.data) / size)
		for try := 0; objects.isLocal(far) && try < 1000; try++ {
			far = rnd.IntN(int(s.data) / size)
		}
		for k, access := range []func() error{
			func() error { _, err := touch(far, false); return err },
			func() error { _, err := touchObject(mem[i*size:][:size], i, false); return err },
			func() error { _, err := raw.chunk.ReadContext(ctx, buf, int64(i*size)); return err },
		} {
			begin := time.Now()
			if err := access(); err != nil {
				return err
			}
			took[k] = append(took[k], float64(time.Since(begin).Nanoseconds())/1e3)
		}
	}
	for _, t := range took {
		slices.Sort(t)
	}
	var rows []benchout.Row
	for _, p := range []int{50, 99} {
		at := s.timed * p / 100
		row := benchout.Row{Bench: "far paging", Case: fmt.Sprintf("%s, %d B, miss", fabric, size), Metric: "p" + strconv.Itoa(p), Unit: "us"}
		row.Value = took[0][at]
		rows = append(rows, row.Against("page fault", took[1][at], benchout.Lower), row.Against("raw READ", took[2][at], benchout.Lower))
	}
	return printAll(o.Out, rows)
}

// paging is objects in pages that a pager serves.
type paging struct {
	r *region.Region
	p *pager
}

func (p paging) do(ctx context.Context, j job) (result, error) { return j.do(ctx, p.r.Bytes()) }
func (p paging) moved() (int64, error)                         { return p.p.moved() }

// swapping is objects in the memory of a process that is swapped out to a disk.
type swapping struct {
	*swapped
	name string
	disk swapDisk
}

func (s *swapping) moved() (int64, error) { return s.disk.moved() }

// objects is far objects of a size.
type objects interface {
	contestant
	// toucher returns a function that touches an object, for one goroutine until it calls
	// done.
	toucher(ctx context.Context) (touch func(i int, update bool) (version uint64, err error), done func())
	isLocal(i int) bool
	close() error
}

func openObjects(ctx context.Context, store far.Store, local, data int64, size int) (objects, error) {
	switch size {
	case 64:
		return newObjects(ctx, store, local, data, func(o *[64]byte) []byte { return o[:] })
	case 256:
		return newObjects(ctx, store, local, data, func(o *[256]byte) []byte { return o[:] })
	case 1024:
		return newObjects(ctx, store, local, data, func(o *[1024]byte) []byte { return o[:] })
	case 4096:
		return newObjects(ctx, store, local, data, func(o *[4096]byte) []byte { return o[:] })
	}
	return nil, fmt.Errorf("there are no objects of %d bytes", size)
}

// objectsOf is far objects of type T.
type objectsOf[T any] struct {
	heap  *far.Heap
	array *far.Array[T] // each in an object of its own
	bytes func(*T) []byte
}

func newObjects[T any](ctx context.Context, store far.Store, local, data int64, bytes func(*T) []byte) (objects, error) {
	size := len(bytes(new(T)))
	heap, err := far.NewHeap(store, far.Config{Local: local, ScopeBytes: 2*size + 256, HeldTooLong: time.Minute})
	if err != nil {
		return nil, err
	}
	o := &objectsOf[T]{heap: heap, bytes: bytes}
	o.array, err = far.NewArray[T](ctx, heap, int(data)/size, far.StructureConfig{Name: "objects", Group: 1, NewPrefetcher: func() far.Prefetcher { return far.NoPrefetch{} }})
	if err == nil {
		s := heap.NewScope()
		s.SetContext(ctx)
		for i, v := range o.array.StreamMutChunks(s, 0, o.array.Len()) {
			for k := range v {
				fillObject(bytes(&v[k]), i+k)
			}
		}
		err = s.Err()
		s.Close()
	}
	if err != nil {
		return nil, errors.Join(err, heap.Close())
	}
	return o, nil
}

func (o *objectsOf[T]) toucher(ctx context.Context) (func(i int, update bool) (uint64, error), func()) {
	s := o.heap.NewScope()
	s.SetContext(ctx)
	return func(i int, update bool) (uint64, error) {
		for {
			s.Enter()
			var v *T
			if update {
				v = o.array.At(i).DerefMut(s)
			} else {
				v = o.array.At(i).Deref(s)
			}
			if v != nil {
				version, err := touchObject(o.bytes(v), i, update)
				s.Leave()
				return version, err
			}
			s.Leave()
			if err := s.Err(); !errors.Is(err, far.ErrScopeFull) {
				return 0, err
			}
		}
	}, s.Close
}

func (o *objectsOf[T]) do(ctx context.Context, j job) (r result, err error) {
	if j.Do == "check" {
		return o.check(ctx, min(cmp.Or(j.First, o.array.Len()), o.array.Len()))
	}
	touchers := make([]func(int, bool) (uint64, error), j.Threads)
	for id := range touchers {
		touch, done := o.toucher(ctx)
		defer done()
		touchers[id] = touch
	}
	r.Rate, r.Count, err = j.touches(o.array.Len(), func(id int) func(int) error {
		return func(i int) error { _, err := touchers[id](i, j.Update); return err }
	})
	return r, err
}

// check reads the first objects, many at a time.
func (o *objectsOf[T]) check(ctx context.Context, first int) (r result, err error) {
	const readers = 128
	var versions counter
	_, err = crowd(readers, 0, func(id int, _ func() bool) (int, error) {
		touch, done := o.toucher(ctx)
		defer done()
		for i := id; i < first; i += readers {
			version, err := touch(i, false)
			if err != nil {
				return 0, err
			}
			versions.add(int(version))
		}
		return 0, nil
	})
	r.Count = versions.n.Load()
	return r, err
}

func (o *objectsOf[T]) isLocal(i int) bool { return o.array.At(i).IsLocal() }
func (o *objectsOf[T]) close() error       { return o.heap.Close() }

func (o *objectsOf[T]) moved() (int64, error) {
	s := o.heap.Stats()
	return int64(s.BytesIn + s.BytesOut), nil
}
