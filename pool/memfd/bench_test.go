package memfd_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"polder/memnode"
	"polder/pool"
)

// BenchmarkChunk measures reading, writing and swapping over a pool, beside a
// plain copy of the same bytes.
func BenchmarkChunk(b *testing.B) {
	addr := "unix:" + filepath.Join(b.TempDir(), "node.sock")
	_, stop, err := newNode(addr, memnode.Config{Manager: memnode.MemFD, Lend: 8 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer stop()
	p, err := pool.Dial(b.Context(), addr)
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	c, err := p.Alloc(b.Context(), int64(p.ChunkSize()))
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{64, 4 << 10, 64 << 10} {
		buf, from := make([]byte, size), make([]byte, 1<<20)
		b.Run(fmt.Sprintf("copy/%d", size), func(b *testing.B) {
			b.SetBytes(int64(size))
			for i := range b.N {
				off := i % 8 * size
				copy(buf, from[off:off+size])
			}
		})
		for name, op := range map[string]func([]byte, int64) (int, error){"read": c.ReadAt, "write": c.WriteAt} {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for i := range b.N {
					if _, err := op(buf, int64(i%8*size)); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
	b.Run("compare-and-swap", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			if _, _, err := c.CompareAndSwap(b.Context(), 0, 1, 1); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("alloc and free", func(b *testing.B) {
		for range b.N {
			c, err := p.Alloc(b.Context(), int64(p.ChunkSize()))
			if err != nil {
				b.Fatal(err)
			}
			if err := c.Free(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}
