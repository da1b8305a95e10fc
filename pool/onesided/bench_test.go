package onesided_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"polder/memnode"
	"polder/pool"
	"polder/pool/onesided"
	"polder/pool/pooltest"
)

// BenchmarkChunk takes a chunk, writes all of it and gives it back, client and node in
// one process: what zeroing costs, by the size of chunks, in processor time as well,
// since part of it may be the control goroutine's. docs/rdma.md has what came out.
func BenchmarkChunk(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			cl := pooltest.NewCluster(b, setup(pooltest.Inproc, onesided.Manager{}), memnode.Config{Lend: int64(64 * size), ChunkSize: size})
			p := cl.Open(pool.Config{})
			content := make([]byte, size)
			var free time.Duration
			start := processor(b)
			for b.Loop() {
				k, err := p.Alloc(b.Context(), int64(size))
				if err != nil {
					b.Fatal(err)
				}
				if _, err := k.WriteAt(content, 0); err != nil {
					b.Fatal(err)
				}
				start := time.Now()
				if err := k.Free(b.Context()); err != nil {
					b.Fatal(err)
				}
				free += time.Since(start)
			}
			b.ReportMetric(float64((processor(b)-start).Microseconds())/float64(b.N), "cpu-us/op")
			b.ReportMetric(float64(free.Nanoseconds())/1e3/float64(b.N), "us/free")
		})
	}
}

// processor is how much processor time this process has had.
func processor(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
