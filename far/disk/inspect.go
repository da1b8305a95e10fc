package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"polder/far/record"
)

// Info is what is known of a heap without opening it.
type Info struct {
	Bytes       int64       // bytes that the heap takes on the disk, with all else in its directory
	Checkpoint  time.Time   // when its last checkpoint was taken
	Root        record.Root // of that checkpoint
	SegmentSize int
	InUse       bool // a process has the heap open
}

// ErrNoHeap: a directory has no heap that is kept.
var ErrNoHeap = errors.New("there is no heap that is kept")

// Inspect says what is in a directory. It disturbs nobody who has it open. If something is wrong with the root,
// Inspect returns that as an error, and an Info with all else.
func Inspect(dir string) (info Info, err error) {
	st, err := os.Stat(filepath.Join(dir, "root"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENAMETOOLONG) {
		return info, fmt.Errorf("%s: %w", dir, ErrNoHeap)
	}
	if err != nil {
		return info, err
	}
	info.Checkpoint = st.ModTime()
	info.Bytes = taken(dir)
	if lock, err := os.Open(filepath.Join(dir, "lock")); err == nil {
		held := unix.Flock_t{Type: unix.F_WRLCK}
		err = unix.FcntlFlock(lock.Fd(), unix.F_OFD_GETLK, &held)
		info.InUse = err == nil && held.Type != unix.F_UNLCK
		lock.Close()
	}
	b, err := os.ReadFile(filepath.Join(dir, "root"))
	if err != nil {
		return info, err
	}
	size, b, err := decodeRoot(b)
	if err == nil {
		var root *record.Root
		if root, err = record.DecodeRoot(b); err == nil {
			info.Root, info.SegmentSize = *root, size
		}
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", filepath.Join(dir, "root"), err)
	}
	return info, err
}

// taken is how many bytes the files of dir take on the disk. A file that goes away meanwhile counts as none.
func taken(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && unix.Lstat(path, &st) == nil {
			n += st.Blocks * 512
		}
		return nil
	})
	return n
}

// Remove removes a heap. It fails with ErrInUse if a process has it open.
func Remove(dir string) error {
	if _, err := Inspect(dir); errors.Is(err, ErrNoHeap) {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("cannot remove %s: %w", dir, err)
	}
	defer lock.Close()
	if err := lockFile(lock); err != nil {
		return fmt.Errorf("cannot remove %s: %w", dir, err)
	}
	// Without a root the directory has no heap, whatever becomes of the rest.
	return errors.Join(os.Remove(filepath.Join(dir, "root")), os.RemoveAll(dir))
}

// lockFile locks f for as long as it is open, or fails with ErrInUse.
func lockFile(f *os.File) error {
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return ErrInUse
	}
	return err
}
