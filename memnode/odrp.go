package memnode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"

	"polder/internal/arena"
	"polder/internal/invariants"
	"polder/memnode/chain"
	"polder/memnode/component"
	"polder/memnode/wire"
	"polder/verbs"
)

// odrp lends addresses and has the NIC put pages behind them when they are
// touched (section 2.2.3 of the OneSidedMW paper). A client has a translation
// table of its own, and every access of its goes through a pager's chain, which
// translates, and on the first touch allocates.
//
// It differs from the paper's in one thing. The queue of free pages is the
// client's own, too, and the control goroutine moves as many pages to it as the
// client has addresses: a malicious client can exhaust nobody's pages but its
// own, and what a chain was doing when its connection broke concerns one client.
//
// # Limbo
//
// A page that is freed while a chain works on its entry may still be read or
// written, for as long as the client likes: it need only not take the answer.
// Such a page waits in limbo until the chain is done with it. An honest client
// frees nothing that it still accesses.
type odrp struct {
	*rpc
	of    map[*session]*translation
	free  []uint32 // pages that read as zero
	fresh uint32   // pages from here on have never been used
}

// newODRP is rpc with another opener: what it lends are addresses.
func newODRP(n *Node) (manager, error) {
	if n.dev.Attr().Prefetches {
		return nil, fmt.Errorf("%s reads entries before the chains of %s have rewritten them: lend by %s", n.dev.Attr().Name, ODRP, OneSided)
	}
	t := &chunks{memory: n.mem, all: make([]chunk, n.cfg.chunks())}
	o := &odrp{rpc: &rpc{node: n, chunks: t}, of: make(map[*session]*translation)}
	o.opener = o
	return &odrpManager{o}, nil
}

// odrpManager is odrp as a manager, which has some methods by the names that an
// opener's have.
type odrpManager struct{ *odrp }

func (m *odrpManager) connect(c *client, h *wire.Hello, req verbs.ConnRequest) error {
	return m.connectPager(c, h, req)
}
func (m *odrpManager) work() bool { return m.rpc.work() }
func (m *odrpManager) close() error {
	m.odrp.close()
	return nil
}

// A translation is a session's table, its queue of free pages, and what it has.
type translation struct {
	pageSize int
	mem      *arena.Mapping
	tableMR  verbs.MR
	queueMR  verbs.MR // the head, and then the ring
	queue    []byte
	ring     uint64 // its address, a multiple of ringSize
	ringSize uint64
	tail     uint64              // address of the element to be filled next
	pages    map[uint32]struct{} // in the queue, translated to, or on the way
	chunks   map[uint32]struct{} // whose addresses the client may use
	limbo    []limbo
	pagers   *pagers // nil while disconnected
}

type limbo struct {
	page  uint32
	entry uint64
}

// pagers are a connection's.
type pagers struct {
	client  *client
	by      [2]*pager // to read and to write pages
	trouble atomic.Bool
}

func (o *odrp) pageSize() int { return min(translatedPage, o.chunks.size) }

func (o *odrp) newTranslation() (*translation, error) {
	t := &translation{
		pageSize: o.pageSize(),
		pages:    make(map[uint32]struct{}), chunks: make(map[uint32]struct{}),
	}
	perChunk := o.chunks.size / t.pageSize
	round := func(n int) int { return (n + arena.PageSize - 1) &^ (arena.PageSize - 1) }
	table := round(8 * len(o.chunks.all) * perChunk)
	t.ringSize = 8 << bits.Len(uint(o.node.cfg.budget()*perChunk))
	queue := round(64 + 2*int(t.ringSize))
	var err error
	if t.mem, err = arena.Anonymous(table+queue, false); err != nil {
		return nil, err
	}
	const rights = verbs.AccessLocalWrite | verbs.AccessMWBind
	t.queue = t.mem.Bytes()[table:]
	if t.tableMR, err = o.node.pd.RegMR(t.mem.Bytes()[:table], rights); err == nil {
		t.queueMR, err = o.node.pd.RegMR(t.queue, rights)
	}
	if err != nil {
		t.close()
		return nil, fmt.Errorf("cannot register a translation table: %w", err)
	}
	t.ring = (t.queueMR.Addr() + 64 + t.ringSize - 1) &^ (t.ringSize - 1)
	t.reset()
	return t, nil
}

