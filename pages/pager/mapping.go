package pager

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"polder/far"
	"polder/internal/arena"
	"polder/internal/fdpass"
	"polder/pages"
	"polder/pages/internal/ahead"
	"polder/pages/internal/uffd"
	"polder/pages/internal/wire"
)

const (
	workers  = 8                    // of a mapping, for faults that wait for far memory
	waiting  = 64                   // faults that may wait for a worker; those behind them wait in the kernel
	pause    = 5 * time.Millisecond // between attempts to read a page
	poisoned = 1<<32 - 1            // a value of index: accesses fail
)

// The states of a frame.
const (
	free uint8 = iota
	loading
	parked   // see marks
	clean    // protected: who writes to it faults
	dirty    // it may have been written to since it was evicted last
	evicting // protected, and being written out or taken out of the memory
)

// frame holds a page that is in the memory, or is being brought.
type frame struct {
	page  int64
	pins  int32
	state uint8
	used  bool // the page was used since the policy last proposed it: it is spared once
	want  bool // somebody needs it while it is being evicted or loaded
}

// mapping is the memory of a client.
type mapping struct {
	s      *Server
	conn   *fdpass.Conn
	fd     *uffd.FD
	memory *arena.Memfd
	table  *arena.Mapping // see package wire
	base   uint64
	size   int64
	volume *pages.Volume
	region *named          // nil if it ends with its client
	again  bool            // the region was there before its client
	lost   []atomic.Uint64 // a bit for each page that was lost with the pager before this one; nil if there was none

	ctx     context.Context // canceled when the mapping ends
	end     context.CancelCauseFunc
	jobs    chan job      // closed once over is set, while workers are at their last jobs
	evict   chan struct{} // has the evictor look whether frames are free
	helpers sync.WaitGroup

	sending sync.Mutex // of replies
	syncing sync.Mutex // held while sync writes what is in the memory; locked before mu

	unwritten error // why not all of the memory could be written when the mapping ended

	mu       sync.Mutex    // held over operations on pages of the memory, but never while far memory is waited for
	changed  sync.Cond     // with mu: broadcast when the state of a frame has changed
	index    []uint32      // by page: its frame + 1, or poisoned, or what policy.gone returned, or 0; guarded by mu
	frames   []frame       // guarded by mu
	free     []uint32      // frames that nobody uses; guarded by mu
	policy   *policy       // guarded by mu
	failures int           // rounds of evicting in which no page could go; guarded by mu
	stuck    error         // why the last round failed, nil if it did not; guarded by mu
	streams  ahead.Streams // of pages that were not resident when touched; guarded by mu
	writes   ahead.Streams // of protected pages that are written to; guarded by mu
	marks    marks         // guarded by mu
	over     bool          // workers begin nothing more; guarded by mu
	pins     map[uint64]wire.Request
	pinned   int64    // how many pages are pinned; like pins guarded by mu
	written  []uint64 // a bit for each page written to the volume since the last checkpoint began; guarded by mu

	page   [pages.Size]byte // buffer of the goroutine that reads faults
	prompt prompt
}

// job is what a worker does: serve a fault, or read a window ahead.
type job struct {
	ahead   ahead.Window
	stream  bool // the window is a stream's
	page    int64
	frame   uint32 // the frame that was claimed for a fault, if one was
	claimed bool
	write   bool
}

// serve serves faults until the mapping ends.
func (m *mapping) serve() error {
	var faults [16]uffd.Fault
	for {
		n, err := m.fd.Read(&faults)
		if err != nil {
			return err
		}
		for _, f := range faults[:n] {
			if page := int64(f.Addr-m.base) / pages.Size; f.Addr >= m.base && page < int64(len(m.index)) {
				m.fault(page, f.Write, f.Protected)
			}
		}
	}
}

// fault serves an access that waits. It is hot: if the page is local to the pager, fault does everything itself, and
// it never allocates.
func (m *mapping) fault(page int64, write, protected bool) {
	m.mu.Lock()
	at := m.index[page]
	if resident(at) || protected || at == poisoned {
		m.present(page, at, write || protected)
		m.mu.Unlock()
		return
	}
	m.s.stats.faults.Add(1)
	j := job{page: page, write: write}
	j.frame, j.claimed = m.claim(page)
	w := m.streams.Access(page, 1)
	m.mu.Unlock()
	if !j.claimed || !m.readNow(j) {
		m.jobs <- j
	}
	if w.Count > 0 {
		select {
		case m.jobs <- job{ahead: w, stream: true}:
		default: // more important work waits
		}
	}
}

