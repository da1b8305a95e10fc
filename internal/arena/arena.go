// Package arena owns memory that the Go runtime does not: anonymous mappings
// and memfds, mapped, punched, sealed and passed between processes.
//
// Everything here is untouched by the garbage collector, which neither scans
// it nor counts it. A mapping is populated lazily: address space is free,
// resident memory is what has been touched and not punched since.
//
// Concurrency: a Mapping may be used by any number of goroutines; Punch and
// Close must not race with accesses to the bytes they take away. Go code must
// never touch memory that another process may punch or truncate unless it is
// prepared for the fault (see the package soft).
package arena

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// PageSize is the size in bytes of a small page.
var PageSize = os.Getpagesize()

// HugePageSize is the size in bytes of a transparent huge page on the
// architectures that Polder runs on.
const HugePageSize = 2 << 20

// Mapping is a range of memory mapped into this process.
type Mapping struct {
	mem   []byte // nil once closed
	whole []byte // what is to be unmapped: mem and what it was aligned in
}

// Anonymous maps size bytes of private, zeroed, lazily populated memory.
// The kernel is asked to use huge pages where it can if huge is true.
func Anonymous(size int, huge bool) (*Mapping, error) {
	if size <= 0 {
		return nil, fmt.Errorf("cannot map %d bytes: the size must be positive", size)
	}
	mem, whole, err := mapAligned(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("cannot map %d bytes of anonymous memory: %w", size, err)
	}
	advice := unix.MADV_NOHUGEPAGE
	if huge {
		advice = unix.MADV_HUGEPAGE
	}
	// The advice is a wish: kernels without transparent huge pages refuse it.
	_ = unix.Madvise(mem, advice)
	return &Mapping{mem: mem, whole: whole}, nil
}

// Bytes returns the mapped memory. It is nil after Close.
func (m *Mapping) Bytes() []byte { return m.mem }

// Punch gives the pages of [off, off+n) of a private anonymous mapping back
// to the operating system; they read as zero afterwards. Both off and n must
// be multiples of PageSize. Locked memory (mlock) is only cleared: it is there so
// that it need not be asked for again.
func (m *Mapping) Punch(off, n int) error {
	if err := checkRange(off, n, len(m.mem)); err != nil {
		return fmt.Errorf("cannot punch: %w", err)
	}
	if n == 0 {
		return nil
	}
	err := unix.Madvise(m.mem[off:off+n], unix.MADV_DONTNEED)
	if err == unix.EINVAL { // it is locked: nothing else is wrong with the range
		clear(m.mem[off : off+n])
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot punch %d bytes at %d: %w", n, off, err)
	}
	return nil
}

// Close unmaps the memory. Closing twice is a no-op.
func (m *Mapping) Close() error {
	if m.mem == nil {
		return nil
	}
	whole := m.whole
	m.mem, m.whole = nil, nil
	if err := unix.Munmap(whole); err != nil {
		return fmt.Errorf("cannot unmap %d bytes: %w", len(whole), err)
	}
	return nil
}

// Collapse makes each huge page's worth of [off, off+n) one huge page, as far
// as there is memory at all in it, and fails if the kernel cannot: before
// Linux 6.1, or when memory is in pieces. It takes as long as touching every
// page, and makes the pages cheap to use and to punch.
func (m *Mapping) Collapse(off, n int) error {
	if err := checkRange(off, n, len(m.mem)); err != nil {
		return fmt.Errorf("cannot make huge pages: %w", err)
	}
	if err := unix.Madvise(m.mem[off:off+n], unix.MADV_COLLAPSE); err != nil {
		return fmt.Errorf("cannot make huge pages of %d bytes at %d: %w", n, off, err)
	}
	return nil
}

var errUnaligned = errors.New("not a multiple of the page size")

func checkRange(off, n, size int) error {
	switch {
	case off < 0 || n < 0 || off > size || n > size-off:
		return fmt.Errorf("range [%d, %d+%d) is not within %d bytes", off, off, n, size)
	case off%PageSize != 0:
		return fmt.Errorf("offset %d: %w (%d)", off, errUnaligned, PageSize)
	case n%PageSize != 0:
		return fmt.Errorf("length %d: %w (%d)", n, errUnaligned, PageSize)
	}
	return nil
}
