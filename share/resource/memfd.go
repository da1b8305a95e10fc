package resource

import (
	"errors"
	"fmt"
	"os"

	"polder/internal/arena"
	"polder/internal/systemd"

	"golang.org/x/sys/unix"
)

// memfdPool gives every region a memfd of its own, so that a client can be
// handed one region and no other, sealed.
//
// Maru's clients open a region by its name, and a memfd has none. So their regions are files on tmpfs, which is the
// same memory, and survives the daemon by itself. (The kernel's /proc/PID/fd/N is no name: the number is soon another
// file's, and in another container PID is another process.)
type memfdPool struct {
	size  int64
	huge  bool
	store *systemd.Store // may be nil
	named *filePool      // of Maru's regions; nil if there can be none
}

func (p *memfdPool) capacity() (int64, error) { return p.size, nil }
func (p *memfdPool) durable() bool            { return false }
func (p *memfdPool) offset(*Region) int64     { return 0 }

func (p *memfdPool) close() error {
	if p.named == nil {
		return nil
	}
	return p.named.close()
}

func (p *memfdPool) align() int64 {
	if p.huge {
		return arena.HugePageSize
	}
	return int64(arena.PageSize)
}

func (p *memfdPool) create(r *Region) error {
	if r.Maru {
		return p.named.create(r)
	}
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	if p.huge {
		flags |= unix.MFD_HUGETLB | unix.MFD_HUGE_2MB
	}
	name := regionName(r.ID)
	fd, err := unix.MemfdCreate("polder-"+name, flags)
	if err != nil {
		return fmt.Errorf("cannot create the memory of region %d: %w", r.ID, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err = f.Truncate(r.Length); err == nil {
		// Nobody, the owner included, may make a reader's mapping fault.
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK)
	}
	if err == nil && p.store != nil {
		err = p.store.Keep(name, f)
	}
	if err != nil {
		f.Close()
		return fmt.Errorf("cannot create the memory of region %d: %w", r.ID, err)
	}
	r.file = f
	return nil
}

func (p *memfdPool) open(r *Region) error {
	if r.Maru && p.named == nil {
		return errors.New("its directory is not configured")
	}
	if r.Maru {
		return p.named.open(r)
	}
	if p.store == nil {
		return errors.New("nothing has kept its memory")
	}
	f := p.store.Kept(regionName(r.ID))
	if f == nil {
		return errors.New("the store has not kept its memory")
	}
	st, err := f.Stat()
	if err == nil && st.Size() != r.Length {
		err = fmt.Errorf("what the store has kept has %d bytes, want %d", st.Size(), r.Length)
	}
	if err != nil {
		f.Close()
		return err
	}
	r.file = f
	return nil
}

func (p *memfdPool) seal(r *Region) error {
	_, err := unix.FcntlInt(r.file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL)
	if err == unix.EPERM {
		// Sealed already, if the daemon died before it could log that.
		if seals, serr := unix.FcntlInt(r.file.Fd(), unix.F_GET_SEALS, 0); serr == nil && seals&unix.F_SEAL_FUTURE_WRITE != 0 {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("cannot seal region %d: %w", r.ID, err)
	}
	return nil
}

func (p *memfdPool) reader(r *Region) (*os.File, error) { return arena.Reopen(r.file, os.O_RDONLY) }
func (p *memfdPool) writer(r *Region) (*os.File, error) { return duplicate(r.file) }

func (p *memfdPool) remove(r *Region) error {
	if r.Maru {
		return p.named.remove(r)
	}
	var err error
	if p.store != nil {
		err = p.store.Forget(regionName(r.ID))
	}
	return errors.Join(err, r.file.Close())
}

// duplicate returns a second descriptor of an open file.
func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot duplicate %s: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

func regionName(id uint64) string { return fmt.Sprintf("region-%016x", id) }
