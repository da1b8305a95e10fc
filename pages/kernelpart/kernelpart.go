// Package kernelpart measures the kernel's part of the costs of a mapping (package pages/region), which no pager can
// avoid: a bound for benchmarks.
package kernelpart

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"polder/internal/arena"
	"polder/pages"
	"polder/pages/internal/uffd"
)

const (
	rounds = 5
	count  = 4096 // pages of a round
)

// OfScan returns the least time that a processor takes for a page of a scan: to place it by userfaultfd(2), which
// copies it from local memory, and to take it out again, for many pages in a row. It is the median of 5 rounds, with
// the number of pages in a row for which that is least. It leaves out who reads the pages, far memory, and all costs
// of having several processes.
func OfScan() (time.Duration, error) {
	var best time.Duration
	for _, row := range []int{16, 32, 64, 128} {
		d, err := inRows(row)
		if err != nil {
			return 0, fmt.Errorf("cannot measure the kernel's part: %w", err)
		}
		if best == 0 || d < best {
			best = d
		}
	}
	return best, nil
}

// inRows is OfScan with row pages at a time.
func inRows(row int) (time.Duration, error) {
	n := row * pages.Size
	memory, err := arena.NewMemfd("polder-kernelpart", n)
	if err != nil {
		return 0, err
	}
	defer memory.Close()
	mem, err := unix.Mmap(int(memory.File().Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return 0, err
	}
	defer unix.Munmap(mem)
	fd, _, err := uffd.Open()
	if err != nil {
		return 0, err
	}
	defer fd.Close()
	if err := fd.Register(mem); err != nil {
		return 0, err
	}
	from := make([]byte, n)
	took := make([]time.Duration, rounds)
	for i := range took {
		begin := time.Now()
		for done := 0; done < count; done += row {
			if err := fd.Copy(uffd.Addr(mem), from, true); err != nil {
				return 0, err
			}
			if err := memory.Punch(0, n); err != nil {
				return 0, err
			}
		}
		took[i] = time.Since(begin) / count
	}
	slices.Sort(took)
	return took[rounds/2], nil
}
