package meta

import (
	"fmt"

	"polder/share/internal/shm"
)

// Pages keeps the state of all pages.
//
// A page whose key is gone is dying: it is free again when the record that
// says so is durable (else a crash could bring the key back, over the bytes of
// another), when no session has a reference to it, and when no lease holds it.
type Pages struct {
	table  *shm.Table
	refs   map[uint32]map[uint64]uint32 // by page and session
	mine   map[uint64]map[uint32]uint32 // the same by session and page
	leases map[uint64]*shm.Lease        // by session
	dying  map[uint32]dying

	// held is used by Sweep, and kept so that it need not be made each time.
	held map[uint32]struct{}
}

type dying struct {
	region uint64
	lsn    uint64 // of the record that took the key away
}

// NewPages returns the pages of an empty table.
func NewPages() (*Pages, error) {
	t, err := shm.NewTable()
	if err != nil {
		return nil, err
	}
	return &Pages{
		table:  t,
		refs:   map[uint32]map[uint64]uint32{},
		mine:   map[uint64]map[uint32]uint32{},
		leases: map[uint64]*shm.Lease{},
		dying:  map[uint32]dying{},
		held:   map[uint32]struct{}{},
	}, nil
}

// Table returns the shared table.
func (p *Pages) Table() *shm.Table { return p.table }

// Word returns the word of a page.
func (p *Pages) Word(page uint32) shm.Word { return p.table.Load(page) }

// IsFree reports whether a key may be registered in the page.
func (p *Pages) IsFree(page uint32) bool { return p.table.Load(page).State() == shm.Free }

// Live marks a page as holding a key.
//
// Preconditions: the page is free.
func (p *Pages) Live(page uint32) {
	w := p.table.Load(page)
	if w.State() != shm.Free {
		panic(fmt.Sprintf("BUG: page %d is registered while %d", page, w.State()))
	}
	p.table.Store(page, w.To(shm.Live))
}

// Dying marks a page whose key is gone by the record lsn. From now on no new
// view of it can be opened.
func (p *Pages) Dying(page uint32, region, lsn uint64) {
	p.table.Store(page, p.table.Load(page).To(shm.Dying))
	p.dying[page] = dying{region, lsn}
}

// Waiting returns how many pages are dying.
func (p *Pages) Waiting() int { return len(p.dying) }

// Sweep frees the dying pages that nothing needs any more, given that the
// records up to durable are, and calls freed with the region of each.
func (p *Pages) Sweep(durable uint64, freed func(region uint64)) {
	if len(p.dying) == 0 {
		return
	}
	// The words say dying already: whoever writes a page into a lease after
	// we have looked there finds that out, and lets go.
	clear(p.held)
	for _, l := range p.leases {
		l.Held(func(page uint32) { p.held[page] = struct{}{} })
	}
	n := 0
	for page, d := range p.dying {
		if _, held := p.held[page]; held || d.lsn > durable || len(p.refs[page]) > 0 {
			continue
		}
		delete(p.dying, page)
		p.table.Store(page, p.table.Load(page).To(shm.Free))
		n++
		freed(d.region)
	}
	if n > 0 {
		p.table.AddFreed(n)
	}
}

// Held reports whether a view of the page is open, as far as that can be told:
// it may be opened or closed at any time.
func (p *Pages) Held(page uint32) bool {
	if len(p.refs[page]) > 0 {
		return true
	}
	held := false
	for _, l := range p.leases {
		l.Held(func(other uint32) { held = held || other == page })
	}
	return held
}

// AllHeld returns the pages that leases hold, for many questions at once. The
// set is valid until the next call of a method.
func (p *Pages) AllHeld() map[uint32]struct{} {
	clear(p.held)
	for _, l := range p.leases {
		l.Held(func(page uint32) { p.held[page] = struct{}{} })
	}
	for page := range p.refs {
		p.held[page] = struct{}{}
	}
	return p.held
}

// Ref counts a reference of a session to a page, for clients without a lease.
func (p *Pages) Ref(page uint32, session uint64) {
	if p.refs[page] == nil {
		p.refs[page] = map[uint64]uint32{}
	}
	if p.mine[session] == nil {
		p.mine[session] = map[uint32]uint32{}
	}
	p.refs[page][session]++
	p.mine[session][page]++
}

// Unref takes a reference away; false if there is none.
func (p *Pages) Unref(page uint32, session uint64) bool {
	n := p.refs[page][session]
	if n == 0 {
		return false
	}
	if n > 1 {
		p.refs[page][session]--
		p.mine[session][page]--
		return true
	}
	p.drop(page, session)
	delete(p.mine[session], page)
	if len(p.mine[session]) == 0 {
		delete(p.mine, session)
	}
	return true
}

func (p *Pages) drop(page uint32, session uint64) {
	delete(p.refs[page], session)
	if len(p.refs[page]) == 0 {
		delete(p.refs, page)
	}
}

// Refs returns how many references a session has.
func (p *Pages) Refs(session uint64) int { return len(p.mine[session]) }

// Attach sets a session's lease, which Pages owns from now on.
func (p *Pages) Attach(session uint64, l *shm.Lease) {
	if old := p.leases[session]; old != nil {
		old.Close()
	}
	p.leases[session] = l
}

// Detach drops all that a session, which is gone, has held.
func (p *Pages) Detach(session uint64) {
	if l := p.leases[session]; l != nil {
		l.Close()
		delete(p.leases, session)
	}
	for page := range p.mine[session] {
		p.drop(page, session)
	}
	delete(p.mine, session)
}

// Touched calls f with the pages that clients looked at lately without asking.
func (p *Pages) Touched(f func(page uint32)) {
	for _, l := range p.leases {
		l.Touched(f)
	}
}

// Views returns how many views are open.
func (p *Pages) Views() int {
	n := 0
	for _, l := range p.leases {
		l.Held(func(uint32) { n++ })
	}
	for _, sessions := range p.refs {
		for _, k := range sessions {
			n += int(k)
		}
	}
	return n
}

// Close unmaps everything.
func (p *Pages) Close() error {
	for _, l := range p.leases {
		l.Close()
	}
	return p.table.Close()
}
