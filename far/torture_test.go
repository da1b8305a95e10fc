package far

import (
	"context"
	"errors"
	"flag"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"polder/far/heap"
	"polder/internal/failpoint"
	"polder/internal/invariants"
)

var tortureFor = flag.Duration("far.torture", 0, "how long TestTortureOfObjects runs; TEST_SOAK does the same")

// tortured is an object that knows whether its bytes are right.
type tortured struct {
	Sum  uint32
	ID   uint32
	N    uint64
	Data [120]byte
}

func (o *tortured) fill(id uint32, n uint64) {
	o.ID, o.N = id, n
	r := rand.New(rand.NewPCG(uint64(id), n))
	for i := 0; i < len(o.Data); i += 8 {
		v := r.Uint64()
		for j := range 8 {
			o.Data[i+j] = byte(v >> (8 * j))
		}
	}
	o.Sum = o.sum()
}

func (o *tortured) sum() uint32 {
	return crc32.Update(o.ID^uint32(o.N), crc32.MakeTable(crc32.Castagnoli), o.Data[:])
}

// tortureSlot is one pointer of the torture test, which its lock guards: whoever
// reads the object while others write needs one, as with any memory.
type tortureSlot struct {
	mu sync.RWMutex
	p  Ptr[tortured]
	n  uint64
}

// Objects stay what they are while sixteen goroutines read, write, replace and
// hold them, the budget shrinks and grows, and the evacuator is made to run
// all the time and to dawdle at every fence.
func TestTortureOfObjects(t *testing.T) { torture(t, openObjects) }

// The same, while their words go far as soon as they may.
func TestTortureOfObjectsWhoseWordsAreFar(t *testing.T) { torture(t, openDrowsy) }