// readNow reads the page of a fault if that is local to the pager or comes from far memory sooner than a worker could
// be woken, and reports whether it did.
func (m *mapping) readNow(j job) bool {
	if m.isLost(j.page) {
		return false
	}
	read := func(ctx context.Context) error { return m.volume.Read(ctx, m.page[:], j.page*pages.Size) }
	if err := read(far.NoWait); err != nil && (!errors.Is(err, far.ErrWouldBlock) || !m.prompt.read(m.ctx, read)) {
		return false
	}
	m.place([]uint32{j.frame}, m.page[:], j.write)
	return true
}

func resident(at uint32) bool { return at != 0 && at&wasHere == 0 }

// present serves an access to a page that is resident or poisoned, or that has been evicted meanwhile.
//
// Preconditions: m.mu is held.
func (m *mapping) present(page int64, at uint32, write bool) {
	if !resident(at) {
		m.must(m.fd.Wake(m.addr(page), pages.Size)) // the access is tried again
		return
	}
	f := &m.frames[at-1]
	f.used = true
	switch {
	case f.state == loading: // whoever places the page wakes the access
		f.want = true
	case f.state == parked:
		f.used = false // no more than the pages beside it, with which it is to be evicted
		m.unpark(at-1, write)
		m.follow(page)
	case f.state == evicting: // whoever evicts the page wakes the access
		f.want = true
	case write:
		m.write(page)
	default:
		m.must(m.fd.Wake(m.addr(page), pages.Size))
	}
}

func (m *mapping) addr(page int64) uint64 { return m.base + uint64(page)*pages.Size }

// must ends the mapping if err is not nil: then the client cannot be served any more, mostly because it is dead.
func (m *mapping) must(err error) {
	if err != nil {
		m.end(err)
	}
}

// claim takes a free frame for a page, if there is one.
//
// Preconditions: m.mu is held; the page is not resident.
func (m *mapping) claim(page int64) (at uint32, ok bool) {
	n := len(m.free)
	if n <= m.low() {
		m.poke()
	}
	if n == 0 {
		return 0, false
	}
	at = m.free[n-1]
	m.free = m.free[:n-1]
	m.frames[at] = frame{page: page, state: loading}
	m.policy.came(at, m.index[page])
	m.index[page] = at + 1
	return at, true
}

// release frees a frame. next is the new entry of index for its page.
//
// Preconditions: m.mu is held.
func (m *mapping) release(at, next uint32) {
	m.policy.forget(at)
	m.index[m.frames[at].page] = next
	m.frames[at] = frame{}
	m.free = append(m.free, at)
	m.changed.Broadcast()
}

// place puts the pages in b into the memory, adjacent pages with one system call, and has whoever waits for them go
// on. m.mu is not held meanwhile, so that other pages can come and go.
//
// Preconditions: the frames are loading and belong to the caller; m.mu is not held.
func (m *mapping) place(frames []uint32, b []byte, write bool) {
	for len(frames) > 0 {
		row := m.row(frames)
		err := m.copyIn(row, b[:len(row)*pages.Size], write)
		m.mu.Lock()
		m.placed(row, write, err)
		m.mu.Unlock()
		frames, b = frames[len(row):], b[len(row)*pages.Size:]
	}
}

// copyIn copies adjacent pages from b into the memory. Accesses that wait for one of them go on at once.
//
// Preconditions: the frames are loading and belong to the caller.
func (m *mapping) copyIn(row []uint32, b []byte, write bool) error {
	m.s.stats.places.Add(1)
	return m.fd.Copy(m.addr(m.frames[row[0]].page), b, !write)
}

// placed notes that the pages of a row are in the memory now. err is the error of copyIn; if there was one, the
// mapping ends.
//
// Preconditions: m.mu is held.
func (m *mapping) placed(row []uint32, write bool, err error) {
	if err != nil {
		m.end(err) // the pages may not be in the memory
		return
	}
	for _, at := range row {
		f := &m.frames[at]
		f.state = clean
		if write {
			f.state = dirty
		}
		if f.want { // an access that came after copyIn waits: it tries again
			f.want = false
			m.must(m.fd.Wake(m.addr(f.page), pages.Size))
		}
	}
	m.changed.Broadcast()
}

