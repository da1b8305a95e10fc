// Package kernelpart measures which part of the costs of a mapping (package pages/region) is the kernel's, whatever a
// pager does besides. It is a bound for benchmarks.
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

// OfScan returns the least time that a processor needs for each page of a scan, many pages in a row at a time: to
// copy it from local memory and place it by userfaultfd(2), and to take it out again. It is the median of 5 rounds,
// with the row length that is best. It leaves out reading the pages, far memory, and everything that is due to there
// being several processes.
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

// inRows is OfScan with this many pages at a time.
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
