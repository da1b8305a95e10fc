package pool_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"polder/internal/invariants"
	"polder/memnode"
	"polder/pool"
	"polder/pool/pooltest"
)

// steady is a chunk of a pool over s.
func steady(t testing.TB, s pooltest.Setup) (*pooltest.Client, *pool.Chunk) {
	c := pooltest.NewCluster(t, s, memnode.Config{Lend: 16 << 20})
	k := c.Open(pool.Config{})
	return k, k.MustAlloc(t)
}

func TestOperationsDoNotAllocate(t *testing.T) {
	setups := []pooltest.Setup{pooltest.Inproc}
	if !invariants.Enabled { // under the race detector sync.Pool forgets, and drivers may use it
		setups = append(setups, pooltest.TCP, pooltest.InPlace)
	}
	for _, s := range setups {
		k, c := steady(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		buf := make([]byte, 4096)
		batch := make([]pool.Op, 16)
		for name, f := range map[string]func() error{
			"ReadContext":  func() error { _, err := c.ReadContext(ctx, buf, 0); return err },
			"WriteContext": func() error { _, err := c.WriteContext(ctx, buf, 0); return err },
			"FetchAdd":     func() error { _, err := c.FetchAdd(ctx, 0, 1); return err },
			"Do": func() error {
				for i := range batch {
					batch[i] = pool.Op{Kind: pool.OpRead, Chunk: c, Off: int64(i) << 12, Buf: buf[i<<8 : (i+1)<<8]}
				}
				return k.Do(ctx, batch)
			},
		} {
			var err error
			n := testing.AllocsPerRun(500, func() {
				if e := f(); e != nil {
					err = e
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if n != 0 {
				t.Errorf("%s over %s allocates %v times", name, s.Name, n)
			}
		}
	}
}

func BenchmarkRead(b *testing.B) {
	for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.TCP, pooltest.InPlace} {
		for _, size := range []int{64, 4096, 65536} {
			b.Run(fmt.Sprintf("%s/%d", s.Name, size), func(b *testing.B) {
				_, c := steady(b, s)
				buf := make([]byte, size)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := c.ReadAt(buf, 0); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkReadParallel(b *testing.B) {
	for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.TCP, pooltest.InPlace} {
		for _, size := range []int{64, 4096} {
			b.Run(fmt.Sprintf("%s/%d", s.Name, size), func(b *testing.B) {
				_, c := steady(b, s)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				b.SetParallelism(64)
				b.RunParallel(func(pb *testing.PB) {
					buf := make([]byte, size)
					for pb.Next() {
						if _, err := c.ReadAt(buf, 0); err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}

func BenchmarkDo(b *testing.B) {
	for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.TCP} {
		b.Run(s.Name+"/64x64", func(b *testing.B) {
			k, c := steady(b, s)
			ops := make([]pool.Op, 64)
			buf := make([]byte, 64*64)
			b.ReportAllocs()
			for b.Loop() {
				for i := range ops {
					ops[i] = pool.Op{Kind: pool.OpRead, Chunk: c, Off: int64(i) << 12, Buf: buf[i<<6 : (i+1)<<6]}
				}
				if err := k.Do(b.Context(), ops); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkWrite1MiB(b *testing.B) {
	for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.TCP} {
		b.Run(s.Name, func(b *testing.B) {
			_, c := steady(b, s)
			buf := make([]byte, c.Size())
			b.SetBytes(int64(len(buf)))
			for b.Loop() {
				if _, err := c.WriteAt(buf, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAllocFree(b *testing.B) {
	for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.TCP} {
		b.Run(s.Name, func(b *testing.B) {
			k, _ := steady(b, s)
			for b.Loop() {
				c, err := k.AllocOne(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				if err := c.Free(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkReadBesideWrites is what a short read costs while others write
// whole chunks.
func BenchmarkReadBesideWrites(b *testing.B) {
	for _, s := range []pooltest.Setup{pooltest.Inproc, pooltest.TCP} {
		b.Run(s.Name, func(b *testing.B) {
			k, c := steady(b, s)
			stop := make(chan struct{})
			var wg sync.WaitGroup
			var written atomic.Int64
			for range 2 {
				w := k.MustAlloc(b)
				wg.Go(func() {
					buf := make([]byte, w.Size())
					for {
						select {
						case <-stop:
							return
						default:
						}
						if _, err := w.WriteAt(buf, 0); err != nil {
							b.Error(err)
							return
						}
						written.Add(int64(len(buf)))
					}
				})
			}
			buf := make([]byte, 64)
			for b.Loop() {
				if _, err := c.ReadAt(buf, 0); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(written.Load())/1e6/b.Elapsed().Seconds(), "written-MB/s")
			close(stop)
			wg.Wait()
		})
	}
}
