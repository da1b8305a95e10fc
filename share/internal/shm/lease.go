package shm

import (
	"fmt"
	"os"
	"sync/atomic"

	"polder/internal/arena"
)

// The layout of a lease, in words: a header, the slots, and a ring of the
// pages that were looked at lately without a message, for the daemon's LRU.
const (
	leaseMagic = 0x504c44524c454153 // "PLDRLEAS"

	wordMagic = 0 // leaseMagic
	wordHigh  = 1 // slots from here on have never been used
	wordHead  = 2 // how many pages have been written to the ring

	slotsAt = 8
	// Slots is how many views a lease can hold open.
	Slots  = 4096
	ringAt = slotsAt + Slots
	ring   = 504

	leaseWords = ringAt + ring
	leaseSize  = (leaseWords*8 + 4095) &^ 4095
)

// Lease is one client's list of open views.
type Lease struct {
	mem   *arena.Mapping
	file  *os.File // nil in the daemon
	words []atomic.Uint64
	hint  atomic.Uint32 // a slot that was free lately; the client's
	tail  uint64        // how much of the ring has been read; the daemon's
}

// NewLease makes a client's lease.
func NewLease() (*Lease, error) {
	fd, err := arena.NewMemfd("polder-share-lease", leaseSize)
	if err != nil {
		return nil, err
	}
	mem, err := fd.Map(0, leaseSize, true)
	if err == nil {
		err = fd.SealSize()
	}
	if err != nil {
		fd.Close()
		return nil, err
	}
	l := &Lease{mem: mem, file: fd.File(), words: words(mem.Bytes())}
	l.words[wordMagic].Store(leaseMagic)
	return l, nil
}

// OpenLease maps a client's lease in the daemon. The file stays the caller's.
func OpenLease(f *os.File) (*Lease, error) {
	mem, err := mapFile(f, leaseSize, false)
	if err != nil {
		return nil, fmt.Errorf("cannot map the lease: %w", err)
	}
	l := &Lease{mem: mem, words: words(mem.Bytes())}
	if l.words[wordMagic].Load() != leaseMagic {
		mem.Close()
		return nil, fmt.Errorf("cannot map the lease: it does not begin as one")
	}
	l.tail = l.words[wordHead].Load()
	return l, nil
}

// File returns what to send to the daemon.
func (l *Lease) File() *os.File { return l.file }

// Hold writes page into a free slot and returns the slot, or false if all are
// taken. The caller must look at the page's word afterwards.
func (l *Lease) Hold(page uint32) (slot uint32, ok bool) {
	at := l.hint.Load() % Slots
	for range Slots {
		s := &l.words[slotsAt+at]
		if s.Load() == 0 {
			// The daemon must look at the slot from before it is taken.
			for high := l.words[wordHigh].Load(); high <= uint64(at); high = l.words[wordHigh].Load() {
				l.words[wordHigh].CompareAndSwap(high, uint64(at)+1)
			}
			if s.CompareAndSwap(0, uint64(page)) {
				return at, true
			}
		}
		at = (at + 1) % Slots
	}
	return 0, false
}

// Drop frees a slot.
func (l *Lease) Drop(slot uint32) {
	l.words[slotsAt+slot].Store(0)
	l.hint.Store(slot)
}

// Touch tells the daemon's LRU that page was looked at. It may be lost.
func (l *Lease) Touch(page uint32) {
	n := l.words[wordHead].Add(1) - 1
	l.words[ringAt+n%ring].Store(uint64(page))
}

// Held calls f with every page that is held.
func (l *Lease) Held(f func(page uint32)) {
	for i := range min(l.words[wordHigh].Load(), Slots) {
		if p := l.words[slotsAt+i].Load(); p != 0 {
			f(uint32(p))
		}
	}
}

// Touched calls f with the pages touched since the last call, as far as the
// ring remembers them.
func (l *Lease) Touched(f func(page uint32)) {
	head := l.words[wordHead].Load()
	if head-l.tail > ring {
		l.tail = head - ring
	}
	for ; l.tail != head; l.tail++ {
		f(uint32(l.words[ringAt+l.tail%ring].Load()))
	}
}

// Close unmaps the lease.
func (l *Lease) Close() error {
	if l.file != nil {
		l.file.Close()
	}
	return l.mem.Close()
}
