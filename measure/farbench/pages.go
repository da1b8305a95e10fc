package farbench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"polder/measure/benchout"
	"polder/pages"
	"polder/pages/kernelpart"
	"polder/pages/region"
)

// pagesScale is how large a run of pages is.
type pagesScale struct {
	size     int64 // bytes that are mapped, to time accesses
	work     int64 // bytes that programs have
	accesses int   // of a round
	rounds   int
	timed    int     // accesses whose time is taken
	percents []int64 // of the programs' memory that are local
}

// RunPages measures what it costs to touch a far page of memory that polder pager serves, beside a raw READ of as
// many bytes from the same node, and beside a page that was never written, which needs no far memory. It also
// measures how much slower programs get if only a part of their memory is local, beside ordinary memory. The programs
// read whole pages (in sequence, every seventh, at random, or by Zipf's law with s = 0.99), or are k-means,
// quicksort, compressing and a hash join. Then it runs them in a process whose memory the kernel swaps to zram, and,
// over NBD, to memory of a node, where that is possible; that process has 8 MiB more for itself.
//
// Reading pages in sequence stands beside two bounds, neither of which is less than the program takes with all of its
// memory local. The first is what the wire carries: the pages that are not local, read raw as fast as possible, by
// two goroutines that each have 256 KiB under way, in reads of 4, 16 or 64 KiB. It leaves out that somebody has to
// put the pages into the program's memory. The second is the time that the kernel takes to put them there (package
// kernelpart), plus the program's own, spread over all processors; it leaves out far memory.
//
// Placement matters more than anything else on an idle machine: with "one CPU" the program, the pager and the node
// share one, with "two CPUs" the program has one and the others another, and otherwise the scheduler decides. With
// less than two CPUs only the last is measured.
func RunPages(ctx context.Context, o Options) error {
	s := pagesScale{size: 256 << 20, work: 32 << 20, accesses: 1 << 14, rounds: 3, timed: 20_000, percents: []int64{25, 50, 75}}
	if o.Short {
		s = pagesScale{size: 32 << 20, work: 8 << 20, accesses: 4 << 10, rounds: 1, timed: 2_000, percents: []int64{50}}
	}
	if err := region.Supported(); err != nil {
		o.note(fmt.Sprintf("pages that a pager brings are left out: %v", err))
		return s.swap(ctx, o)
	}
	for _, fabric := range fabrics {
		if err := s.run(ctx, o, fabric); err != nil {
			return err
		}
	}
	return s.swap(ctx, o)
}

func (s pagesScale) run(ctx context.Context, o Options, fabric string) (err error) {
	l, err := startLender(ctx, o.Polder, fabric, 4*s.size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	pager, err := startPager(ctx, o.Polder, l, s.size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pager.close()) }()
	raw, err := newRawReader(ctx, l.pool, s.size, pages.Size)
	if err != nil {
		return err
	}
	all, err := allowed(os.Getpid())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pin(all, os.Getpid())) }()
	for _, p := range placements(all) {
		if err := errors.Join(pin(p.program, os.Getpid()), pin(p.others, pager.p.PID()), pin(p.others, l.node.PID())); err != nil {
			return err
		}
		if err := s.latency(ctx, o, fabric+", "+p.name, pager, raw); err != nil {
			return err
		}
	}
	if err := errors.Join(pin(all, os.Getpid()), pin(all, pager.p.PID()), pin(all, l.node.PID())); err != nil {
		return err
	}
	best, err := scanBound(ctx, raw)
	if err != nil {
		return err
	}
	list := programs(s.work, s.accesses)
	for _, percent := range s.percents {
		for i := range list { // each in memory of its own: no program begins with what another one has left there
			r, err := pager.mapping(ctx, s.work, s.work*percent/100)
			if err != nil {
				return err
			}
			err = s.slowdown(ctx, o, fabric, percent, list[i:i+1], best, func(_ context.Context, j job) (result, error) { return j.with(r.Bytes(), list) })
			if err = errors.Join(err, r.Close()); err != nil {
				return err
			}
		}
	}
	return nil
}

// bound is the least time that a far page takes, in ms.
type bound struct {
	wire   float64 // to read it from far memory; 0 if that is not known
	kernel float64 // for a processor to place it and to take another page out
}

