package far

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"polder/far/heap"
)

func BenchmarkLocal(b *testing.B) {
	for _, size := range []int{64, 1024, 4096} {
		h, err := NewHeap(heap.NewMemStore(1<<20, 64), Config{Local: 256 << 20})
		if err != nil {
			b.Fatal(err)
		}
		m := h.NewByteMap("bench")
		ctx := context.Background()
		const n = 8192
		keys := make([][]byte, n)
		for i := range keys {
			keys[i] = key(i)
			if err := m.Set(ctx, keys[i], Entry{Value: value(uint64(i), size)}); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(fmt.Sprintf("Get/%d", size), func(b *testing.B) {
			buf := make([]byte, 0, size)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := m.Get(ctx, keys[i%n], buf); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("Set/%d", size), func(b *testing.B) {
			v := value(1, size)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := m.Set(ctx, keys[i%n], Entry{Value: v}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("GetParallel/%d", size), func(b *testing.B) {
			b.RunParallel(func(pb *testing.PB) {
				buf := make([]byte, 0, size)
				for i := 0; pb.Next(); i++ {
					if _, err := m.Get(ctx, keys[i%n], buf); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
		if err := h.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMiss(b *testing.B) {
	for _, size := range []int{64, 1024, 4096} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			h, err := NewHeap(heap.NewMemStore(1<<20, 1024), Config{Local: heap.MinLocal})
			if err != nil {
				b.Fatal(err)
			}
			defer h.Close()
			m := h.NewByteMap("bench")
			ctx := context.Background()
			n := 16 << 20 / size
			n = min(n, 100000)
			for i := range n {
				if err := m.Set(ctx, key(i), Entry{Value: value(uint64(i), size)}); err != nil {
					b.Fatal(err)
				}
			}
			keys := make([][]byte, n)
			for i := range keys {
				keys[i] = key(i)
			}
			before := h.Stats()
			buf := make([]byte, 0, size)
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i++ {
				if _, err := m.Get(ctx, keys[i%n], buf); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			after := h.Stats()
			b.ReportMetric(float64(after.Fetches-before.Fetches)/float64(b.N), "fetches/op")
		})
	}
}

// slowStore is a MemStore at the distance of a network.
type slowStore struct{ *heap.MemStore }

type slowSegment struct{ heap.Segment }

const (
	roundTrip = 30 * time.Microsecond
	perByte   = time.Second / (1 << 30) // 1 GiB/s
)

func (s slowStore) Alloc(ctx context.Context) (heap.Segment, error) {
	seg, err := s.MemStore.Alloc(ctx)
	return slowSegment{seg}, err
}

func (s slowStore) Read(ctx context.Context, ops []heap.ReadOp) {
	n := 0
	inner := make([]heap.ReadOp, len(ops))
	for i, op := range ops {
		inner[i] = op
		inner[i].Seg = op.Seg.(slowSegment).Segment
		n += len(op.Buf)
	}
	time.Sleep(roundTrip + time.Duration(n)*perByte)
	s.MemStore.Read(ctx, inner)
	for i := range ops {
		ops[i].Err = inner[i].Err
	}
}

func (s slowSegment) Write(ctx context.Context, p []byte, off int) error {
	time.Sleep(roundTrip + time.Duration(len(p))*perByte)
	return s.Segment.Write(ctx, p, off)
}

// BenchmarkFifthLocal plays Zipf with a fifth local over a slow store, from 50
// goroutines.
func BenchmarkFifthLocal(b *testing.B) {
	for _, size := range []int{64, 1024, 4096} {
		const local = 16 << 20
		n := 5 * local / (size + 64)
		h, err := NewHeap(slowStore{heap.NewMemStore(1<<20, 1000)}, Config{Local: local})
		if err != nil {
			b.Fatal(err)
		}
		m := h.NewByteMap("bench")
		ctx := context.Background()
		for i := range n {
			if err := m.Set(ctx, key(i), Entry{Value: value(uint64(i), size)}); err != nil {
				b.Fatal(err)
			}
		}
		z := newZipf(rand.New(rand.NewPCG(1, 1)), 0.99, n)
		draws := make([]int, 1<<20)
		for i := range draws {
			draws[i] = z.next()
		}
		for _, op := range []string{"Get", "Set"} {
			b.Run(fmt.Sprintf("%s/%d", op, size), func(b *testing.B) {
				before := h.Stats()
				var at atomic.Int64
				b.SetParallelism(25)
				b.RunParallel(func(pb *testing.PB) {
					i := at.Add(7919 * 13)
					buf := make([]byte, 0, size)
					v := value(uint64(i), size)
					for ; pb.Next(); i++ {
						k := key(draws[i%int64(len(draws))])
						var err error
						if op == "Get" {
							_, err = m.Get(ctx, k, buf)
						} else {
							err = m.Set(ctx, k, Entry{Value: v})
						}
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
				after := h.Stats()
				b.ReportMetric(100*float64(after.Maps[0].Misses-before.Maps[0].Misses)/float64(b.N), "%misses")
				b.ReportMetric(float64(after.BytesOut-before.BytesOut)/float64(b.N), "out-B/op")
			})
		}
		if err := h.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// zipf draws from n keys with exponent s below or above 1, scrambled so that
// neighbours are not alike (math/rand's needs more than 1).
type zipf struct {
	cdf  []float64
	perm []int
	r    *rand.Rand
}

func newZipf(r *rand.Rand, s float64, n int) *zipf {
	z := &zipf{cdf: make([]float64, n), perm: r.Perm(n), r: r}
	sum := 0.0
	for i := range n {
		sum += math.Pow(float64(i+1), -s)
		z.cdf[i] = sum
	}
	return z
}

func (z *zipf) next() int {
	x := z.r.Float64() * z.cdf[len(z.cdf)-1]
	lo, hi := 0, len(z.cdf)-1
	for lo < hi {
		if mid := (lo + hi) / 2; z.cdf[mid] < x {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return z.perm[lo]
}
