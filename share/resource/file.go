package resource

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"polder/internal/arena"

	"golang.org/x/sys/unix"
)

// filePool gives every region a file in a directory: on tmpfs, or on a file
// system over persistent memory mounted with -o dax.
//
// Readers get a descriptor opened read-only. A file cannot be sealed as a
// memfd can: a reader who could open the file by itself, because it runs as
// the daemon's user or as root, could get at it writable. So readers should
// run as another user; the directory admits the daemon alone.
type filePool struct {
	dir   string
	lock  *os.File
	limit int64 // 0: what the file system has
	sync  bool  // the file system survives the loss of power
}

func openFilePool(dir string, limit int64) (*filePool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	st, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	if !st.IsDir() {
		return nil, fmt.Errorf("%s is not a directory", dir)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return nil, fmt.Errorf("cannot look at the file system of %s: %w", dir, err)
	}
	lock, err := os.Open(dir)
	if err == nil {
		err = LockPool(lock)
	}
	if err != nil {
		return nil, err
	}
	volatile := int64(fs.Type) == unix.TMPFS_MAGIC || int64(fs.Type) == unix.RAMFS_MAGIC
	return &filePool{dir: dir, lock: lock, limit: limit, sync: !volatile}, nil
}

// LockPool makes sure that one daemon at a time has the directory or device of a pool: a daemon removes the regions
// there that it does not know. It closes f if it fails.
func LockPool(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == unix.EWOULDBLOCK {
		err = fmt.Errorf("another daemon has its memory in %s: %w", f.Name(), err)
	}
	if err != nil {
		f.Close()
	}
	return err
}

func (p *filePool) capacity() (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(p.dir, &fs); err != nil {
		return 0, fmt.Errorf("cannot look at the file system of %s: %w", p.dir, err)
	}
	size := int64(fs.Blocks) * fs.Bsize
	if p.limit > 0 {
		size = min(size, p.limit)
	}
	return size, nil
}

func (p *filePool) align() int64         { return int64(arena.PageSize) }
func (p *filePool) durable() bool        { return p.sync }
func (p *filePool) offset(*Region) int64 { return 0 }
func (p *filePool) close() error         { return p.lock.Close() }

func (p *filePool) path(r *Region) string { return filepath.Join(p.dir, regionName(r.ID)) }

func (p *filePool) create(r *Region) error {
	// A file of this name can only be left of an allocation that a crash cut
	// short before it was acknowledged.
	f, err := os.OpenFile(p.path(r), os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("cannot create the memory of region %d: %w", r.ID, err)
	}
	if err = f.Truncate(r.Length); err != nil {
		f.Close()
		os.Remove(p.path(r))
		return fmt.Errorf("cannot create the memory of region %d: %w", r.ID, err)
	}
	r.file = f
	return nil
}

// reserve does the part of creation that takes long: it allocates the file's space, so that no write into a mapping
// can fail. On tmpfs it does so for Maru's regions alone: a client of the library populates its region itself.
func (p *filePool) reserve(r *Region) error {
	if !p.sync && !r.Maru {
		return nil
	}
	err := unix.Fallocate(int(r.file.Fd()), 0, 0, r.Length)
	if err == nil && p.sync {
		err = errors.Join(r.file.Sync(), syncDir(p.dir))
	}
	if err != nil {
		return fmt.Errorf("cannot reserve the memory of region %d: %w", r.ID, err)
	}
	return nil
}

func (p *filePool) open(r *Region) error {
	f, err := os.OpenFile(p.path(r), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	r.file = f
	st, err := f.Stat()
	switch {
	case err != nil:
	case r.Maru && st.Size() > r.Length:
		err = p.trim(r) // a crash may have come between Shrink and Trim
	case st.Size() != r.Length:
		err = fmt.Errorf("%s has %d bytes, want %d", p.path(r), st.Size(), r.Length)
	}
	if err != nil {
		r.file = nil
		f.Close()
	}
	return err
}

func (p *filePool) trim(r *Region) error {
	c, err := r.file.SyscallConn() // the region may be freed meanwhile
	if err != nil {
		return err
	}
	st, err := r.file.Stat()
	if err != nil {
		return err
	}
	var perr error
	err = c.Control(func(fd uintptr) {
		perr = unix.Fallocate(int(fd), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, r.Length, st.Size()-r.Length)
	})
	return errors.Join(err, perr)
}

func (p *filePool) seal(*Region) error                 { return nil }
func (p *filePool) reader(r *Region) (*os.File, error) { return arena.Reopen(r.file, os.O_RDONLY) }
func (p *filePool) writer(r *Region) (*os.File, error) { return arena.Reopen(r.file, os.O_RDWR) }

func (p *filePool) remove(r *Region) error {
	var err error
	if r.Evicted { // else whoever has it mapped would keep the memory
		err = unix.Fallocate(int(r.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, r.Length)
	}
	return errors.Join(err, os.Remove(p.path(r)), r.file.Close())
}

// orphans removes the files of regions that are not known: allocations that a
// crash cut short.
func (p *filePool) orphans(known func(name string) bool) error {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		var id uint64
		if n, _ := fmt.Sscanf(e.Name(), "region-%016x", &id); n == 1 && e.Name() == regionName(id) && !known(e.Name()) {
			err = errors.Join(err, os.Remove(filepath.Join(p.dir, e.Name())))
		}
	}
	return err
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