func torture(t *testing.T, open func(t testing.TB, store heap.Store, segments int) *Heap) {
	const workers, slots = 16, 4000
	rounds := 1200
	if invariants.Enabled { // "make plain" has them all
		rounds = 500
	}
	var end time.Time
	if d, err := time.ParseDuration(os.Getenv("TEST_SOAK")); err == nil {
		end = time.Now().Add(d)
	} else if *tortureFor > 0 {
		end = time.Now().Add(*tortureFor)
	}
	var dawdle atomic.Uint32
	failpoint.Set(func(string) {
		for range dawdle.Add(1) % 64 {
			runtime.Gosched()
		}
	})
	t.Cleanup(func() { failpoint.Set(nil) }) // when the heap has been closed
	h := open(t, heap.NewMemStore(tinySegment, 1<<12), 40)
	ctx := context.Background()
	c, err := NewClass[tortured](h, ClassConfig{Name: "tortured", HotBits: 2})
	if err != nil {
		t.Fatal(err)
	}
	all, copied := make([]tortureSlot, slots), make([]tortureSlot, slots/4)
	for _, sls := range [][]tortureSlot{all, copied} {
		for i := range sls {
			var v tortured
			v.fill(uint32(i), 0)
			if sls[i].p, err = c.New(ctx, v); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop := make(chan struct{})
	var tormentors, wg sync.WaitGroup
	tormentors.Go(func() {
		full := h.Local()
		for r := rand.New(rand.NewPCG(9, 9)); ; {
			select {
			case <-stop:
				if err := h.SetLocal(ctx, full); err != nil {
					t.Error(err)
				}
				return
			default:
			}
			n := full - int64(r.IntN(24))*int64(h.core.Logs.SegSize)
			if err := h.SetLocal(ctx, n); err != nil {
				t.Errorf("SetLocal(%d): %v", n, err)
				return
			}
			if st := h.Stats(); st.Resident > n {
				t.Errorf("%d bytes are resident with a budget of %d", st.Resident, n)
			}
			h.core.Forced.Store(true)
			h.core.Logs.Wake()
			runtime.Gosched()
		}
	})
	for id := range workers {
		wg.Go(func() {
			s := h.NewScope()
			defer s.Close()
			r := rand.New(rand.NewPCG(uint64(id), 11))
			check := func(i int, o *tortured, n uint64) bool {
				if o == nil {
					if err := s.Err(); !errors.Is(err, heap.ErrScopeFull) {
						t.Errorf("worker %d: object %d: %v", id, i, err)
					}
					return false
				}
				if o.Sum != o.sum() || o.ID != uint32(i) || o.N != n {
					t.Errorf("worker %d: object %d has version %d, want %d, id %d, checksum %x, want %x", id, i, o.N, n, o.ID, o.Sum, o.sum())
					return false
				}
				return true
			}
			for round := 0; !t.Failed() && (round < rounds || time.Now().Before(end)); round++ {
				i := r.IntN(slots)
				if r.IntN(4) > 0 {
					i = r.IntN(slots / 16) // hot
				}
				sl := &all[i]
				switch r.IntN(8) {
				case 0, 1, 2: // read, several at a time
					s.Enter()
					var held [6]*tortured
					for j := range held {
						k := (i + j*7) % slots
						sl := &all[k]
						sl.mu.RLock()
						if r.IntN(5) == 0 {
							held[j] = sl.p.DerefStream(s)
						} else {
							held[j] = sl.p.Deref(s)
						}
						check(k, held[j], sl.n)
						sl.mu.RUnlock()
					}
					runtime.Gosched()
					for j, o := range held {
						sl := &all[(i+j*7)%slots]
						sl.mu.RLock()
						// It is still there, and if it was not replaced, whole.
						if o != nil && sl.p.Deref(s) == o && o.Sum != o.sum() {
							t.Errorf("worker %d: a held object is damaged", id)
						}
						sl.mu.RUnlock()
					}
					s.Leave()
				case 3, 4: // write
					s.Enter()
					sl.mu.Lock()
					o := sl.p.DerefMut(s)
					if check(i, o, sl.n) {
						runtime.Gosched()
						sl.n++
						o.fill(uint32(i), sl.n)
					}
					sl.mu.Unlock()
					s.Leave()
				case 5: // copy, under locks that nobody takes in a scope
					i %= len(copied)
					sl := &copied[i]
					sl.mu.Lock()
					v, err := sl.p.Load(ctx)
					if err != nil {
						t.Errorf("worker %d: Load: %v", id, err)
					} else if check(i, &v, sl.n) {
						v.fill(uint32(i), sl.n+1)
						if err := sl.p.Store(ctx, v); err != nil {
							t.Errorf("worker %d: Store: %v", id, err)
						}
						sl.n++
					}
					sl.mu.Unlock()
				case 6: // replace
					var v tortured
					v.fill(uint32(i), 1<<32)
					p, err := c.New(ctx, v)
					if err != nil {
						t.Errorf("worker %d: New: %v", id, err)
						break
					}
					sl.mu.Lock()
					old := sl.p
					sl.p, sl.n = p, 1<<32
					sl.mu.Unlock()
					old.Free()
				case 7: // make and free in a scope
					s.Enter()
					p, o, err := c.NewIn(s)
					if err == nil {
						o.fill(77, uint64(round))
						runtime.Gosched()
						check(77, o, uint64(round))
						p.Free()
						check(77, o, uint64(round))
					} else if !errors.Is(err, heap.ErrScopeFull) {
						t.Errorf("worker %d: NewIn: %v", id, err)
					}
					s.Leave()
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	tormentors.Wait()
	s := h.NewScope()
	defer s.Close()
	for i := range all {
		s.Enter()
		o := all[i].p.Deref(s)
		if o == nil || o.Sum != o.sum() || o.ID != uint32(i) || o.N != all[i].n {
			t.Fatalf("in the end object %d is %+v (%v), want version %d", i, o, s.Err(), all[i].n)
		}
		s.Leave()
		all[i].p.Free()
	}
	st := h.Stats()
	t.Logf("%d segments evacuated, %d objects written, %d dropped clean, %d fetched, %+v", st.EvacuatedSegments, st.Evacuated, st.EvacuatedClean, st.Fetches, st.Classes)
	if st.Evacuated == 0 || st.Fetches == 0 || st.Classes[0].Rescued == 0 {
		t.Errorf("the test tested nothing: %+v", st)
	}
}
