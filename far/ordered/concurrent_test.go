package ordered

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// Calls on a map are linearizable, those that concern all keys as well.
type input struct {
	op   byte // 's'et, 'd'elete, 'g'et, 'r'ank, 'a't, 'l'en
	k, v int
}

type output struct {
	k, v int
	ok   bool
}

const linearKeys = 10

// linearState is the value of each key, 0 for none.
type linearState [linearKeys]int

var linearModel = porcupine.Model{
	Init: func() any { return linearState{} },
	Step: func(state, in, out any) (bool, any) {
		s, i, o := state.(linearState), in.(input), out.(output)
		var keys []int // that are there
		rank := 0
		for k, v := range s {
			if v != 0 {
				if keys = append(keys, k); k < i.k {
					rank++
				}
			}
		}
		switch i.op {
		case 's':
			s[i.k] = i.v
			return true, s
		case 'd':
			was := s[i.k]
			s[i.k] = 0
			return o.ok == (was != 0), s
		case 'g':
			return o.v == s[i.k] && o.ok == (o.v != 0), s
		case 'r':
			return o.v == rank, s
		case 'a':
			if i.k >= len(keys) {
				return !o.ok, s
			}
			return o.ok && o.k == keys[i.k] && o.v == s[o.k], s
		default:
			return o.v == len(keys), s
		}
	},
}

func TestCallsAreLinearizable(t *testing.T) {
	const workers, steps = 5, 150
	w := newWorld(t, 400)
	m := newSmall[string, [24]int32](w.Heap, "linear")
	m.t.room = 4 * cost(make([]byte, 8), make([]byte, 96))
	key := func(k int) string { return fmt.Sprintf("key %02d", k) }
	w.push(t)
	var mu sync.Mutex
	var history []porcupine.Operation
	start := time.Now()
	var wg sync.WaitGroup
	for worker := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(worker), 7))
			for i := range steps {
				in := input{op: "sssddggral"[r.IntN(10)], k: r.IntN(linearKeys), v: worker*steps + i + 1}
				var out output
				var v [24]int32
				var k string
				var err error
				call := time.Since(start)
				switch in.op {
				case 's':
					err = m.Set(t.Context(), key(in.k), [24]int32{int32(in.v), 23: int32(in.v)})
				case 'd':
					out.ok, err = m.Delete(t.Context(), key(in.k))
				case 'g':
					v, out.ok, err = m.Get(t.Context(), key(in.k))
				case 'r':
					out.v, err = m.Rank(t.Context(), key(in.k))
				case 'a':
					if k, v, out.ok, err = m.At(t.Context(), in.k); out.ok {
						_, err = fmt.Sscanf(k, "key %d", &out.k)
					}
				case 'l':
					out.v = m.Len()
				}
				back := time.Since(start)
				if v[0] != v[23] {
					t.Errorf("a value is torn: %v", v)
				}
				if in.op == 'g' || in.op == 'a' {
					out.v = int(v[0])
				}
				if err != nil {
					t.Errorf("%c: %v", in.op, err)
					return
				}
				mu.Lock()
				history = append(history, porcupine.Operation{ClientId: worker, Input: in, Output: out, Call: int64(call), Return: int64(back)})
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if r := porcupine.CheckOperationsTimeout(linearModel, history, 30*time.Second); r != porcupine.Ok {
		t.Fatalf("the history is not linearizable: %s", r)
	}
	if err := m.t.audit(t.Context()); err != nil {
		t.Error(err)
	}
}

// Whatever others set and delete meanwhile, an iteration in either direction yields exactly once, and in
// order, what is there all the time.
func TestAnIterationYieldsWhatStays(t *testing.T) {
	w := newWorld(t, 400)
	m := newSmall[int, int](w.Heap, "stays")
	const n = 1500
	for k := 0; k < n; k += 2 {
		if err := m.Set(t.Context(), k, -k); err != nil {
			t.Fatal(err)
		}
	}
	w.push(t)
	ctx, cancel := context.WithCancel(t.Context())
	var changes atomic.Int64
	var writers, readers sync.WaitGroup
	for worker := range 2 {
		writers.Go(func() {
			r := rand.New(rand.NewPCG(uint64(worker), 8))
			for ctx.Err() == nil {
				// A run of odd keys, so that leaves between even ones come and go.
				k := r.IntN(n/2)*2 + 1
				for i := range 20 {
					if err := m.Set(t.Context(), k+2*i, k); err != nil {
						t.Error(err)
					}
				}
				for i := range 20 {
					if _, err := m.Delete(t.Context(), k+2*i); err != nil {
						t.Error(err)
					}
				}
				changes.Add(1)
			}
		})
	}
	for worker := range 2 {
		readers.Go(func() {
			s := w.NewScope()
			defer s.Close()
			for range 6 {
				seq, next, step := m.All(s), 0, 2
				if worker == 1 {
					seq, next, step = m.Backward(s), n-2, -2
				}
				last := next - step*n
				for k, v := range seq {
					if (k-last)*step <= 0 {
						t.Errorf("%d comes after %d", k, last)
					}
					if last = k; k%2 != 0 {
						continue
					}
					if k != next || v != -k {
						t.Errorf("got %d: %d, want %d", k, v, next)
						return
					}
					next += step
				}
				if err := s.Err(); err != nil || next != n && next != -2 {
					t.Errorf("the iteration has ended at %d: %v", next, err)
				}
			}
		})
	}
	readers.Wait()
	cancel()
	writers.Wait()
	if changes.Load() == 0 {
		t.Error("nothing has changed meanwhile")
	}
	if err := m.t.audit(t.Context()); err != nil {
		t.Error(err)
	}
}
