package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const pageSize = 4096

// memoryInUse is pages whose bytes follow from their number and from how often they were written.
type memoryInUse struct {
	mem     []byte
	times   []uint64 // that a page was written
	lost    []bool   // it was SIGBUS
	visits  atomic.Int64
	wrong   atomic.Int64
	failed  atomic.Int64
	written atomic.Int64
}

// pages uses so many MiB: it writes all pages, visits some at random in each round, and reads all of them in the end. It
// says "filled" and "round", and "lost" when the first page is SIGBUS. Wrong bytes are an error, and so is
// a page that was lost at the end.
func pages(mib, rounds int) error {
	mem, err := unix.Mmap(-1, 0, mib<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return err
	}
	// A page is a page, not a part of a huge one.
	if err := unix.Madvise(mem, unix.MADV_NOHUGEPAGE); err != nil {
		return err
	}
	n := len(mem) / pageSize / workers * workers
	m := &memoryInUse{mem: mem, times: make([]uint64, n), lost: make([]bool, n)}
	for i := range n {
		m.write(i)
	}
	fmt.Printf("filled %d MiB\n", mib)
	for r := range rounds {
		m.each(func(w, first, n int) {
			random := rand.New(rand.NewPCG(uint64(r), uint64(w)))
			for range visits / workers {
				m.visit(first+random.IntN(n), random.IntN(2) == 0)
			}
		})
		fmt.Printf("round %d: %d visits, %d pages were written, %d were wrong, %d SIGBUS\n", r+1, m.visits.Load(), m.written.Load(), m.wrong.Load(), m.failed.Load())
		if m.wrong.Load() > 0 {
			return errors.New("there are wrong bytes")
		}
	}
	m.each(func(_, first, n int) {
		for i := range n {
			m.visit(first+i, false)
		}
	})
	fmt.Printf("all %d pages were read: %d were wrong, %d SIGBUS\n", n, m.wrong.Load(), m.failed.Load())
	if m.wrong.Load()+m.failed.Load() > 0 {
		return errors.New("pages are wrong or lost")
	}
	return nil
}

const (
	workers = 4
	visits  = 1024 // of a round
)

// each calls visit in several goroutines, of which each has n pages of its own, from first on.
func (m *memoryInUse) each(visit func(worker, first, n int)) {
	var wait sync.WaitGroup
	n := len(m.times) / workers
	for w := range workers {
		wait.Go(func() {
			debug.SetPanicOnFault(true)
			visit(w, w*n, n)
		})
	}
	wait.Wait()
}

// visit checks a page, and may write it.
func (m *memoryInUse) visit(page int, write bool) {
	if m.lost[page] {
		return
	}
	defer func() {
		if recover() != nil {
			m.lost[page] = true
			if m.failed.Add(1) == 1 {
				fmt.Println("lost: a page is SIGBUS")
			}
		}
	}()
	m.visits.Add(1)
	if !m.right(page) {
		m.wrong.Add(1)
	}
	if write {
		m.write(page)
	}
}

func (m *memoryInUse) write(page int) {
	m.times[page]++
	m.written.Add(1)
	b := m.mem[page*pageSize:][:pageSize]
	for at, x := 0, m.seed(page); at < pageSize; at, x = at+8, next(x) {
		binary.LittleEndian.PutUint64(b[at:], x)
	}
}

func (m *memoryInUse) right(page int) bool {
	b := m.mem[page*pageSize:][:pageSize]
	for at, x := 0, m.seed(page); at < pageSize; at, x = at+8, next(x) {
		if got := binary.LittleEndian.Uint64(b[at:]); got != x {
			fmt.Printf("page %d, byte %d, written %d times: %#x, want %#x\n", page, at, m.times[page], got, x)
			return false
		}
	}
	return true
}

// seed is the first word of a page: its number, and how often it was written.
func (m *memoryInUse) seed(page int) uint64 { return uint64(page)<<32 | m.times[page] }

// next is what follows a word.
func next(x uint64) uint64 { return x*6364136223846793005 + 1442695040888963407 }
