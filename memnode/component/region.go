package component

import (
	"slices"
	"sync"

	"polder/internal/arena"
)

// A region is memory of which Envs get parts: whole pages, first fit. What is
// free reads as zeros. It may be used by any number of goroutines.
type region struct {
	fd  *arena.Memfd
	mem *arena.Mapping // all of fd

	mu   sync.Mutex
	free []span // guarded by mu: by offset; no two of them touch
}

// span is a part of a region.
type span struct{ off, size int }

// newRegion makes a region of all of fd, which it closes.
func newRegion(fd *arena.Memfd) (*region, error) {
	mem, err := fd.Map(0, fd.Size(), true)
	if err != nil {
		return nil, err
	}
	return &region{fd: fd, mem: mem, free: []span{{0, fd.Size()}}}, nil
}

// take returns size bytes, or nil if there are not so many that lie together.
func (r *region) take(size int) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.free {
		s := &r.free[i]
		if s.size < size {
			continue
		}
		off := s.off
		s.off, s.size = s.off+size, s.size-size
		if s.size == 0 {
			r.free = slices.Delete(r.free, i, i+1)
		}
		return r.mem.Bytes()[off : off+size : off+size]
	}
	return nil
}

// give takes back size bytes that begin with first.
func (r *region) give(first *byte, size int) {
	off := offset(r.mem.Bytes(), first)
	if r.fd.Punch(off, size) != nil {
		clear(r.mem.Bytes()[off : off+size]) // the pages stay, then
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	i, _ := slices.BinarySearchFunc(r.free, off, func(s span, off int) int { return s.off - off })
	r.free = slices.Insert(r.free, i, span{off, size})
	if i+1 < len(r.free) && r.free[i+1].off == off+size {
		r.free[i].size += r.free[i+1].size
		r.free = slices.Delete(r.free, i+1, i+2)
	}
	if i > 0 && r.free[i-1].off+r.free[i-1].size == off {
		r.free[i-1].size += r.free[i].size
		r.free = slices.Delete(r.free, i, i+1)
	}
}

func (r *region) close() {
	r.mem.Close()
	r.fd.Close()
}
