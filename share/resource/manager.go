// Package resource is the half of the daemon that owns memory: pools, the
// regions carved from them, their life cycle, and the capabilities by which
// clients reach them.
//
// A [Manager] knows nothing of keys. It is told that a region's reference
// count has changed, that its owner has left, that somebody has mapped it, and
// says what follows from the table of transitions.
//
// Concurrency: a Manager does not lock. The daemon serialises its calls under
// its own lock, together with the log's order, so that replaying the log
// repeats them. [Region.Reserve], [Region.Trim] and [Manager.Remove] alone, which
// take memory from the operating system and give it back, are called without it.
package resource

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"os"
	"slices"
	"time"

	"polder/internal/systemd"
	"polder/share/internal/shm"
	"polder/share/internal/wire"
)

// Errors of an allocation.
var (
	// ErrFull is returned when no pool has room for a region.
	ErrFull = errors.New("no pool has room for the region")
	// ErrQuota is returned when a region would exceed its tenant's quota.
	ErrQuota = errors.New("the tenant's quota is used up")
	// ErrUnknown is returned for a region or pool that does not exist.
	ErrUnknown = errors.New("there is no such region or pool")
	// ErrSize is returned for a region whose size or page size cannot be had.
	ErrSize = errors.New("the size of the region or of its pages cannot be had")
)

// Region is a contiguous extent of a pool, cut into pages of one size.
type Region struct {
	ID       uint64 // never used again
	Pool     string
	Offset   int64 // of the extent in the pool
	Length   int64
	PageSize int64
	Base     uint32 // number of its first page in the table of page words
	Owner    uint64 // session, 0 if the owner has left
	Tenant   string // whose quota it counts for
	Maru     bool   // Maru's clients open it by its path, and map it writable

	State   State
	Readers int // sessions other than the owner that map it
	Refs    int // pages that hold a key or are looked at

	// Of regions of Maru's only.
	Used    time.Time // when a client of Maru's was last told of a key in it
	Evicted bool      // it is freed although it may be mapped: its memory is taken back
	Short   int64     // the length that it is to shrink to, of which clients are told already; 0 for none

	// Retired says that no page of the region is used again, because a client that the daemon does not know of may
	// look at it.
	Retired bool

	pool *Pool
	file *os.File
}

// Pages returns how many pages the region has.
func (r *Region) Pages() int { return int(r.Length / r.PageSize) }

// FileOffset is where the region begins in the files that Writer and Reader
// return.
func (r *Region) FileOffset() int64 { return r.pool.back.offset(r) }

// Durable says whether the region's bytes survive the loss of power.
func (r *Region) Durable() bool { return r.pool.Durable() }

// Shared says whether the region's memory cannot be carved anew before its readers have unmapped it: readers of a DAX
// region see the pool's own memory, whoever owns it, and Maru's clients hold on to a region's file by themselves.
func (r *Region) Shared() bool { return r.pool.spec.Kind == Dax || r.Maru }

// Path is where Maru's clients open the region. It names this region and no
// other, for good.
//
// Preconditions: the region is Maru's.
func (r *Region) Path() string { return r.pool.named().path(r) }

// Reserve makes sure that every byte of a region of Maru's has memory behind it, so
// that nobody who touches one gets SIGBUS, and that files on a disk have their
// space, and are on it. It may take long.
//
// Preconditions: nobody else knows of the region.
func (r *Region) Reserve() error {
	if _, memfd := r.pool.back.(*memfdPool); r.pool.named() == nil || memfd && !r.Maru {
		return nil
	}
	return r.pool.named().reserve(r)
}

// Trim gives the memory back that lies behind the region's end, after Shrink. The file
// keeps its length: who has mapped it finds zeros there, and no SIGBUS.
//
// Preconditions: the region is Maru's.
func (r *Region) Trim() error { return r.pool.named().trim(r) }

// Align returns what the region's length is a multiple of.
func (r *Region) Align() int64 { return r.pool.back.align() }

// Writer opens a descriptor for the owner.
func (r *Region) Writer() (*os.File, error) { return r.pool.back.writer(r) }

// Reader opens a descriptor for a reader.
func (r *Region) Reader() (*os.File, error) { return r.pool.back.reader(r) }

// Seal forbids writing to all but those who map the region now.
func (r *Region) Seal() error { return r.pool.back.seal(r) }

// Step moves the region along the table of transitions.
func (r *Region) Step(e Event) error {
	s, err := r.State.Next(e)
	if err != nil {
		return fmt.Errorf("region %d: %w", r.ID, err)
	}
	r.State = s
	return nil
}