func (t *translation) reset() {
	clear(t.queue[t.ring-t.queueMR.Addr():][:t.ringSize])
	t.tail = t.ring
	chain.Store(t.queue, t.ring)
}

func (t *translation) close() {
	for _, mr := range []verbs.MR{t.tableMR, t.queueMR} {
		if mr != nil {
			mr.Deregister()
		}
	}
	t.mem.Close()
}

// element is the memory of the queue's element at addr.
func (t *translation) element(addr uint64) []byte { return t.queue[addr-t.queueMR.Addr():] }

func (t *translation) step(addr uint64, by uint64) uint64 {
	return t.ring | (addr+by)&(t.ringSize-1)
}

// push puts a page into the queue.
func (o *odrp) push(t *translation, page uint32) {
	t.pages[page] = struct{}{}
	chain.Store(t.element(t.tail), o.pageAddr(page))
	t.tail = t.step(t.tail, 8)
}

// unpush takes the page that was put last out of the queue. It fails if the
// chains have taken it, or are about to.
func (o *odrp) unpush(t *translation) (uint32, bool) {
	count := func() uint64 { return (t.tail - chain.Load(t.queue)) & (t.ringSize - 1) }
	before := count()
	if before == 0 {
		return 0, false
	}
	last := t.step(t.tail, t.ringSize-8)
	addr := chain.Swap(t.element(last), 0)
	// Who reads an element has moved the head past it first.
	if after := count(); addr == 0 || after == 0 || after > before {
		return 0, false
	}
	t.tail = last
	return o.pageOf(addr), true
}

func (o *odrp) pageAddr(page uint32) uint64 {
	return o.chunks.mr.Addr() + uint64(page)*uint64(o.pageSize())
}

func (o *odrp) pageOf(addr uint64) uint32 {
	return uint32((addr - o.chunks.mr.Addr()) / uint64(o.pageSize()))
}

// takePage returns a page that reads as zero.
func (o *odrp) takePage() (uint32, bool) {
	pages := uint32(len(o.chunks.all) * (o.chunks.size / o.pageSize()))
	if len(o.free) == 0 && o.fresh == pages {
		// As many pages are free as addresses, unless in limbo.
		for _, t := range o.of {
			if o.release(t); len(t.limbo) > 0 {
				o.stop(t)
			}
		}
	}
	switch last := len(o.free) - 1; {
	case last >= 0:
		page := o.free[last]
		o.free = o.free[:last]
		return page, true
	case o.fresh < pages:
		o.fresh++
		return o.fresh - 1, true
	}
	return 0, false
}

// giveBack takes a page, which no chain can reach any more, from t.
func (o *odrp) giveBack(t *translation, page uint32) {
	if _, ok := t.pages[page]; !ok {
		panic(fmt.Sprintf("BUG: page %d is given back twice", page))
	}
	delete(t.pages, page)
	size := o.pageSize()
	off := int(page) * size
	if size < arena.PageSize || o.chunks.mem.Punch(off, size) != nil {
		clear(o.chunks.mem.Bytes()[off : off+size])
	}
	o.free = append(o.free, page)
}

// release gives back what is in limbo and need not be any more.
func (o *odrp) release(t *translation) {
	kept := t.limbo[:0]
	for _, l := range t.limbo {
		if t.pagers.busyWith(l.entry) {
			kept = append(kept, l)
		} else {
			o.giveBack(t, l.page)
		}
	}
	t.limbo = kept
}

func (p *pagers) busyWith(entry uint64) bool {
	if p != nil {
		for _, by := range p.by {
			if by != nil && by.busyWith(entry) {
				return true
			}
		}
	}
	return false
}

