package odrp

import (
	"fmt"
	"math/bits"

	"polder/internal/arena"
	"polder/memnode/chain"
	"polder/verbs"
)

// A Table is a client's translation table, its queue of free pages, and the record of which pages and addresses the
// client has.
type Table struct {
	p        *Pages
	mem      *arena.Mapping
	tableMR  verbs.MR
	queueMR  verbs.MR // the head, and then the ring
	queue    []byte
	ring     uint64 // its address, a multiple of ringSize
	ringSize uint64
	tail     uint64              // address of the element to be filled next
	pages    map[uint32]struct{} // the client's: in the queue, behind an address, or taken by a chain just now
	chunks   map[uint32]struct{} // chunks whose addresses the client may use
	limbo    []limbo
	pagers   *Pagers // nil while the client is not connected
}

type limbo struct {
	page  uint32
	entry uint64
}

// NewTable returns a table that translates nothing.
func (p *Pages) NewTable() (*Table, error) {
	t := &Table{p: p, pages: make(map[uint32]struct{}), chunks: make(map[uint32]struct{})}
	round := func(n int) int { return (n + arena.PageSize - 1) &^ (arena.PageSize - 1) }
	table := round(8 * p.all())
	t.ringSize = 8 << bits.Len(uint(p.Budget*p.perChunk))
	queue := round(64 + 2*int(t.ringSize))
	var err error
	if t.mem, err = arena.Anonymous(table+queue, false); err != nil {
		return nil, err
	}
	const rights = verbs.AccessLocalWrite | verbs.AccessMWBind
	t.queue = t.mem.Bytes()[table:]
	if t.tableMR, err = p.PD.RegMR(t.mem.Bytes()[:table], rights); err == nil {
		t.queueMR, err = p.PD.RegMR(t.queue, rights)
	}
	if err != nil {
		t.close()
		return nil, fmt.Errorf("cannot register a translation table: %w", err)
	}
	t.ring = (t.queueMR.Addr() + 64 + t.ringSize - 1) &^ (t.ringSize - 1)
	t.reset()
	p.tables[t] = struct{}{}
	return t, nil
}

func (t *Table) reset() {
	clear(t.queue[t.ring-t.queueMR.Addr():][:t.ringSize])
	t.tail = t.ring
	chain.Store(t.queue, t.ring)
}

// Clear takes back every page. The client may use no address any more.
func (t *Table) Clear() {
	clear(t.chunks)
	t.Stop()
}

// Close takes back every page and releases the table.
func (t *Table) Close() {
	t.Clear()
	delete(t.p.tables, t)
	t.close()
}

func (t *Table) close() {
	for _, mr := range []verbs.MR{t.tableMR, t.queueMR} {
		if mr != nil {
			mr.Deregister()
		}
	}
	t.mem.Close()
}

// entry is the memory of an entry of the table.
func (t *Table) entry(i int) []byte { return t.tableMR.Bytes()[8*i:] }

// element is the memory of the queue's element at addr.
func (t *Table) element(addr uint64) []byte { return t.queue[addr-t.queueMR.Addr():] }

func (t *Table) step(addr uint64, by uint64) uint64 {
	return t.ring | (addr+by)&(t.ringSize-1)
}

// push puts a page into the queue.
func (t *Table) push(page uint32) {
	t.pages[page] = struct{}{}
	chain.Store(t.element(t.tail), t.p.addr(page))
	t.tail = t.step(t.tail, 8)
}

// unpush takes the page that was pushed last out of the queue. It fails if a chain has taken this page, or is about
// to.
func (t *Table) unpush() (uint32, bool) {
	count := func() uint64 { return (t.tail - chain.Load(t.queue)) & (t.ringSize - 1) }
	before := count()
	if before == 0 {
		return 0, false
	}
	last := t.step(t.tail, t.ringSize-8)
	addr := chain.Swap(t.element(last), 0)
	// A chain moves the head past an element before it reads the element.
	if after := count(); addr == 0 || after == 0 || after > before {
		return 0, false
	}
	t.tail = last
	return t.p.at(addr), true
}

