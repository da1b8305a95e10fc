package arena

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Memfd is memory with a file descriptor: it can be mapped by several
// processes, punched by whoever holds a writable descriptor, and sealed.
type Memfd struct {
	f    *os.File
	size int
}

// NewMemfd creates a memfd of size bytes, lazily populated, that may be
// sealed. Name is what /proc shows.
func NewMemfd(name string, size int) (*Memfd, error) {
	if size < 0 {
		return nil, fmt.Errorf("cannot create memfd %q: negative size %d", name, size)
	}
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("cannot create memfd %q: %w", name, err)
	}
	m := &Memfd{f: os.NewFile(uintptr(fd), name), size: size}
	if err := m.f.Truncate(int64(size)); err != nil {
		m.f.Close()
		return nil, fmt.Errorf("cannot size memfd %q to %d bytes: %w", name, size, err)
	}
	return m, nil
}

// OpenMemfd adopts a file (a memfd received from another process, a file on
// tmpfs or DAX) and takes its present size. The Memfd owns f from then on.
func OpenMemfd(f *os.File) (*Memfd, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("cannot adopt %s: %w", f.Name(), err)
	}
	return &Memfd{f: f, size: int(st.Size())}, nil
}

// File returns the descriptor, which stays the Memfd's.
func (m *Memfd) File() *os.File { return m.f }

// Reopen opens the file behind a descriptor again, with another mode: a process that is passed a descriptor opened
// with os.O_RDONLY cannot map it writable.
func Reopen(f *os.File, mode int) (*os.File, error) {
	g, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), mode, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot reopen %s: %w", f.Name(), err)
	}
	return g, nil
}

// Size returns the size in bytes.
func (m *Memfd) Size() int { return m.size }

// Populated returns how many bytes have pages, as far as is known.
func (m *Memfd) Populated() int64 {
	var st unix.Stat_t
	if unix.Fstat(int(m.f.Fd()), &st) != nil {
		return 0
	}
	return st.Blocks * 512
}

// Map maps [off, off+n) shared; writable says whether it may be written.
// The mapping outlives the Memfd: each is closed by itself.
func (m *Memfd) Map(off, n int, writable bool) (*Mapping, error) {
	if err := checkRange(off, n, m.size); err != nil {
		return nil, fmt.Errorf("cannot map %s: %w", m.f.Name(), err)
	}
	prot := unix.PROT_READ
	if writable {
		prot |= unix.PROT_WRITE
	}
	mem, whole, err := mapAligned(int(m.f.Fd()), off, n, prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("cannot map %d bytes at %d of %s: %w", n, off, m.f.Name(), err)
	}
	return &Mapping{mem: mem, whole: whole}, nil
}

// Overlay maps [at, at+n) of from over [off, off+n) of m, a private mapping, in one step for all who look at it. The
// range then reads as from does until it is written to, which changes this mapping only; after a punch it reads as
// from does again.
func (m *Mapping) Overlay(off, n int, from *Memfd, at int) error {
	if err := checkRange(off, n, len(m.mem)); err != nil {
		return fmt.Errorf("cannot overlay: %w", err)
	}
	if err := checkRange(at, n, from.size); err != nil {
		return fmt.Errorf("cannot overlay with %s: %w", from.f.Name(), err)
	}
	if err := mapOver(m.mem[off:off+n], int(from.f.Fd()), at); err != nil {
		return fmt.Errorf("cannot map %d bytes at %d of %s over memory: %w", n, at, from.f.Name(), err)
	}
	return nil
}

// Punch gives the pages of [off, off+n) back to the operating system, for
// every process that maps them; they read as zero afterwards.
func (m *Memfd) Punch(off, n int) error {
	if err := checkRange(off, n, m.size); err != nil {
		return fmt.Errorf("cannot punch %s: %w", m.f.Name(), err)
	}
	if n == 0 {
		return nil
	}
	const mode = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	if err := unix.Fallocate(int(m.f.Fd()), mode, int64(off), int64(n)); err != nil {
		return fmt.Errorf("cannot punch %d bytes at %d of %s: %w", n, off, m.f.Name(), err)
	}
	return nil
}

// SealFutureWrites forbids new writable mappings and write(2), for everyone
// and for good; writable mappings that exist go on working. It is how an
// owner keeps writing to what others may only read.
func (m *Memfd) SealFutureWrites() error {
	return m.seal(unix.F_SEAL_FUTURE_WRITE)
}

// SealSize forbids growing and shrinking, so that no mapping can be made to
// fault by truncation.
func (m *Memfd) SealSize() error {
	return m.seal(unix.F_SEAL_GROW | unix.F_SEAL_SHRINK)
}

func (m *Memfd) seal(seals int) error {
	if _, err := unix.FcntlInt(m.f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("cannot seal %s: %w", m.f.Name(), err)
	}
	return nil
}

// Close closes the descriptor. Mappings stay. Closing twice is a no-op.
func (m *Memfd) Close() error {
	if m.f == nil {
		return nil
	}
	f := m.f
	m.f = nil
	return f.Close()
}