// Options tune a Manager.
type Options struct {
	Specs []Spec
	Store *systemd.Store // keeps memfd regions over a restart; may be nil
	// Named is the directory, on tmpfs, of the regions of memfd pools that
	// Maru's clients open by name. If it is empty, these pools have none.
	Named string
	Sysfs string // default "/sys"

	// Quotas limit the bytes of the regions of a tenant. The tenant "*" stands
	// for all that are not named; without it they are not limited.
	Quotas map[string]int64
}

// Manager owns the pools and their regions.
type Manager struct {
	opt     Options
	pools   []*Pool // in the order of Options.Specs
	regions map[uint64]*Region
	ids     []uint64           // of regions, in order
	freed   map[uint64]*Region // freed, and still mapped by readers
	pages   Extents            // numbers in the table of page words
	used    map[string]int64   // bytes by tenant
	next    uint64
}

// New opens the pools.
func New(opt Options) (*Manager, error) {
	opt.Sysfs = cmp.Or(opt.Sysfs, "/sys")
	m := &Manager{
		opt:     opt,
		regions: map[uint64]*Region{},
		freed:   map[uint64]*Region{},
		used:    map[string]int64{},
		next:    1,
	}
	m.pages.Grow(shm.MaxPages)
	if err := m.pages.TakeAt(0, shm.FirstPage); err != nil {
		return nil, err
	}
	if err := m.Rescan(); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// Rescan looks again at what the specs name: pools that have appeared are
// opened, pools that have grown grow, and from a pool that has gone nothing is
// carved until it is back.
func (m *Manager) Rescan() error {
	var errs []error
	found := map[string]bool{}
	for _, spec := range m.opt.Specs {
		specs, err := spec.expand()
		if err != nil {
			return err
		}
		for _, s := range specs {
			name := s.name()
			if found[name] {
				errs = append(errs, fmt.Errorf("cannot open the pool %s: it is named twice", name))
				continue
			}
			found[name] = true
			p := m.Pool(name)
			if p == nil {
				if p, err = m.openPool(s); err != nil {
					errs = append(errs, err)
					continue
				}
				m.pools = append(m.pools, p)
			}
			size, err := p.back.capacity()
			p.missing = err != nil
			if err != nil {
				errs = append(errs, fmt.Errorf("cannot rescan the pool %s: %w", name, err))
				continue
			}
			p.extents.Grow(size / p.back.align() * p.back.align())
		}
	}
	for _, p := range m.pools {
		p.missing = p.missing || !found[p.Name]
	}
	return errors.Join(errs...)
}

// Pool returns the pool of that name, or nil.
func (m *Manager) Pool(name string) *Pool {
	i := slices.IndexFunc(m.pools, func(p *Pool) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return m.pools[i]
}

// Region returns the region, or nil if it does not exist or is freed.
func (m *Manager) Region(id uint64) *Region { return m.regions[id] }

// Len returns the number of regions.
func (m *Manager) Len() int { return len(m.regions) }

// Regions iterates over the regions in the order of their numbers. The region yielded
// may be freed.
func (m *Manager) Regions() iter.Seq[*Region] { return m.RegionsAfter(0) }

// RegionsAfter is Regions for those with greater numbers than id.
func (m *Manager) RegionsAfter(id uint64) iter.Seq[*Region] {
	return func(yield func(*Region) bool) {
		for at := m.after(id); at < len(m.ids); at = m.after(id) {
			id = m.ids[at]
			if !yield(m.regions[id]) {
				return
			}
		}
	}
}

// after finds where in ids the first is that is greater than id.
func (m *Manager) after(id uint64) int {
	at, found := slices.BinarySearch(m.ids, id)
	if found {
		at++
	}
	return at
}

// Carve takes a region from the named pool, or from the first that has room
// if pool is empty, and makes its memory. It is of no use before Reserve, and not
// yet known to the Manager: the caller logs it and calls Install, or Discard.
func (m *Manager) Carve(pool string, length, pageSize int64, owner uint64, tenant string) (*Region, error) {
	return m.carve(Region{Pool: pool, Length: length, PageSize: pageSize, Owner: owner, Tenant: tenant})
}

// CarveMaru is Carve for Maru's clients: the region is one page, and has a name
// in the file system.
func (m *Manager) CarveMaru(length int64, owner uint64, tenant string) (*Region, error) {
	return m.carve(Region{Length: length, PageSize: length, Owner: owner, Tenant: tenant, Maru: true})
}

// CheckQuota fails if a tenant may not have so many more bytes.
func (m *Manager) CheckQuota(tenant string, length int64) error {
	if quota, ok := m.quota(tenant); ok && m.used[tenant]+length > quota {
		return fmt.Errorf("cannot carve %d bytes for %s, which has %d of %d: %w", length, tenant, m.used[tenant], quota, ErrQuota)
	}
	return nil
}

func (m *Manager) carve(want Region) (*Region, error) {
	pool, length, pageSize, tenant := want.Pool, want.Length, want.PageSize, want.Tenant
	if pageSize <= 0 || length < pageSize || length > math.MaxInt64/2 || length/pageSize > shm.MaxPages {
		return nil, fmt.Errorf("cannot carve a region of %d bytes with pages of %d: %w", length, pageSize, ErrSize)
	}
	if err := m.CheckQuota(tenant, length); err != nil {
		return nil, err
	}
	if pool != "" && m.Pool(pool) == nil {
		return nil, fmt.Errorf("cannot carve a region from %q: %w", pool, ErrUnknown)
	}
	for _, p := range m.pools {
		if p.missing || pool != "" && p.Name != pool || want.Maru && p.named() == nil {
			continue
		}
		align := p.back.align()
		size := (length + align - 1) / align * align
		off, ok := p.extents.Take(size, align)
		if !ok {
			continue
		}
		base, ok := m.pages.Take(size/pageSize, 1)
		if !ok {
			p.extents.Put(off, size)
			return nil, fmt.Errorf("cannot carve a region of %d pages: the table of pages is full: %w", size/pageSize, ErrFull)
		}
		r := &want
		r.ID, r.Pool, r.pool = m.next, p.Name, p
		r.Offset, r.Length, r.Base, r.State = off, size, uint32(base), Allocated
		if err := p.back.create(r); err != nil {
			m.giveBack(r)
			return nil, err
		}
		m.next++
		return r, nil
	}
	return nil, fmt.Errorf("cannot carve %d bytes: %w", length, ErrFull)
}

func (m *Manager) quota(tenant string) (int64, bool) {
	if q, ok := m.opt.Quotas[tenant]; ok {
		return q, true
	}
	q, ok := m.opt.Quotas["*"]
	return q, ok
}

func (m *Manager) giveBack(r *Region) {
	r.pool.extents.Put(r.Offset, r.Length)
	m.pages.Put(int64(r.Base), int64(r.Pages()))
}

// Discard undoes Carve.
func (m *Manager) Discard(r *Region) error {
	m.giveBack(r)
	return r.pool.back.remove(r)
}

// Install makes a carved region known.
func (m *Manager) Install(r *Region) {
	m.regions[r.ID] = r
	m.ids = slices.Insert(m.ids, m.after(r.ID), r.ID)
	m.used[r.Tenant] += r.Length
	r.pool.regions++
}

// Restore repeats, from the log, what Carve and Install did, except for the memory, which Reopen finds.
func (m *Manager) Restore(r *Region) error {
	p := m.Pool(r.Pool)
	switch {
	case p == nil:
		return fmt.Errorf("cannot restore region %d: the pool %s is not configured", r.ID, r.Pool)
	case m.regions[r.ID] != nil:
		return fmt.Errorf("cannot restore region %d: it exists", r.ID)
	case r.PageSize <= 0 || r.Length < r.PageSize || r.Offset < 0:
		return fmt.Errorf("cannot restore region %d: %w", r.ID, ErrSize)
	}
	if end := r.Offset + r.Length; p.extents.Size() < end {
		p.extents.Grow(end) // the pool was larger when it was carved
	}
	if err := p.extents.TakeAt(r.Offset, r.Length); err != nil {
		return fmt.Errorf("cannot restore region %d: %w", r.ID, err)
	}
	if err := m.pages.TakeAt(int64(r.Base), int64(r.Pages())); err != nil {
		return fmt.Errorf("cannot restore region %d: its pages: %w", r.ID, err)
	}
	r.pool = p
	m.next = max(m.next, r.ID+1)
	m.Install(r)
	return nil
}

// Next returns the number that the next region will have, and SetNext sets it:
// numbers are not used again, even when the log no longer knows of them.
func (m *Manager) Next() uint64 { return m.next }

// SetNext raises the number of the next region.
func (m *Manager) SetNext(n uint64) { m.next = max(m.next, n) }

// Reopen finds the memory of all restored regions. If sameBoot is false, the
// machine has restarted, and volatile pools have lost theirs. It returns the
// regions whose memory is gone, and gives back memory that no region claims.
func (m *Manager) Reopen(sameBoot bool) (lost []*Region, err error) {
	for r := range m.Regions() {
		if !sameBoot && !r.Durable() {
			lost = append(lost, r)
		} else if r.pool.back.open(r) != nil {
			lost = append(lost, r)
		}
	}
	if m.opt.Store != nil {
		for _, name := range m.opt.Store.Rest() {
			m.opt.Store.Kept(name).Close()
			err = errors.Join(err, m.opt.Store.Forget(name))
		}
	}
	known := map[string]bool{}
	for id := range m.regions {
		known[regionName(id)] = true
	}
	for _, p := range m.pools {
		if fp := p.named(); fp != nil {
			err = errors.Join(err, fp.orphans(func(name string) bool { return known[name] }))
		}
	}
	return lost, err
}

// Unmapped tells that a reader has unmapped the region numbered id.
func (m *Manager) Unmapped(id uint64) error {
	r := m.regions[id]
	if r == nil {
		r = m.freed[id]
	}
	if r == nil || r.Readers == 0 {
		return fmt.Errorf("cannot unmap region %d: %w", id, ErrUnknown)
	}
	r.Readers--
	if r.Readers > 0 {
		return r.Step(ReaderUnmaps)
	}
	if err := r.Step(LastUnmaps); err != nil {
		return err
	}
	if m.freed[id] != nil {
		delete(m.freed, id)
		m.giveBack(r)
	}
	return nil
}

// Free gives the extent of a freed region back to its pool. The memory follows
// with Remove, once the log has it.
//
// Preconditions: r.State is Freed.
func (m *Manager) Free(r *Region) {
	if r.State != Freed || r.Refs != 0 {
		panic(fmt.Sprintf("BUG: region %d is freed while %v with %d references", r.ID, r.State, r.Refs))
	}
	delete(m.regions, r.ID)
	at := m.after(r.ID) - 1
	m.ids = slices.Delete(m.ids, at, at+1)
	m.used[r.Tenant] -= r.Length
	if m.used[r.Tenant] == 0 {
		delete(m.used, r.Tenant)
	}
	r.pool.regions--
	if r.Readers > 0 && r.Shared() && !r.Evicted {
		m.freed[r.ID] = r
		return
	}
	m.giveBack(r)
}

// Remove gives the memory of a freed region back to the operating system.
func (m *Manager) Remove(r *Region) error {
	if r.file == nil {
		return nil // it was lost
	}
	return r.pool.back.remove(r)
}

// Shrink cuts a region of Maru's off at length: the extent behind that is the pool's again. The memory follows with
// Region.Trim, once the log has it.
func (m *Manager) Shrink(r *Region, length int64) error {
	if !r.Maru || length <= 0 || length >= r.Length || length%r.pool.back.align() != 0 {
		return fmt.Errorf("cannot shrink region %d of %d bytes to %d: %w", r.ID, r.Length, length, ErrSize)
	}
	r.pool.extents.Put(r.Offset+length, r.Length-length)
	m.used[r.Tenant] -= r.Length - length
	r.Length, r.PageSize, r.Short = length, length, 0
	return nil
}

// KeepAll hands the memory of all regions to the Store again.
func (m *Manager) KeepAll() error {
	for r := range m.Regions() {
		if _, ok := r.pool.back.(*memfdPool); ok && r.file != nil {
			if err := m.opt.Store.Keep(regionName(r.ID), r.file); err != nil {
				return fmt.Errorf("cannot hand over the memory of region %d: %w", r.ID, err)
			}
		}
	}
	return nil
}

// Pools describes the pools.
func (m *Manager) Pools() []wire.PoolInfo {
	var infos []wire.PoolInfo
	for _, p := range m.pools {
		free, largest := p.extents.Free()
		infos = append(infos, wire.PoolInfo{
			Name: p.Name, Size: p.extents.Size(), Free: free, Largest: largest,
			Regions: p.regions, Durable: p.Durable(), Missing: p.missing, Maru: p.named() != nil,
		})
	}
	return infos
}

// Used returns the bytes of regions by tenant.
func (m *Manager) Used() map[string]int64 { return maps.Clone(m.used) }

// Close closes descriptors. Memory that survives stays.
func (m *Manager) Close() error {
	var errs []error
	for _, r := range m.regions {
		if r.file != nil {
			errs = append(errs, r.file.Close())
		}
	}
	for _, p := range m.pools {
		errs = append(errs, p.back.close())
	}
	return errors.Join(errs...)
}