// stop ends t's connection's pagers, wherever they are, and puts in order what
// they have left: every page is behind an address that the client may use, in
// the queue for one, or given back.
func (o *odrp) stop(t *translation) {
	if p := t.pagers; p != nil {
		t.pagers = nil
		for i := range p.by {
			if p.by[i] != nil {
				p.by[i].close()
				p.by[i] = nil
			}
		}
		p.client.access = nil // which are closed
		p.trouble.Store(true)
		o.node.ready.add(p.client)
	}
	t.limbo = nil
	t.reset()
	lacking := 0
	used := make(map[uint32]int) // the entry of a page
	perChunk := o.chunks.size / t.pageSize
	for i := range t.chunks {
		for k := int(i) * perChunk; k < int(i+1)*perChunk; k++ {
			addr := chain.Load(t.entry(k))
			page := o.pageOf(addr)
			_, twice := used[page]
			if _, has := t.pages[page]; addr != 0 && has && !twice {
				used[page] = k
			} else {
				lacking++
			}
		}
	}
	// A table is mostly empty, and large: what is not the client's to touch
	// goes without being looked at.
	if table := t.tableMR.Bytes(); t.mem.Punch(0, len(table)) != nil {
		clear(table)
	}
	for page, k := range used {
		chain.Store(t.entry(k), o.pageAddr(page))
	}
	for page := range t.pages {
		if _, ok := used[page]; ok {
			continue
		}
		if lacking == 0 {
			o.giveBack(t, page)
			continue
		}
		lacking--
		clear(o.chunks.mem.Bytes()[int(page)*t.pageSize:][:t.pageSize])
		o.push(t, page)
	}
	for ; lacking > 0; lacking-- {
		page, ok := o.takePage()
		if !ok {
			panic("BUG: fewer pages than addresses")
		}
		o.push(t, page)
	}
	o.check(t)
}

// check panics if t, which has been stopped, does not have a page for every
// address that its client may use, or if there are more pages than there are.
func (o *odrp) check(t *translation) {
	if !invariants.Enabled {
		return
	}
	perChunk := o.chunks.size / o.pageSize()
	if want := len(t.chunks) * perChunk; len(t.pages) != want {
		panic(fmt.Sprintf("BUG: a client has %d pages, want %d", len(t.pages), want))
	}
	pages := len(o.chunks.all) * perChunk
	have := len(o.free) + pages - int(o.fresh)
	for _, t := range o.of {
		have += len(t.pages)
	}
	if have > pages { // fewer while some are on their way
		panic(fmt.Sprintf("BUG: there are %d pages, want %d", have, pages))
	}
}

// entry is the memory of an entry of the table.
func (t *translation) entry(i int) []byte { return t.tableMR.Bytes()[8*i:] }

// connectPager answers a request for the queue pair of a pager: 0 to read pages,
// 1 to write them. The answer is the address of the table.
func (o *odrp) connectPager(c *client, h *wire.Hello, req verbs.ConnRequest) error {
	if h.Kind != wire.KindAccess || int(h.Index) > 1 {
		return fmt.Errorf("%s has no use for queue pair %d of kind %d", ODRP, h.Index, h.Kind)
	}
	t := o.of[c.session]
	if t == nil {
		var err error
		if t, err = o.newTranslation(); err != nil {
			return err
		}
		o.of[c.session] = t
	}
	if t.pagers == nil {
		if c.part != nil {
			return errors.New("this connection's pages have been taken away")
		}
		t.pagers = &pagers{client: c}
		c.part = t.pagers
	}
	if t.pagers.by[h.Index] != nil {
		return errors.New("a connection has one queue pair for pages each way")
	}
	p, err := newPager(o.node, t, h.Index == 1, &t.pagers.trouble, func(e verbs.AsyncEvent) {
		o.node.event(e)
		o.node.ready.add(c)
	})
	if err != nil {
		return err
	}
	if err := req.Accept(p.front, binary.LittleEndian.AppendUint64(nil, t.tableMR.Addr())); err != nil {
		p.close()
		return nil // the connection is gone, and its watcher will say so
	}
	t.pagers.by[h.Index] = p
	c.access = append(c.access, p.front)
	return p.start()
}

