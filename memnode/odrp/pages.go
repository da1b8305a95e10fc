package odrp

import (
	"fmt"

	"polder/internal/arena"
	"polder/internal/invariants"
	"polder/memnode/chain"
	"polder/memnode/rebind"
	"polder/verbs"
)

// Memory is the memory that is cut into pages: registered, in chunks, and reading as zero.
type Memory struct {
	Dev    verbs.Device
	PD     verbs.PD
	MR     verbs.MR // of Map
	Map    *arena.Mapping
	Binder *rebind.Binder // binds windows of PD

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

// take returns a page that reads as zero, or false if none is free.
func (p *Pages) take() (uint32, bool) {
	if len(p.free) == 0 && int(p.fresh) == p.all() {
		// There are as many free pages as free addresses, unless pages are in limbo.
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

// put zeroes a page, which no chain can reach any more, and makes it free.
func (p *Pages) put(page uint32) {
	if p.size < arena.PageSize || p.Map.Punch(int(page)*p.size, p.size) != nil {
		clear(p.bytes(page))
	}
	p.free = append(p.free, page)
}

// Settle frees the pages in limbo that no chain works with any more.
func (p *Pages) Settle() {
	for t := range p.tables {
		if len(t.limbo) > 0 {
			t.release()
		}
	}
}

// check panics if t, which has been stopped, does not have a page for every address that its client may use, or if
// the free pages and the pages of all tables are more than there are.
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
	if have > p.all() { // fewer while some pages are being moved
		panic(fmt.Sprintf("BUG: there are %d pages, want %d", have, p.all()))
	}
}