// work serves jobs until there are no more.
func (m *mapping) work() {
	b := m.s.buffers.Get().(*[pages.MaxRead * pages.Size]byte)
	defer m.s.buffers.Put(b)
	for j := range m.jobs {
		if j.ahead.Count > 0 {
			m.readAhead(j, b[:])
			continue
		}
		if err := m.load(j, b[:pages.Size]); err != nil {
			m.poison(j.page, err)
		}
	}
}

// load serves a fault that has to wait for a frame or for far memory.
func (m *mapping) load(j job, b []byte) error {
	if !j.claimed {
		m.mu.Lock()
		at, err := m.claimWait(j.page)
		if err != nil {
			m.mu.Unlock()
			return err
		}
		if at == 0 { // somebody else has brought it
			m.present(j.page, m.index[j.page], j.write)
			m.mu.Unlock()
			return nil
		}
		m.mu.Unlock()
		j.frame = at - 1
	}
	begin := time.Now()
	err := m.read(j.page, b)
	if j.claimed { // it was far when the fault came
		m.prompt.noteRead(time.Since(begin))
	}
	if err != nil {
		m.mu.Lock()
		m.release(j.frame, 0)
		m.mu.Unlock()
		return err
	}
	m.place([]uint32{j.frame}, b, j.write)
	return nil
}

// claimWait waits until it can claim a frame for a page, and returns the frame + 1, or 0 if the page has become
// resident or poisoned.
//
// Preconditions: m.mu is held; claimWait releases it while it waits.
func (m *mapping) claimWait(page int64) (uint32, error) {
	failures := m.failures
	for {
		at := m.index[page]
		if resident(at) || at == poisoned {
			return 0, nil
		}
		if at, ok := m.claim(page); ok {
			return at + 1, nil
		}
		// The first failure may be that of a round that had begun before.
		if m.stuck != nil && m.failures >= failures+2 {
			return 0, fmt.Errorf("cannot evict anything for it: %w", m.stuck)
		}
		if err := m.ctx.Err(); err != nil {
			return 0, err
		}
		m.changed.Wait()
	}
}

// read reads a page.
func (m *mapping) read(page int64, b []byte) error {
	if m.isLost(page) {
		return errLost
	}
	return m.retry(func() error { return m.volume.Read(m.ctx, b, page*pages.Size) })
}

// retry calls read until it succeeds, the page is lost, or Config.Timeout is over.
func (m *mapping) retry(read func() error) error {
	begin := time.Now()
	for {
		err := read()
		if err == nil {
			return nil
		}
		var lost *far.LostError
		if errors.As(err, &lost) || m.ctx.Err() != nil || time.Since(begin) > m.s.cfg.Timeout {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-m.ctx.Done():
			timer.Stop()
		}
	}
}

func (m *mapping) isLost(page int64) bool {
	return m.lost != nil && m.lost[page/64].Load()&(1<<(page%64)) != 0
}

var errLost = fmt.Errorf("it was lost with the pager before this one: %w", &far.LostError{Segment: "of another process"})

// abandon gives up frames that were to be filled. Whoever waits for one of their pages tries again, and learns then
// what is wrong.
func (m *mapping) abandon(frames []uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, at := range frames {
		page := m.frames[at].page
		m.release(at, 0)
		m.must(m.fd.Wake(m.addr(page), pages.Size))
	}
}

// poison has accesses to a page fail from now on.
func (m *mapping) poison(page int64, why error) {
	if m.ctx.Err() != nil {
		return
	}
	m.s.stats.poisoned.Add(1)
	m.s.cfg.Logger.Warn("a page cannot be read: accesses to it fail with SIGBUS", "page", page, "why", why)
	m.mu.Lock()
	defer m.mu.Unlock()
	if resident(m.index[page]) { // it has come after all
		return
	}
	m.index[page] = poisoned
	// If the page is still marked as protected, it cannot be poisoned.
	m.must(m.fd.Protect(m.addr(page), pages.Size, false))
	m.must(m.fd.Poison(m.addr(page), pages.Size))
	m.must(m.fd.Wake(m.addr(page), pages.Size))
	m.changed.Broadcast()
}

// mark notes in the table whether a page that is not in the memory would be lost with this process.
func (m *mapping) mark(page int64, kept bool) {
	word, bit := m.word(page)
	if kept {
		word.Or(bit)
	} else if word.Load()&bit != 0 {
		word.And(^bit)
	}
}

func (m *mapping) word(page int64) (*atomic.Uint64, uint64) {
	return arena.Word64(m.table.Bytes()[page/64*8:]), 1 << (page % 64)
}