// scanBound measures the bounds of reading pages in sequence. The goroutines that read raw have 256 KiB under way
// each, in reads of the size that is best: a pager that knows what comes next may read as it likes.
func scanBound(ctx context.Context, raw *rawReader) (b bound, err error) {
	for _, n := range []int{1, 4, 16} { // pages of a read
		r := *raw
		r.size = n * pages.Size
		var rates []float64
		for range 3 {
			rate, err := r.rate(ctx, 2, 64/n, 100*time.Millisecond)
			if err != nil {
				return b, err
			}
			rates = append(rates, rate)
		}
		if ms := 1e3 / (median(rates) * float64(n)); b.wire == 0 || ms < b.wire {
			b.wire = ms
		}
	}
	d, err := kernelpart.OfScan()
	b.kernel = float64(d.Nanoseconds()) / 1e6
	return b, err
}

// mapPages makes a region of which local bytes are local, and writes to every page.
func (s pagesScale) mapPages(ctx context.Context, pager *pager, local int64) (*region.Region, error) {
	r, err := pager.mapping(ctx, s.size, local)
	if err != nil {
		return nil, err
	}
	b := make([]byte, 64*pages.Size)
	for off := int64(0); off < s.size; off += int64(len(b)) {
		for at := 0; at < len(b); at += pages.Size {
			binary.LittleEndian.PutUint64(b[at:], uint64(off)+uint64(at)+1)
		}
		if _, err := r.WriteAt(b, off); err != nil {
			return nil, errors.Join(err, r.Close())
		}
	}
	return r, nil
}

// touch accesses single pages at random, and returns how many µs each access took, sorted. want says what the page at
// an offset begins with.
func (s pagesScale) touch(r *region.Region, want func(at int) uint64) ([]float64, error) {
	rnd, n := rand.New(rand.NewPCG(1, 2)), int(s.size/pages.Size)
	took, b := make([]float64, s.timed), r.Bytes()
	for i := range took {
		at := rnd.IntN(n) * pages.Size
		begin := time.Now()
		got := binary.LittleEndian.Uint64(b[at:])
		took[i] = float64(time.Since(begin).Nanoseconds()) / 1e3
		if got != want(at) {
			return nil, fmt.Errorf("the page at %d has %d, want %d", at, got, want(at))
		}
	}
	slices.Sort(took)
	return took, nil
}

// latency measures single accesses to pages of which next to none is local.
func (s pagesScale) latency(ctx context.Context, o Options, name string, pager *pager, raw *rawReader) error {
	r, err := pager.mapping(ctx, s.size, 0)
	if err != nil {
		return err
	}
	zeros, err := s.touch(r, func(int) uint64 { return 0 })
	if err = errors.Join(err, r.Close()); err != nil {
		return err
	}
	if r, err = s.mapPages(ctx, pager, 0); err != nil {
		return err
	}
	defer r.Close()
	faults, err := s.touch(r, func(at int) uint64 { return uint64(at) + 1 })
	if err != nil {
		return err
	}
	rnd, n, reads := rand.New(rand.NewPCG(3, 4)), int(s.size/pages.Size), make([]float64, s.timed)
	page := make([]byte, pages.Size)
	for i := range reads {
		off := int64(rnd.IntN(n) * pages.Size)
		begin := time.Now()
		if _, err := raw.chunk.ReadContext(ctx, page, off); err != nil {
			return err
		}
		reads[i] = float64(time.Since(begin).Nanoseconds()) / 1e3
	}
	slices.Sort(reads)
	var rows []benchout.Row
	for _, p := range []int{50, 99} {
		at := s.timed * p / 100
		row := benchout.Row{Bench: "pages", Case: "fault, " + name, Metric: "p" + strconv.Itoa(p), Value: faults[at], Unit: "us"}
		rows = append(rows,
			row.Against("raw READ", reads[at], benchout.Lower),
			row.Against("zero page", zeros[at], benchout.Lower),
			row.Against("1.5 READs, zero page", 1.5*reads[at]+zeros[at], benchout.Lower))
	}
	return printAll(o.Out, rows)
}

