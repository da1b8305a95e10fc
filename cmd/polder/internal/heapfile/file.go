// Package heapfile writes the copy of a heap to a file, or of a heap of partitions to a directory. The copy gets its
// name only when it is complete.
//
// Until then it is in FILE.part, which one process at a time has. If writing breaks off, FILE.part stays, and the
// next process continues behind its last whole part. When the copy is complete, it is synced and renamed, and its
// directory is synced.
package heapfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"polder/far/saved"
)

// File is a copy of a heap that is being written.
type File struct {
	path  string
	force bool
	f     *os.File
	w     *saved.Writer
}

// Partial is the name of a copy until it is complete.
func Partial(path string) string { return path + ".part" }

// Create begins a copy, or continues a copy that has broken off. It fails if there is a file at path, unless force is
// set.
func Create(path string, force bool) (_ *File, err error) {
	if _, err := os.Lstat(path); err == nil && !force {
		return nil, existsError(path)
	}
	// Nobody else may read it: it has all that is in the heap, and what it takes to forge the heap.
	f, err := os.OpenFile(Partial(path), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	c := &File{path: path, force: force, f: f}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.f.Close())
		}
	}()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("cannot write %s: another process does: %w", f.Name(), err)
	}
	if st, err := f.Stat(); err != nil {
		return nil, err
	} else if st.Size() == 0 {
		c.w = saved.NewWriter(f)
		return c, nil
	}
	if c.w, err = saved.Continue(f, f); err != nil {
		return nil, fmt.Errorf("cannot go on with %s: %w", f.Name(), err)
	}
	if err := f.Truncate(c.w.Offset()); err != nil {
		return nil, err
	}
	if _, err := f.Seek(c.w.Offset(), 0); err != nil {
		return nil, err
	}
	return c, nil
}

func existsError(path string) error {
	return fmt.Errorf("%s is there already: --force replaces it", path)
}

// Writer writes to the file.
func (c *File) Writer() *saved.Writer { return c.w }

// Commit ends the copy and gives it its name.
func (c *File) Commit() error {
	if err := c.w.End(); err != nil {
		return err
	}
	if err := c.f.Sync(); err != nil {
		return err
	}
	if err := rename(c.f.Name(), c.path, c.force); err != nil {
		return err
	}
	return syncDir(filepath.Dir(c.path))
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// rename renames from to to. It replaces what is at to only if force is set.
func rename(from, to string, force bool) error {
	if force {
		return os.Rename(from, to)
	}
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	switch {
	case errors.Is(err, unix.EEXIST):
		return existsError(to)
	case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS): // the file system cannot do that
		if _, err := os.Lstat(to); err == nil {
			return existsError(to)
		}
		return os.Rename(from, to)
	case err != nil:
		return fmt.Errorf("cannot rename %s: %w", from, err)
	}
	return nil
}

// Close closes the file. If the copy is not complete, it stays where it is; if it is empty, Close removes it.
func (c *File) Close() (err error) {
	if c.w.Offset() == 0 {
		err = os.Remove(c.f.Name())
	}
	return errors.Join(err, c.f.Close())
}
