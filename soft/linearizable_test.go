package soft

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"polder/internal/linear"
)

// swapped is one operation on a value that may vanish.
type swapped struct {
	key      int
	op       byte // 'r'ead, 'w'rite, 's'wap
	old, new uint64
}

// vanishing is a register that may lose its value at any time: a read that
// misses and a swap that fails say nothing.
var vanishing = porcupine.Model{
	Partition: linear.By(func(in swapped) int { return in.key }),
	Init:      func() any { return uint64(0) },
	Step: func(state, input, output any) (bool, any) {
		in, out := input.(swapped), output.(uint64) // read: the value; write, swap: 1 if done
		switch {
		case out == 0:
			return true, state
		case in.op == 'r':
			return state == out, state
		case in.op == 'w':
			return true, in.new
		}
		return state == in.old, in.new
	},
}

// register is what both a pointer and an array's element can do.
type register interface {
	load() (uint64, bool)
	store(v uint64) bool
	swap(old, new uint64) bool
}

type words4 [4]uint64

func spreadOut(v uint64) words4 { return words4{v, ^v, v * 3, v ^ 0x5555} }

type ptrRegister struct{ p *Ptr[words4] }

func (r ptrRegister) load() (uint64, bool) {
	var v words4
	ok := r.p.Load(&v)
	return joined(v), ok
}
func (r ptrRegister) store(v uint64) bool { return r.p.Store(spreadOut(v)) == nil }
func (r ptrRegister) swap(old, new uint64) bool {
	ok, err := r.p.CompareAndSwap(spreadOut(old), spreadOut(new))
	return ok && err == nil
}

type arrayRegister struct {
	a *Array[words4]
	i int
}

func (r arrayRegister) load() (uint64, bool) {
	var v words4
	ok := r.a.Load(r.i, &v)
	return joined(v), ok
}
func (r arrayRegister) store(v uint64) bool { return r.a.Store(r.i, spreadOut(v)) == nil }
func (r arrayRegister) swap(old, new uint64) bool {
	ok, err := r.a.CompareAndSwap(r.i, spreadOut(old), spreadOut(new))
	return ok && err == nil
}

// joined is the value, or one that nobody stores if it is torn.
func joined(v words4) uint64 {
	if v != spreadOut(v[0]) {
		return ^uint64(0)
	}
	return v[0]
}

// TestStoresInPlaceAreLinearizable has goroutines read, store and swap a few
// values while the evacuator moves them without a pause and segments are
// revoked, and checks every history.
func TestStoresInPlaceAreLinearizable(t *testing.T) {
	const segments, keys, workers, ops = 16, 4, 4, 2000
	h := openShared(t, segments)
	pool := newPointers[words4](t, h, nil)
	a, err := NewArray[words4](h, keys, nil)
	if err != nil {
		t.Fatal(err)
	}
	filler, err := NewArray[[64 << 10]byte](h, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	ptrs := make([]Ptr[words4], keys)
	var values []register
	for i := range ptrs {
		if err := pool.Init(&ptrs[i], spreadOut(0)); err != nil {
			t.Fatal(err)
		}
		values = append(values, ptrRegister{&ptrs[i]}, arrayRegister{a, i})
	}

	var moves, revocations atomic.Int64
	disturb := func(r *rand.Rand, n int) {
		if n%8 == 0 { // seals a segment every now and then, and has one emptied
			_ = filler.Store(0, [64 << 10]byte{})
			if n%64 == 0 && h.evac.collectOne() == nil {
				moves.Add(1)
			}
		}
		if seg := r.Uint32N(segments * 16); seg < segments && h.ctl.Revoke(seg) {
			revocations.Add(1)
			_ = h.discard(seg)
			h.ctl.Grant(seg)
		}
	}

	var clock atomic.Int64
	var next atomic.Uint64
	history := make([][]porcupine.Operation, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(w)))
			last := make([]uint64, len(values)) // as far as this worker knows
			for n := range ops {
				disturb(r, n)
				k := r.IntN(len(values))
				v, out := values[k], uint64(0)
				in := swapped{key: k, op: "rrws"[r.IntN(4)], old: last[k], new: next.Add(1)}
				call := clock.Add(1)
				switch in.op {
				case 'r':
					if got, ok := v.load(); ok {
						out, last[k] = got, got
					}
				case 'w':
					if v.store(in.new) {
						out, last[k] = 1, in.new
					}
				case 's':
					if v.swap(in.old, in.new) {
						out, last[k] = 1, in.new
					}
				}
				history[w] = append(history[w], porcupine.Operation{
					ClientId: w, Input: in, Output: out, Call: call, Return: clock.Add(1),
				})
			}
		})
	}
	wg.Wait()
	done := 0
	var all []porcupine.Operation
	for _, part := range history {
		for _, o := range part {
			if o.Output.(uint64) != 0 {
				done++
			}
		}
		all = append(all, part...)
	}
	t.Logf("%d of %d operations were done, %d segments emptied, %d revoked", done, len(all), moves.Load(), revocations.Load())
	if done < len(all)/4 || moves.Load() == 0 || revocations.Load() == 0 {
		t.Error("nothing was tried")
	}
	if got := porcupine.CheckOperationsTimeout(vanishing, all, time.Minute); got != porcupine.Ok {
		t.Errorf("the history is %v", got)
	}
}