func (o *odrp) look(c *client) error {
	if p, ok := c.part.(*pagers); ok && p.trouble.Load() {
		return errors.New("the client asked for a page that it has no right to")
	}
	return nil
}

// connect implements opener. It is never called.
func (o *odrp) connect(*client, verbs.ConnRequest) error {
	return errors.New("pages are reached by pagers only")
}

func (o *odrp) take(*client) (uint32, bool) {
	o.work() // nothing is left dirty, which would be zeroed as if it were memory
	return o.chunks.take()
}

func (o *odrp) open(c *client, ids []uint32) (int, error) {
	t := o.of[c.session]
	for done, i := range ids {
		if _, ok := t.chunks[i]; !ok && !o.furnish(t, i) {
			return done, errors.New("no pages left")
		}
		o.chunks.all[i].bound = true
	}
	return len(ids), nil
}

// furnish lets t's client use the addresses of chunk i, for which it gets pages.
func (o *odrp) furnish(t *translation, i uint32) bool {
	pages := make([]uint32, 0, o.chunks.size/t.pageSize)
	for len(pages) < cap(pages) {
		page, ok := o.takePage()
		if !ok {
			break
		}
		pages = append(pages, page)
	}
	// Taking pages may have stopped t itself.
	if len(pages) < cap(pages) || t.pagers == nil {
		o.free = append(o.free, pages...)
		return false
	}
	t.chunks[i] = struct{}{}
	for _, page := range pages {
		o.push(t, page)
	}
	return true
}

// grant has no key: the address is one that the client's table translates.
func (o *odrp) grant(i uint32) wire.Grant {
	return wire.Grant{Chunk: i, Addr: uint64(i) * uint64(o.chunks.size)}
}

func (o *odrp) shut(ids []uint32) {
	for _, i := range ids {
		t := o.of[o.chunks.all[i].owner.Load()]
		delete(t.chunks, i)
		o.chunks.all[i].bound = false
		if !o.withdraw(t, int(i)) {
			o.stop(t)
		}
	}
}

// withdraw takes the pages of a chunk back. It fails if the client has touched
// pages that it had no right to, so that they do not add up.
func (o *odrp) withdraw(t *translation, chunk int) bool {
	perChunk := o.chunks.size / t.pageSize
	for k := chunk * perChunk; k < (chunk+1)*perChunk; k++ {
		addr := chain.Swap(t.entry(k), 0)
		entry := t.tableMR.Addr() + uint64(8*k)
		busy := t.pagers.busyWith(entry)
		switch {
		case addr != 0 && busy:
			t.limbo = append(t.limbo, limbo{o.pageOf(addr), entry})
		case addr != 0:
			o.giveBack(t, o.pageOf(addr))
		case busy:
			return false
		default:
			page, ok := o.unpush(t)
			if !ok {
				return false
			}
			o.giveBack(t, page)
		}
	}
	return true
}

func (o *odrp) leave(c *client) {
	if t := o.of[c.session]; t != nil {
		if t.pagers != nil {
			o.stop(t)
		}
		for i := range t.chunks {
			o.chunks.all[i].bound = false
		}
	}
}

// chunksOf tells nothing: what is in a chunk may be elsewhere.
func (o *odrp) chunksOf(*session) component.Chunks { return nil }

// reclaim takes the pages back, too.
func (o *odrp) reclaim(s *session) int {
	if t := o.of[s]; t != nil {
		clear(t.chunks)
		o.stop(t)
	}
	return o.rpc.reclaim(s)
}

func (o *odrp) forget(s *session) {
	if t := o.of[s]; t != nil {
		clear(t.chunks)
		o.stop(t)
		t.close()
		delete(o.of, s)
	}
}

// work makes the addresses that came back free: their pages are zeroed already.
func (o *odrp) work() bool {
	for _, t := range o.of {
		if len(t.limbo) > 0 {
			o.release(t)
		}
	}
	o.chunks.free = append(o.chunks.free, o.chunks.dirty...)
	o.chunks.dirty = o.chunks.dirty[:0]
	return false
}

func (o *odrp) close() {
	for s := range o.of {
		o.forget(s)
	}
}
