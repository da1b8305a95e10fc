package farbench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"polder/far"
	"polder/measure/benchout"
)

// object is a cache line.
type object [8]int64

// setting is objects to be dereferenced, plain and far, in an order.
type setting struct {
	name  string
	plain []*object
	ptrs  far.Run[object]
	order []uint32
	loops int // times that order is gone through in a round
}

// RunDeref compares dereferences of a plain pointer, of a far.Ptr in one scope,
// with a scope for every access, and for writing, in cache and in memory: in an
// order that is known beforehand, so that the processor has as many under way as
// it can, and chased, where each object says which is the next.
func RunDeref(ctx context.Context, o Options) error {
	rounds, dram := 21, 1<<20
	if o.Short {
		rounds = 9
	}
	heap, err := far.NewHeap(far.NewMemStore(2<<20, 256), far.Config{Local: 512 << 20, HeldTooLong: time.Minute})
	if err != nil {
		return err
	}
	defer heap.Close()
	class, err := far.NewClass[object](heap, far.ClassConfig{Name: "bench"})
	if err != nil {
		return err
	}
	for _, set := range []setting{
		{name: "in cache", plain: make([]*object, 128), loops: 1 << 13},
		{name: fmt.Sprintf("%d objects in DRAM", dram), plain: make([]*object, dram), loops: 1},
	} {
		n := len(set.plain)
		if set.ptrs, err = class.NewRun(ctx, n); err != nil {
			return err
		}
		set.order = make([]uint32, n)
		for i, j := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
			set.order[i] = uint32(j)
		}
		if err := set.run(ctx, heap, rounds, o.Out); err != nil {
			return err
		}
	}
	return nil
}

func (t *setting) run(ctx context.Context, heap *far.Heap, rounds int, out benchout.Printer) error {
	s := heap.NewScope()
	defer s.Close()
	for i := range t.plain {
		t.plain[i] = new(object)
		for range 2 { // the second time it is not new any more
			s.Enter()
			p := t.ptrs.At(i).DerefMut(s)
			s.Leave()
			if p == nil {
				return s.Err()
			}
		}
	}
	// The objects form a ring, for the contestants that chase.
	for k, i := range t.order {
		next := int64(t.order[(k+1)%len(t.order)])
		t.plain[i][1] = next
		s.Enter()
		t.ptrs.At(int(i)).DerefMut(s)[1] = next
		s.Leave()
	}
	contestants := []struct {
		name string
		run  func(*setting, *far.Scope) int64
		ns   []float64
	}{
		{name: "plain pointer", run: (*setting).readPlain},
		{name: "Ptr, one scope", run: (*setting).readOneScope},
		{name: "Ptr, a scope per access", run: (*setting).readScopes},
		{name: "plain pointer, written", run: (*setting).writePlain},
		{name: "Ptr, DerefMut", run: (*setting).writeOneScope},
		{name: "plain pointer, chased", run: (*setting).chasePlain},
		{name: "Ptr, one scope, chased", run: (*setting).chaseOneScope},
		{name: "Ptr, a scope per access, chased", run: (*setting).chaseScopes},
	}
	// The thread's clock does not count what other programs do while this one is preempted.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var sum int64
	for range rounds {
		for i := range contestants {
			if err := ctx.Err(); err != nil {
				return err
			}
			c := &contestants[i]
			begin, err := threadTime()
			sum += c.run(t, s)
			end, err2 := threadTime()
			if err := errors.Join(err, err2); err != nil {
				return err
			}
			c.ns = append(c.ns, float64((end-begin).Nanoseconds())/float64(t.loops*len(t.order)))
		}
	}
	if sum < 0 { // sum is used, so that it is computed
		return fmt.Errorf("the sum of zeros and of numbers of objects is %d", sum)
	}
	rivals := map[int]int{1: 0, 2: 0, 4: 3, 6: 5, 7: 5}
	medians := make([]float64, len(contestants))
	for i, c := range contestants {
		medians[i] = median(c.ns)
		row := benchout.Row{Bench: "far deref", Case: t.name + ", " + c.name, Metric: "median", Value: medians[i], Unit: "ns"}
		if r, ok := rivals[i]; ok {
			row = row.Against(contestants[r].name, medians[r], benchout.Lower)
		}
		if err := out.Print(row); err != nil {
			return err
		}
	}
	return nil
}

// threadTime is the processor time that this thread has used.
func threadTime() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0, fmt.Errorf("cannot read the thread's clock: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}

func (t *setting) readPlain(*far.Scope) (sum int64) {
	plain := t.plain
	for range t.loops {
		for _, i := range t.order {
			sum += plain[i][0]
		}
	}
	return sum
}

func (t *setting) readOneScope(s *far.Scope) (sum int64) {
	ptrs := t.ptrs
	s.Enter()
	for range t.loops {
		for _, i := range t.order {
			sum += ptrs.At(int(i)).Deref(s)[0]
		}
	}
	s.Leave()
	return sum
}

func (t *setting) readScopes(s *far.Scope) (sum int64) {
	ptrs := t.ptrs
	for range t.loops {
		for _, i := range t.order {
			s.Enter()
			sum += ptrs.At(int(i)).Deref(s)[0]
			s.Leave()
		}
	}
	return sum
}

func (t *setting) writePlain(*far.Scope) int64 {
	plain := t.plain
	for range t.loops {
		for _, i := range t.order {
			plain[i][0]++
		}
	}
	return 0
}

func (t *setting) writeOneScope(s *far.Scope) int64 {
	ptrs := t.ptrs
	s.Enter()
	for range t.loops {
		for _, i := range t.order {
			ptrs.At(int(i)).DerefMut(s)[0]++
		}
	}
	s.Leave()
	return 0
}

func (t *setting) chasePlain(*far.Scope) int64 {
	plain := t.plain
	at := int64(0)
	for range t.loops * len(t.order) {
		at = plain[at][1]
	}
	return at
}

func (t *setting) chaseOneScope(s *far.Scope) int64 {
	ptrs := t.ptrs
	at := int64(0)
	s.Enter()
	for range t.loops * len(t.order) {
		at = ptrs.At(int(at)).Deref(s)[1]
	}
	s.Leave()
	return at
}

func (t *setting) chaseScopes(s *far.Scope) int64 {
	ptrs := t.ptrs
	at := int64(0)
	for range t.loops * len(t.order) {
		s.Enter()
		at = ptrs.At(int(at)).Deref(s)[1]
		s.Leave()
	}
	return at
}
