package odrp

import (
	"fmt"

	"polder/internal/arena"
	"polder/internal/invariants"
	"polder/memnode/chain"
	"polder/memnode/rebind"
	"polder/verbs"
)

// Memory is what pages are made of: registered memory that reads as zero, in chunks.
type Memory struct {
	Dev    verbs.Device
	PD     verbs.PD
	MR     verbs.MR // of Map
	Map    *arena.Mapping
	Binder *rebind.Binder // of windows of PD's

	Chunks, ChunkSize int
	Budget            int // how many chunks a client may have
}

// Pages are the pages of all tables.
type Pages struct {
	Memory
	size     int // of a page, in bytes; less than chain.MaxPage if chunks are smaller
	perChunk int
	free     []uint32 // pages that read as zero
	fresh    uint32   // pages from here on have never been used
	tables   map[*Table]struct{}
}

// New returns the pages of m, which stays the caller's.
func New(m Memory) *Pages {
	size := min(chain.MaxPage, m.ChunkSize)
	return &Pages{Memory: m, size: size, perChunk: m.ChunkSize / size, tables: make(map[*Table]struct{})}
}

func (p *Pages) addr(page uint32) uint64 { return p.MR.Addr() + uint64(page)*uint64(p.size) }

func (p *Pages) at(addr uint64) uint32 { return uint32((addr - p.MR.Addr()) / uint64(p.size)) }

// bytes is the memory of a page.
func (p *Pages) bytes(page uint32) []byte { return p.Map.Bytes()[int(page)*p.size:][:p.size] }

// all is how many pages there are.
func (p *Pages) all() int { return p.Chunks * p.perChunk }

// take returns a page that reads as zero.
func (p *Pages) take() (uint32, bool) {
	if len(p.free) == 0 && int(p.fresh) == p.all() {
		// As many pages are free as addresses, unless in limbo.
		for t := range p.tables {
			if t.release(); len(t.limbo) > 0 {
				t.Stop()
			}
		}
	}
	switch last := len(p.free) - 1; {
	case last >= 0:
		page := p.free[last]
		p.free = p.free[:last]
		return page, true
	case int(p.fresh) < p.all():
		p.fresh++
		return p.fresh - 1, true
	}
	return 0, false
}

// put makes a page free, which no chain can reach any more.
func (p *Pages) put(page uint32) {
	if p.size < arena.PageSize || p.Map.Punch(int(page)*p.size, p.size) != nil {
		clear(p.bytes(page))
	}
	p.free = append(p.free, page)
}

// Settle gives back what is in limbo and need not be any more.
func (p *Pages) Settle() {
	for t := range p.tables {
		if len(t.limbo) > 0 {
			t.release()
		}
	}
}

// check panics if t, which has been stopped, does not have a page for every
// address that its client may use, or if there are more pages than there are.
func (p *Pages) check(t *Table) {
	if !invariants.Enabled {
		return
	}
	if want := len(t.chunks) * p.perChunk; len(t.pages) != want {
		panic(fmt.Sprintf("BUG: a client has %d pages, want %d", len(t.pages), want))
	}
	have := len(p.free) + p.all() - int(p.fresh)
	for t := range p.tables {
		have += len(t.pages)
	}
	if have > p.all() { // fewer while some are on their way
		panic(fmt.Sprintf("BUG: there are %d pages, want %d", have, p.all()))
	}
}
