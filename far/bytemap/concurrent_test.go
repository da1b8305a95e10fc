package bytemap

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"polder/far/heap"
	"polder/far/store/storetest"
	"polder/internal/linear"
)

// Operations on one key are linearizable. A key's state is a number, 0 for
// none; "add" adds by Update.
type kvInput struct {
	op  byte // 'g'et, get 'm'any, 's'et, 'd'elete, 'a'dd
	key int
	n   uint64
}

type kvOutput struct {
	n     uint64
	found bool
}

var kvModel = porcupine.Model{
	Partition: linear.By(func(in kvInput) int { return in.key }),
	Init:      func() any { return uint64(0) },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(uint64), input.(kvInput), output.(kvOutput)
		switch in.op {
		case 's':
			return true, in.n
		case 'a':
			return out.n == s+in.n, s + in.n
		case 'd':
			return out.found == (s != 0), uint64(0)
		default:
			return out.found == (s != 0) && out.n == s, s
		}
	},
}

// numbered makes a value that stands for n and says so all over.
func numbered(n uint64, size int) []byte {
	b := make([]byte, max(size, 8))
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], n)
	}
	return b
}

func numberOf(t *testing.T, b []byte) uint64 {
	n := binary.LittleEndian.Uint64(b)
	for i := 8; i+8 <= len(b); i += 8 {
		if got := binary.LittleEndian.Uint64(b[i:]); got != n {
			t.Errorf("a value is torn: %d at 0, %d at %d of %d", n, got, i, len(b))
		}
	}
	return n
}

func TestOperationsAreLinearizable(t *testing.T) {
	const keys, workers, steps = 60, 6, 600
	_, m := newTinyHeap(t, storetest.New(tinySegment, 2000), 0)
	ctx := within(t, time.Minute)
	var mu sync.Mutex
	var history []porcupine.Operation
	start := time.Now()
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 5))
			for i := range steps {
				in := kvInput{op: "ggmmsssdaa"[r.IntN(10)], key: r.IntN(keys), n: uint64(w*steps+i) + 1}
				size := r.IntN(1500)
				if r.IntN(20) == 0 {
					size = 3000 + r.IntN(20000)
				}
				k := key(in.key)
				var out kvOutput
				var err error
				call := time.Since(start)
				switch in.op {
				case 'g':
					var e Entry
					if e, err = m.Get(ctx, k, nil); err == nil {
						out = kvOutput{numberOf(t, e.Value), true}
					} else if errors.Is(err, ErrNotFound) {
						err = nil
					}
				case 'm': // one of many, and the same one twice
					keys := [][]byte{k, key(r.IntN(keys)), key(r.IntN(keys)), k}
					m.GetMany(ctx, keys, func(i int, e Entry, e1 error) {
						switch {
						case i != 0:
						case e1 == nil:
							out = kvOutput{numberOf(t, e.Value), true}
						case !errors.Is(e1, ErrNotFound):
							err = e1
						}
					})
				case 's':
					err = m.Set(ctx, k, Entry{Value: numbered(in.n, size)})
				case 'd':
					out.found, err = m.Delete(ctx, k)
				case 'a':
					err = m.Update(ctx, k, func(old Entry, found bool) (Entry, Verdict, error) {
						out.n = in.n
						if found {
							out.n += numberOf(t, old.Value)
						}
						return Entry{Value: numbered(out.n, size)}, Put, nil
					})
				}
				back := time.Since(start)
				if err != nil {
					t.Errorf("%c: %v", in.op, err)
					return
				}
				mu.Lock()
				history = append(history, porcupine.Operation{
					ClientId: w, Input: in, Output: out, Call: int64(call), Return: int64(back),
				})
				mu.Unlock()
				if i%10 == 0 { // push everything out
					for j := range 15 {
						if err := m.Set(ctx, fmt.Append(nil, "ballast", w, j), Entry{Value: value(1, 1500)}); err != nil {
							t.Error(err)
						}
					}
				}
			}
		})
	}
	wg.Wait()
	if r := porcupine.CheckOperationsTimeout(kvModel, history, 20*time.Second); r != porcupine.Ok {
		t.Fatalf("the history is not linearizable: %s", r)
	}
	if f := m.h.core.Stats().Fetches; f == 0 {
		t.Error("nothing was fetched")
	}
}

// stamped makes a value that says whose it is and whether it is whole.
func stamped(k int, size int) []byte {
	b := append(make([]byte, 8, 8+size), value(rand.Uint64(), size)...)
	binary.LittleEndian.PutUint32(b[4:], uint32(k))
	binary.LittleEndian.PutUint32(b, crc32.ChecksumIEEE(b[4:]))
	return b
}

func checkStamp(k int, b []byte) error {
	if len(b) < 8 || binary.LittleEndian.Uint32(b[4:]) != uint32(k) {
		return fmt.Errorf("the value of key %d is another's", k)
	}
	if binary.LittleEndian.Uint32(b) != crc32.ChecksumIEEE(b[4:]) {
		return fmt.Errorf("the value of key %d, %d bytes, is damaged", k, len(b))
	}
	return nil
}

