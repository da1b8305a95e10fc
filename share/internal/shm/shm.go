// Package shm lays out the kinds of shared memory by which a client and the
// daemon talk without a message: the table, the leases, and the mailboxes.
//
// The table is one word per page of every region. The daemon writes it, and
// all clients map it read-only. A word is the page's generation and its state;
// a client that remembers where a key lies remembers the word too, and knows
// by one load whether the place is still the key's. An owner sees by the same
// words which of its pages are free again.
//
// A lease is one client's list of the pages that it looks at. The client
// writes it and the daemon reads it. To open a view, a client first writes
// the page's number into a slot and then looks at the page's word; to take a
// page back, the daemon first changes the word and then looks at all slots.
// Both use sequentially consistent atomics, so at least one of them sees the
// other (Dekker's argument): either the client finds the word changed and lets
// go, or the daemon finds the page held and leaves it alone. Opening and
// closing a view costs two atomic operations and no message.
//
// A [Mailbox] carries the short requests of a client that is busy.
//
// A client that lies in its lease harms itself: it keeps pages from their
// owners as long as it lives, as it could by keeping views open, or reads
// bytes of a page that is no longer what it looked up.
package shm

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"polder/internal/arena"

	"golang.org/x/sys/unix"
)

// PageState is the state of a page.
type PageState uint64

// The states of a page. A page goes from Free to Live when a key is registered
// in it, to Dying when the key is gone, and to Free again when nobody looks at
// it any more.
const (
	Free PageState = iota
	Live
	Dying
)

// Word is a generation and a state. The generation grows at every change.
type Word uint64

// State returns the state.
func (w Word) State() PageState { return PageState(w & 3) }

// To returns the word that follows w, with state s.
func (w Word) To(s PageState) Word { return (w&^3 + 4) | Word(s) }

const (
	// FirstPage is the number of the first page: lower words of the table are
	// its header.
	FirstPage = 64
	// MaxPages is how many words a table has, header included.
	MaxPages = 1 << 24

	wordFreed = 0 // header: how many pages have been freed so far
)

// Table is the table of page words.
type Table struct {
	mem   *arena.Mapping
	file  *os.File // for clients; nil in a client
	words []atomic.Uint64
}

// NewTable makes the daemon's table. Only this mapping can write it.
func NewTable() (*Table, error) {
	fd, err := arena.NewMemfd("polder-share-table", MaxPages*8)
	if err != nil {
		return nil, err
	}
	defer fd.Close()
	mem, err := fd.Map(0, fd.Size(), true)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(fd.SealSize(), fd.SealFutureWrites()); err != nil {
		mem.Close()
		return nil, err
	}
	ro, err := arena.Reopen(fd.File(), os.O_RDONLY)
	if err != nil {
		mem.Close()
		return nil, err
	}
	return &Table{mem: mem, file: ro, words: words(mem.Bytes())}, nil
}

// OpenTable maps a table that the daemon sent. The file stays the caller's.
func OpenTable(f *os.File) (*Table, error) {
	mem, err := mapFile(f, MaxPages*8, false)
	if err != nil {
		return nil, fmt.Errorf("cannot map the table: %w", err)
	}
	return &Table{mem: mem, words: words(mem.Bytes())}, nil
}

// File returns what to send to clients.
func (t *Table) File() *os.File { return t.file }

// Load returns the word of a page.
func (t *Table) Load(page uint32) Word { return Word(t.words[page].Load()) }

// Store sets the word of a page. Only the daemon may.
func (t *Table) Store(page uint32, w Word) { t.words[page].Store(uint64(w)) }

// Freed returns how many pages have been freed so far: an owner that has
// looked at its words since need not look again.
func (t *Table) Freed() uint64 { return t.words[wordFreed].Load() }

// AddFreed counts freed pages, after their words have changed.
func (t *Table) AddFreed(n int) { t.words[wordFreed].Add(uint64(n)) }

// Close unmaps the table.
func (t *Table) Close() error {
	if t.file != nil {
		t.file.Close()
	}
	return t.mem.Close()
}

// mapFile maps size bytes of a file from another process, which must be at
// least as large and unable to shrink, so that no access can fault.
func mapFile(f *os.File, size int, writable bool) (*arena.Mapping, error) {
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("it is not a memfd: %w", err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("its size is not sealed")
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return nil, err
	}
	if fs.Type != unix.TMPFS_MAGIC {
		return nil, fmt.Errorf("it lies on huge pages, which may run out")
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	if st.Size < int64(size) {
		return nil, fmt.Errorf("it has %d bytes, want %d", st.Size, size)
	}
	return arena.MapFile(f, 0, size, writable)
}
