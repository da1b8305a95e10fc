// Package kernelpart measures what of a mapping's costs (package pages/region) are the kernel's, whatever a pager does
// beside: a bound for benchmarks.
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

// OfScan is the least time that a processor takes for a page of a scan that is placed by userfaultfd(2), copied from local
// memory, and taken out again, if that is done for many pages in a row: the median of 5 rounds, with the number of pages
// at a time that is best. It leaves out who reads the pages, far memory, and all that is due to several
// processes.
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

// inRows is OfScan with so many pages at a time.
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
