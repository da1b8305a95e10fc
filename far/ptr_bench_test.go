package far

import (
	"context"
	"testing"

	"polder/far/heap"
)

// What dereferencing costs beside a plain pointer, in cache.
func BenchmarkDeref(b *testing.B) {
	h, err := NewHeap(heap.NewMemStore(1<<20, 64), Config{Local: 64 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer h.Close()
	const n = 256
	var plain [n]*[8]int64
	var ptrs [n]Ptr[[8]int64]
	for i := range ptrs {
		plain[i] = new([8]int64)
		if ptrs[i], err = New(context.Background(), h, [8]int64{}); err != nil {
			b.Fatal(err)
		}
	}
	s := h.NewScope()
	defer s.Close()
	s.Enter()
	for _, p := range ptrs {
		p.DerefMut(s)
	}
	s.Leave()
	var sum int64
	b.Run("plain", func(b *testing.B) {
		for i := range b.N {
			sum += plain[i%n][0]
		}
	})
	b.Run("deref", func(b *testing.B) {
		s.Enter()
		for i := range b.N {
			sum += ptrs[i%n].Deref(s)[0]
		}
		s.Leave()
	})
	b.Run("scope", func(b *testing.B) {
		for i := range b.N {
			s.Enter()
			sum += ptrs[i%n].Deref(s)[0]
			s.Leave()
		}
	})
	b.Run("mut", func(b *testing.B) {
		s.Enter()
		for i := range b.N {
			ptrs[i%n].DerefMut(s)[0]++
		}
		s.Leave()
	})
	b.Run("load", func(b *testing.B) {
		for i := range b.N {
			v, _ := ptrs[i%n].Load(context.Background())
			sum += v[0]
		}
	})
	b.Run("new+free", func(b *testing.B) {
		c, _ := NewClass[[8]int64](h, ClassConfig{})
		for range b.N {
			p, err := c.New(context.Background(), [8]int64{})
			if err != nil {
				b.Fatal(err)
			}
			p.Free()
		}
	})
	_ = sum
}
