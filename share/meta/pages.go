package meta

import (
	"crypto/rand"
	"encoding/binary"
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
	first  shm.Word                       // the word of a page that was never used
	refs   map[uint32]map[uint64]uint32   // by page and session
	mine   map[uint64]map[uint32]struct{} // the pages of each session, whatever their number of references
	leases map[uint64]*shm.Lease          // by session
	dying  map[uint32]dying
	recent []uint32 // dying pages that no sweep has looked at yet

	// unknown are the pages that held no key when the daemon started. Their
	// owners know which of them were free.
	unknown map[uint32]struct{}

	// held is used by Sweep, and kept so that it need not be made each time.
	held map[uint32]struct{}
}

type dying struct {
	region uint64
	lsn    uint64 // of the record that took the key away
	sync   bool   // the record must be on the medium
}

// NewPages returns the pages of an empty table.
func NewPages() (*Pages, error) {
	t, err := shm.NewTable()
	if err != nil {
		return nil, err
	}
	// The words must differ from those of the daemon before the restart: otherwise a place that a client learnt from
	// that one could seem right to this one.
	var seed [8]byte
	rand.Read(seed[:])
	first := shm.Word(binary.LittleEndian.Uint64(seed[:])) &^ 3
	return &Pages{
		table:   t,
		first:   first,
		refs:    map[uint32]map[uint64]uint32{},
		mine:    map[uint64]map[uint32]struct{}{},
		leases:  map[uint64]*shm.Lease{},
		dying:   map[uint32]dying{},
		unknown: map[uint32]struct{}{},
		held:    map[uint32]struct{}{},
	}, nil
}

// Table returns the shared table.
func (p *Pages) Table() *shm.Table { return p.table }

// Word returns the word of a page.
func (p *Pages) Word(page uint32) shm.Word {
	if w := p.table.Load(page); w != 0 {
		return w
	}
	return p.first
}

// IsFree reports whether a key may be registered in the page.
func (p *Pages) IsFree(page uint32) bool { return p.Word(page).State() == shm.Free }

// Live marks a page as holding a key.
//
// Preconditions: the page is free.
func (p *Pages) Live(page uint32) {
	w := p.Word(page)
	if w.State() != shm.Free {
		panic(fmt.Sprintf("BUG: page %d is registered while %d", page, w.State()))
	}
	p.table.Store(page, w.To(shm.Live))
}

// Dying marks a page of region whose key is gone by the record lsn, which must
// be written, and on the medium if sync, before the page is free. From now on
// no new view of it can be opened.
func (p *Pages) Dying(page uint32, region, lsn uint64, sync bool) {
	p.table.Store(page, p.Word(page).To(shm.Dying))
	p.dying[page] = dying{region, lsn, sync}
	p.recent = append(p.recent, page)
}

// Unknown marks a page that held no key when the daemon started as one that
// somebody may look at. Its owner may Claim it. Dying may follow, to have it
// swept.
func (p *Pages) Unknown(page uint32) {
	p.table.Store(page, p.Word(page).To(shm.Dying))
	p.unknown[page] = struct{}{}
}

// Claim frees a page that is Unknown, because its owner says that it was free.
// The owner is believed: the page is its own. It reports whether the page was
// to be swept.
func (p *Pages) Claim(page uint32) (swept bool) {
	if _, ok := p.unknown[page]; !ok {
		return false
	}
	_, swept = p.dying[page]
	p.free(page)
	return swept
}

// Forget frees a page of a region that is gone, if it was given up: its number
// will be another region's.
func (p *Pages) Forget(page uint32) {
	delete(p.unknown, page)
	if p.Word(page).State() == shm.Dying {
		p.free(page)
	}
}

func (p *Pages) free(page uint32) {
	delete(p.dying, page)
	delete(p.unknown, page)
	p.table.Store(page, p.Word(page).To(shm.Free))
}

// IsDying reports whether a sweep will look at the page.
func (p *Pages) IsDying(page uint32) bool {
	_, ok := p.dying[page]
	return ok
}

// Retry makes the next sweep look at a dying page again.
func (p *Pages) Retry(page uint32) { p.recent = append(p.recent, page) }

// Waiting returns how many pages are dying.
func (p *Pages) Waiting() int { return len(p.dying) }

// Fate is what becomes of a page that nothing needs any more.
type Fate int

// The fates of a page.
const (
	Reuse  Fate = iota // it is free
	GiveUp             // its word says dying for good, and no sweep looks at it again
	Wait               // the next sweep that looks at all decides again
)

// Sweep looks for dying pages that nothing needs any more, given which records
// are written and which are on the medium, and asks fate what becomes of each,
// by its region. It looks at the pages that have begun to die since the last sweep, and
// at those that had to wait if all is true.
func (p *Pages) Sweep(written, synced uint64, all bool, fate func(region uint64) Fate) {
	if len(p.dying) == 0 || !all && len(p.recent) == 0 {
		return
	}
	// The words say dying already: whoever writes a page into a lease after
	// we have looked there finds that out, and lets go.
	held := p.leased()
	n := 0
	free := func(page uint32, d dying) bool {
		if _, ok := held[page]; ok || len(p.refs[page]) > 0 {
			return false
		}
		switch fate(d.region) {
		case Reuse:
			p.free(page)
			n++
		case GiveUp:
			delete(p.dying, page)
		}
		return true
	}
	logged := func(d dying) bool { return d.lsn <= written && (!d.sync || d.lsn <= synced) }
	later := p.recent[:0]
	for _, page := range p.recent {
		if d, ok := p.dying[page]; ok && !logged(d) {
			later = append(later, page)
		} else if ok {
			free(page, d)
		}
	}
	p.recent = later
	if all {
		for page, d := range p.dying {
			if logged(d) {
				free(page, d)
			}
		}
	}
	if n > 0 {
		p.table.AddFreed(n)
	}
}

// leased collects the pages that leases hold.
func (p *Pages) leased() map[uint32]struct{} {
	clear(p.held)
	for _, l := range p.leases {
		l.Held(func(page uint32) { p.held[page] = struct{}{} })
	}
	return p.held
}

// Held returns the pages that are looked at, as far as that can be told: views
// open and close at any time. The set is valid until the next call.
func (p *Pages) Held() map[uint32]struct{} {
	held := p.leased()
	for page := range p.refs {
		held[page] = struct{}{}
	}
	return held
}

// Ref counts a reference of a session to a page, for clients without a lease.
func (p *Pages) Ref(page uint32, session uint64) {
	if p.refs[page] == nil {
		p.refs[page] = map[uint64]uint32{}
	}
	if p.mine[session] == nil {
		p.mine[session] = map[uint32]struct{}{}
	}
	p.refs[page][session]++
	p.mine[session][page] = struct{}{}
}

// Unref takes a reference away; false if there is none.
func (p *Pages) Unref(page uint32, session uint64) bool {
	n := p.refs[page][session]
	if n == 0 {
		return false
	}
	if n > 1 {
		p.refs[page][session]--
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

// Refs returns how many pages a session refers to.
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