// giveBack takes from t a page that no chain can reach any more, and makes it free.
func (t *Table) giveBack(page uint32) {
	if _, ok := t.pages[page]; !ok {
		panic(fmt.Sprintf("BUG: page %d is given back twice", page))
	}
	delete(t.pages, page)
	t.p.put(page)
}

// release gives back the pages in limbo whose entries no chain works on any more.
func (t *Table) release() {
	kept := t.limbo[:0]
	for _, l := range t.limbo {
		if t.pagers.busyWith(l.entry) {
			kept = append(kept, l)
		} else {
			t.giveBack(l.page)
		}
	}
	t.limbo = kept
}

// Furnish lets the client use the addresses of chunk i, and gives it pages for them. It fails if there are not enough
// pages, or if the client's pagers have had to stop.
func (t *Table) Furnish(i uint32) bool {
	if _, ok := t.chunks[i]; ok {
		return true
	}
	p := t.p
	pages := make([]uint32, 0, p.perChunk)
	for len(pages) < cap(pages) {
		page, ok := p.take()
		if !ok {
			break
		}
		pages = append(pages, page)
	}
	// Taking pages may have stopped t itself.
	if len(pages) < cap(pages) || t.pagers == nil {
		p.free = append(p.free, pages...)
		return false
	}
	t.chunks[i] = struct{}{}
	for _, page := range pages {
		t.push(page)
	}
	return true
}

// Withdraw takes back the addresses of chunk i and their pages. If the numbers of pages do not add up, because the
// client has touched addresses that it had no right to, its pagers stop.
func (t *Table) Withdraw(i uint32) {
	delete(t.chunks, i)
	if !t.withdraw(int(i)) {
		t.Stop()
	}
}

func (t *Table) withdraw(chunk int) bool {
	p := t.p
	for k := chunk * p.perChunk; k < (chunk+1)*p.perChunk; k++ {
		addr := chain.Swap(t.entry(k), 0)
		entry := t.tableMR.Addr() + uint64(8*k)
		busy := t.pagers.busyWith(entry)
		switch {
		case addr != 0 && busy:
			t.limbo = append(t.limbo, limbo{p.at(addr), entry})
		case addr != 0:
			t.giveBack(p.at(addr))
		case busy:
			return false
		default:
			page, ok := t.unpush()
			if !ok {
				return false
			}
			t.giveBack(page)
		}
	}
	return true
}

// Stop ends the connection's pagers, whatever they are doing, and then puts every page in its place: behind an
// address that the client may use, in the queue for such an address, or given back.
func (t *Table) Stop() {
	p := t.p
	if by := t.pagers; by != nil {
		t.pagers = nil
		by.stop()
	}
	t.limbo = nil
	t.reset()
	lacking := 0
	used := make(map[uint32]int) // the table entry that has a page, by page
	for i := range t.chunks {
		for k := int(i) * p.perChunk; k < int(i+1)*p.perChunk; k++ {
			addr := chain.Load(t.entry(k))
			page := p.at(addr)
			_, twice := used[page]
			if _, has := t.pages[page]; addr != 0 && has && !twice {
				used[page] = k
			} else {
				lacking++
			}
		}
	}
	// A table is large and mostly empty: clear it as a whole, without looking at the entries that the client had no
	// right to touch.
	if table := t.tableMR.Bytes(); t.mem.Punch(0, len(table)) != nil {
		clear(table)
	}
	for page, k := range used {
		chain.Store(t.entry(k), p.addr(page))
	}
	for page := range t.pages {
		if _, ok := used[page]; ok {
			continue
		}
		if lacking == 0 {
			t.giveBack(page)
			continue
		}
		lacking--
		clear(p.bytes(page))
		t.push(page)
	}
	for ; lacking > 0; lacking-- {
		page, ok := p.take()
		if !ok {
			panic("BUG: fewer pages than addresses")
		}
		t.push(page)
	}
	p.check(t)
}
