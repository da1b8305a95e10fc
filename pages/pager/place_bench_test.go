package pager

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"polder/internal/arena"
	"polder/pages"
	"polder/pages/internal/uffd"
)

// BenchmarkThePartOfTheKernel is what a page costs that is placed, touched by whoever has the memory, and dropped, in rows
// of so many pages: less than that no scan takes, whatever a pager does beside it.
func BenchmarkThePartOfTheKernel(b *testing.B) {
	const most = 64
	memory, err := arena.NewMemfd("bench", most*pages.Size)
	if err != nil {
		b.Fatal(err)
	}
	defer memory.Close()
	mem, err := unix.Mmap(int(memory.File().Fd()), 0, most*pages.Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Munmap(mem)
	fd, _, err := uffd.Open()
	if err != nil {
		b.Fatal(err)
	}
	defer fd.Close()
	if err := fd.Register(mem); err != nil {
		b.Fatal(err)
	}
	from := make([]byte, most*pages.Size)
	for _, row := range []int{1, 4, 16, most} {
		b.Run(fmt.Sprintf("row=%d", row), func(b *testing.B) {
			sum := byte(0)
			for n := 0; n < b.N; n += row {
				if err := fd.Copy(uffd.Addr(mem), from[:row*pages.Size], true); err != nil {
					b.Fatal(err)
				}
				for i := range row {
					sum += mem[i*pages.Size]
				}
				if err := memory.Punch(0, row*pages.Size); err != nil {
					b.Fatal(err)
				}
			}
			_ = sum
		})
	}
}