// Everything at once, over a store that fails, lies, loses and is now and then
// full: no call returns wrong bytes, hangs, or breaks the budget.
func TestTorture(t *testing.T) {
	const keys, workers, steps = 1500, 8, 8000
	store := storetest.New(tinySegment, 60)
	store.Flaky.Store(5)
	store.Corrupt.Store(3)
	h, m := newTinyHeap(t, store, 0)
	other := h.NewByteMap("other")
	var done atomic.Bool
	var watchers, wg sync.WaitGroup
	watchers.Go(func() {
		for !done.Load() {
			if s := h.Stats(); s.Resident > s.Budget || s.LocalLive < 0 || s.FarLive < 0 {
				t.Errorf("out of bounds: %+v", s)
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
	allowed := func(err error) bool {
		var le *heap.LostError
		var ce *heap.CorruptError
		return err == nil || errors.Is(err, ErrNotFound) || errors.Is(err, storetest.ErrInjected) || errors.Is(err, heap.ErrFull) ||
			errors.Is(err, heap.ErrWouldBlock) || errors.Is(err, context.DeadlineExceeded) ||
			errors.As(err, &le) || errors.As(err, &ce)
	}
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 9))
			buf := make([]byte, 0, 64<<10)
			for i := range steps {
				k := int(float64(keys) * r.Float64() * r.Float64())
				m := m
				if r.IntN(8) == 0 {
					m = other
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				if r.IntN(4) == 0 {
					ctx = heap.NoWait
				}
				var err error
				var e Entry
				switch op := r.IntN(100); {
				case op < 15:
					m.GetMany(ctx, [][]byte{key(k), key(k + 1), key(k), key(k + 7)}, func(i int, e Entry, e1 error) {
						if e1 == nil {
							e1 = checkStamp(k+[]int{0, 1, 0, 7}[i], e.Value)
						}
						if !allowed(e1) {
							t.Error("GetMany: ", e1)
						}
					})
				case op < 45:
					if e, err = m.Get(ctx, key(k), buf); err == nil {
						if err := checkStamp(k, e.Value); err != nil {
							t.Error("Get: ", err)
						}
					}
				case op < 75:
					size := r.IntN(1500)
					if r.IntN(30) == 0 {
						size *= 20
					}
					e := Entry{Value: stamped(k, size)}
					if r.IntN(4) == 0 {
						e.Expire = time.Now().Add(time.Duration(r.IntN(200)) * time.Millisecond)
					}
					err = m.Set(ctx, key(k), e)
				case op < 82:
					_, err = m.Delete(ctx, key(k))
				case op < 88:
					err = m.Update(ctx, key(k), func(old Entry, found bool) (Entry, Verdict, error) {
						if found {
							if err := checkStamp(k, old.Value); err != nil {
								t.Error("Update: ", err)
							}
						}
						return Entry{Value: stamped(k, r.IntN(3000))}, Verdict(r.IntN(3)), nil
					})
				case op < 90:
					err = m.FetchHeads(ctx, [][]byte{key(k), key(k + 1), key(k + 2), key(k + 3)})
				case op < 93:
					err = m.Prefetch(ctx, key(k), key(k+1), key(k+2), key(k+3))
				case op < 96:
					_, _, err = m.Stat(ctx, key(k))
				case op < 98:
					_, err = m.Scan(ctx, r.Uint64()%(8<<32), func(key []byte, _ Entry) {})
				case op < 99:
					_, err = m.Random(ctx, nil)
				case i%1000 == 0:
					other.Clear()
				case i%400 == 0:
					n := r.IntN(20)
					store.Lose(func(i int, _ heap.Segment) bool { return i == n })
				}
				cancel()
				if !allowed(err) {
					t.Errorf("unexpected: %v", err)
				}
			}
		})
	}
	wg.Wait()
	done.Store(true)
	watchers.Wait()
	t.Logf("%+v", h.Stats())
	store.Flaky.Store(0)
	store.Corrupt.Store(0)
	m.Clear()
	other.Clear()
	for i := range 300 {
		mustSet(t, m, key(i), value(uint64(i), 1000))
	}
	for i := range 300 {
		mustGet(t, m, key(i), value(uint64(i), 1000))
	}
	if m.Len() != 300 || other.Len() != 0 {
		t.Errorf("Len: got %d and %d, want 300 and 0", m.Len(), other.Len())
	}
}

// What is there throughout a scan is yielded, however the map grows meanwhile.
func TestScanMissesNothingWhileTheMapGrows(t *testing.T) {
	_, m := newTinyHeap(t, storetest.New(tinySegment, 4000), 1<<20)
	const n = 5000
	for i := range n {
		mustSet(t, m, key(i), value(uint64(i), 100))
	}
	seen := map[string]bool{}
	more := n
	ctx := within(t, time.Minute)
	for cursor := uint64(0); ; {
		next, err := m.Scan(ctx, cursor, func(k []byte, e Entry) { seen[string(k)] = true })
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			mustSet(t, m, key(more), value(uint64(more), 100))
			more++
		}
		if cursor = next; next == 0 {
			break
		}
	}
	for i := range n {
		if !seen[string(key(i))] {
			t.Errorf("key %d was not yielded", i)
		}
	}
	for _, cursor := range []uint64{1<<64 - 1, 8 << 32, 7<<32 + 1<<32 - 1} {
		if next, err := m.Scan(ctx, cursor, func([]byte, Entry) {}); next != 0 || err != nil {
			t.Errorf("Scan from cursor %#x: got %#x, %v, want the end", cursor, next, err)
		}
	}
}