// slowdown runs the programs of list in memory of which percent % are local, where ours runs them, beside ordinary
// memory. least has the bounds for a page that is brought, if they are known.
func (s pagesScale) slowdown(ctx context.Context, o Options, where string, percent int64, list []program, least bound, ours func(context.Context, job) (result, error)) error {
	plain := make([]byte, s.work)
	theirs := func(_ context.Context, j job) (result, error) { return j.with(plain, list) }
	for _, p := range list {
		var took [2][]float64
		for round := range s.rounds + 1 {
			if round == 0 && !p.again {
				continue // round 0 only warms up
			}
			var sums [2]uint64
			for i, do := range []func(context.Context, job) (result, error){ours, theirs} {
				for _, what := range []string{"prepare", "run", "check"} {
					if what == "prepare" && p.again && round > 0 {
						continue
					}
					r, err := do(ctx, job{Do: what, Program: p.name, Accesses: s.accesses})
					if ctx.Err() != nil {
						return context.Cause(ctx)
					}
					if err != nil {
						return fmt.Errorf("%s, %s: %w", where, p.name, err)
					}
					if what == "run" && round > 0 {
						took[i] = append(took[i], r.Took)
					}
					if what == "run" {
						sums[i] = r.Sum
					}
				}
			}
			if sums[0] != sums[1] {
				return fmt.Errorf("%s, %s: found %d with %d %% of the memory local, and %d with all", where, p.name, sums[0], percent, sums[1])
			}
		}
		row := benchout.Row{Bench: "pages", Case: fmt.Sprintf("%s, %s, %d %% local", where, p.name, percent), Metric: "time", Value: median(took[0]), Unit: "ms"}
		rows := []benchout.Row{row.Against("all local", median(took[1]), benchout.Lower)}
		if p.name == "sequential" && least.wire > 0 {
			local, far := median(took[1]), float64(s.accesses)*float64(100-percent)/100
			rows = append(rows, row.Against("bound by bandwidth", max(far*least.wire, local), benchout.Lower))
			// The bound assumes that all processors do nothing but the kernel's part and the program.
			rows = append(rows, row.Against("bound by the kernel", max((far*least.kernel+local)/float64(runtime.NumCPU()), local), benchout.Lower))
		}
		if err := printAll(o.Out, rows); err != nil {
			return err
		}
	}
	return nil
}

// swap runs the programs in a process whose memory the kernel swaps out, to zram, and then to
// borrowed memory over NBD.
func (s pagesScale) swap(ctx context.Context, o Options) error {
	if least := int64(32 << 20); s.work < least { // beside this, what the process has for itself is little
		s.work, s.accesses = least, s.accesses*int(least/s.work)
	}
	for _, to := range []struct {
		name string
		make func() (swapDisk, error)
	}{
		{"zram", func() (swapDisk, error) { return newZram(ctx, s.work) }},
		{"NBD", func() (swapDisk, error) { return newBorrowed(ctx, o.Polder, s.work) }},
	} {
		disk, err := to.make()
		if err == nil {
			err = s.swapTo(ctx, o, to.name)
			err = errors.Join(err, disk.close())
		} else if ctx.Err() == nil {
			o.note(fmt.Sprintf("the kernel cannot swap to %s here: the comparison with it is left out: %v", to.name, err))
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s pagesScale) swapTo(ctx context.Context, o Options, where string) error {
	for _, percent := range s.percents {
		p, err := startSwapped(o.Polder, s.work, s.work*percent/100)
		if err == nil {
			err = s.slowdown(ctx, o, where, percent, programs(s.work, s.accesses), bound{}, p.do)
			err = errors.Join(err, p.close())
		}
		if errors.Is(err, errSwapped) {
			o.note(fmt.Sprintf("the rest of the comparison with the kernel's swapping to %s is left out: %v", where, err))
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// placement says on which CPUs processes run.
type placement struct {
	name            string
	program, others unix.CPUSet
}

func placements(all unix.CPUSet) []placement {
	list := []placement{{"not pinned", all, all}}
	if runtime.NumCPU() < 2 {
		return list
	}
	var cpus [2]unix.CPUSet
	found := 0
	for cpu := 0; found < 2; cpu++ {
		if all.IsSet(cpu) {
			cpus[found].Set(cpu)
			found++
		}
	}
	return append(list, placement{"one CPU", cpus[0], cpus[0]}, placement{"two CPUs", cpus[0], cpus[1]})
}

func allowed(pid int) (set unix.CPUSet, err error) {
	err = unix.SchedGetaffinity(pid, &set)
	return set, err
}

// pin has all threads of a process, and those that they make, run on these CPUs.
func pin(set unix.CPUSet, pid int) error {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return err
	}
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(id, &set); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("cannot pin a process to CPUs: %w", err)
		}
	}
	return nil
}
