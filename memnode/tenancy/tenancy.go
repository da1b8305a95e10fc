// Package tenancy is the layout of the memory that a memory node passes to a
// client on the same machine, and of the lease on it.
//
// A client has one memfd. From its beginning on it has slots of the size of a chunk; which slot a chunk is in, the
// node says when it grants the chunk. Behind the last slot, on a page of its own, is the [Lease]. There are as many
// slots as the client may ever have chunks at a time, and the size is sealed; pages exist only where somebody has
// written.
//
// # Why the memory can be taken back
//
// Clients must be kept apart, and the kernel does that: no client has a descriptor of another's memfd, and a page
// that was in one memfd is zeroed before it is in another. So a range need not become inaccessible before it can be
// reused safely. The node punches a chunk that was freed or reclaimed out of the memfd. This gives its pages back
// whether its last owner runs, is stopped or is hostile, and the slot is lent again, if at all, only to the same
// client. Neither end can prevent punching: the seals forbid resizing, and forbid further seals, so the client cannot
// seal its memfd against it.
//
// A hostile client can write to ranges that it was not granted and so make pages exist again. They are the client's
// own: no other client sees them, the kernel charges them to the client (memory control groups charge whoever touches
// a page first), their number is bounded by the size of the memfd, and the client could have had as many by asking
// the kernel for memory of its own.
//
// An honest client that was stopped for longer than its grace period wakes to find its chunks reclaimed. It must not
// take their zeros for data. Therefore the node revokes the lease before it punches what it reclaims, and the client
// checks the lease after every access, before it believes what it has read: an access that came before the lease was
// seen to be valid came before the punch.
//
// Memory that clients only read, and that is the same for all of them (package inplace), has leases of the same kind,
// each in a file of its own. There the queue pairs keep clients apart when they write, and the lease keeps a client
// from believing what it reads.
//
// # Faults
//
// An access to the memfd cannot fault for good: its size is sealed, so its end does not move, and a page that does
// not exist is made when it is touched. The kernel fails to make it only when it is out of memory. If the kernel does
// not overcommit (vm.overcommit_memory=2), the access then ends in a SIGBUS; otherwise the out-of-memory killer deals
// with it, as with any memory.
package tenancy

import (
	"sync/atomic"

	"polder/internal/arena"
)

// Size is how many bytes the memfd for chunks chunks has.
func Size(chunks, chunkSize int) int {
	return leaseOffset(chunks*chunkSize) + arena.PageSize
}

// Chunks is how many chunks fit into a memfd of size bytes, or false if Size returns that size for no number of
// chunks.
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

// A Lease is the word that says whether the memory is still the client's. Any number of goroutines may use it.
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

// Valid reports whether memory that was read before this call was still the client's.
func (l *Lease) Valid() bool {
	// Not a load: on some machines a load would not keep earlier reads before it.
	return l.word.Add(0) == valid
}

// Close unmaps the lease, which must not be used any more.
func (l *Lease) Close() error { return l.page.Close() }
