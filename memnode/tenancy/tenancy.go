// Package tenancy is the layout of the memory that a memory node passes to a
// client on the same machine, and of the lease on it.
//
// A client has one memfd, with slots of the size of a chunk from its beginning
// on; where in it a chunk lies the node says when it grants it. Behind the last
// slot, on a page of its own, is the [Lease]. As many chunks fit as the
// client may ever hold at a time, and the size is sealed; pages exist only
// where somebody has written.
//
// # Why the memory can be taken back
//
// What is to be kept apart is clients, and the kernel does that: no client has
// a descriptor of another's memfd, and a page that was in one memfd is zeroed
// before it is in another. So no range needs to become inaccessible to be safe
// to reuse: a chunk that was freed or reclaimed is punched out, which gives its
// pages back whether or not its last owner runs, is stopped or hostile, and is
// lent again, if at all, to the same client. Neither end can prevent that: the
// seals forbid resizing, and forbid further seals, so that the client cannot
// seal its memfd against being punched.
//
// A hostile client can write to ranges that it was not granted and so make
// pages come back. They are its own: no other client sees them, they are
// charged to it by the kernel (memory control groups charge who touches a page
// first), they are bounded by the size of its memfd, and it could have had as
// many by asking the kernel for memory of its own.
//
// An honest client must not take a chunk's zeros for data when it was stopped
// for longer than its grace period, and wakes to find its chunks reclaimed.
// Therefore the node revokes the lease before it punches what it reclaims, and
// the client looks at the lease after every access, before it believes what it
// has read: an access that came before a valid lease came before the punch.
//
// Memory that clients only read, all of them the same (package inplace), has leases of the same kind, each in a file of its
// own: there it is the queue pairs that keep clients apart when they write, and the lease keeps them from believing.
//
// # Faults
//
// An access to the memfd cannot fault for good: its size is sealed, so that there
// is no end of it that moves, and a page that does not exist is made when it is
// touched. The kernel fails that only when it is out of memory; where it does not
// overcommit at all (vm.overcommit_memory=2) that is a SIGBUS, and anywhere else
// the out-of-memory killer's business, as with any memory.
package tenancy

import (
	"sync/atomic"

	"polder/internal/arena"
)

// Size is how many bytes the memfd for so many chunks has.
func Size(chunks, chunkSize int) int {
	return leaseOffset(chunks*chunkSize) + arena.PageSize
}

// Chunks is how many chunks fit into a memfd of so many bytes, or false if that
// is no size that Size returns.
func Chunks(size, chunkSize int) (int, bool) {
	if chunkSize <= 0 || size <= arena.PageSize {
		return 0, false
	}
	n := (size - arena.PageSize) / chunkSize
	for ; n > 0 && Size(n, chunkSize) > size; n-- {
	}
	return n, n > 0 && Size(n, chunkSize) == size
}

func leaseOffset(bytes int) int {
	return (bytes + arena.PageSize - 1) / arena.PageSize * arena.PageSize
}

// A Lease is the word that says whether the memory is still the client's. It may
// be used by any number of goroutines.
type Lease struct {
	page *arena.Mapping
	word *atomic.Uint32
}

const (
	valid   = 0
	revoked = 1
)

// MapLease maps the lease of a memfd.
func MapLease(m *arena.Memfd) (*Lease, error) {
	page, err := m.Map(m.Size()-arena.PageSize, arena.PageSize, true)
	if err != nil {
		return nil, err
	}
	return &Lease{page: page, word: arena.Word32(page.Bytes())}, nil
}

// Revoke ends the lease for good.
func (l *Lease) Revoke() { l.word.Store(revoked) }

// Valid reports whether what was read before this call was the client's.
func (l *Lease) Valid() bool {
	// Not a load: that would not keep earlier reads before it on every
	// machine.
	return l.word.Add(0) == valid
}

// Close unmaps the lease, which must not be used any more.
func (l *Lease) Close() error { return l.page.Close() }
