package far

import (
	"context"
	"fmt"
	"testing"
)

func BenchmarkLocal(b *testing.B) {
	for _, size := range []int{64, 1024, 4096} {
		h, err := NewHeap(NewMemStore(1<<20, 64), Config{Local: 256 << 20})
		if err != nil {
			b.Fatal(err)
		}
		m := h.NewMap("bench")
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
			h, err := NewHeap(NewMemStore(1<<20, 1024), Config{Local: MinLocal})
			if err != nil {
				b.Fatal(err)
			}
			defer h.Close()
			m := h.NewMap("bench")
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
