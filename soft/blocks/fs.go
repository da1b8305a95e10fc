package blocks

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// FS returns fsys with its files' contents cached. Its files are also io.ReaderAt and
// io.Seeker. Files that cannot be read at an offset are passed through.
//
// Whoever opens a file of the operating system's reads what it holds at that time, however often it has changed
// before: each version of a file (Version) has blocks of its own. If a file is changed while it is open, its old and
// new contents are not mixed: a read fails with ErrChanged, unless all that it reads was cached before; open the file
// again. A file that has changed within the last second is not cached, because its next change may bear the same
// time. All this relies on the times that the file system keeps: what a process writes into a mapping of a file may
// be seen late. Files of other file systems are told apart by name, size and modification time.
func (b *Cache) FS(fsys fs.FS) fs.FS {
	return &cachedFS{b, fsys, fmt.Sprintf("fs %d ", b.systems.Add(1))}
}

// ErrChanged is the error of reading a file that has been changed since it was opened.
var ErrChanged = errors.New("the file has changed since it was opened")

// Version names the contents of a file of the operating system's: another file, or the same file after a change, has
// another version. The version is empty if st does not tell. If it is not settled, the next change could bear the
// same version: a file that has just changed may be changed again before the clock of the file system goes on.
func Version(st fs.FileInfo) (version string, settled bool) {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return "", true
	}
	changed := time.Unix(sys.Ctim.Unix()) // unlike the time of modification, nobody sets it
	return fmt.Sprintf("%x-%x-%x-%x-%x", sys.Dev, sys.Ino, st.Size(), st.ModTime().UnixNano(), changed.UnixNano()), time.Since(changed) > time.Second
}

// sameContents reports whether an open file of the operating system's holds what it held before. It still does if the
// file was removed or replaced, and so has fewer links.
func sameContents(before, now fs.FileInfo) bool {
	a, b := before.Sys().(*syscall.Stat_t), now.Sys().(*syscall.Stat_t)
	return a.Size == b.Size && a.Mtim == b.Mtim && (a.Ctim == b.Ctim || b.Nlink < a.Nlink)
}

type cachedFS struct {
	b      *Cache
	fsys   fs.FS
	prefix string // tells its files from those of other file systems
}

// Open implements fs.FS.
func (c *cachedFS) Open(name string) (fs.File, error) {
	f, err := c.fsys.Open(name)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	src, ok := f.(io.ReaderAt)
	version, settled := Version(st)
	if !ok || !st.Mode().IsRegular() {
		return f, nil
	}
	r := c.b.ReaderAt(src, c.prefix+name+version, st.ModTime().UnixNano(), st.Size())
	r.young = !settled
	if version != "" {
		r.changed = func() bool {
			now, err := f.Stat()
			return err != nil || !sameContents(st, now)
		}
	}
	if osFile, ok := f.(*os.File); ok && c.b.direct {
		r.disk = osFile
	}
	return &cachedFile{File: f, stat: st, r: r, SectionReader: io.NewSectionReader(r, 0, st.Size())}, nil
}

// ReadDir implements fs.ReadDirFS.
func (c *cachedFS) ReadDir(name string) ([]fs.DirEntry, error) { return fs.ReadDir(c.fsys, name) }

// Stat implements fs.StatFS.
func (c *cachedFS) Stat(name string) (fs.FileInfo, error) { return fs.Stat(c.fsys, name) }

// cachedFile is an open file: an fs.File that can also seek and be read at
// offsets.
type cachedFile struct {
	fs.File
	stat fs.FileInfo
	r    *ReaderAt
	*io.SectionReader
}

// Stat implements fs.File: the file is what it was when it was opened.
func (f *cachedFile) Stat() (fs.FileInfo, error) { return f.stat, nil }

// Read implements fs.File.
func (f *cachedFile) Read(p []byte) (int, error) { return f.SectionReader.Read(p) }

// Close implements fs.File.
func (f *cachedFile) Close() error {
	err := f.File.Close()
	f.r.once.Do(func() {}) // from now on nobody opens direct
	if f.r.direct != nil {
		err = errors.Join(err, f.r.direct.Close())
	}
	return err
}

// openDirect opens a file once more, for direct I/O, or returns nil where
// that cannot be had.
func openDirect(f *os.File) *os.File {
	path := "/proc/self/fd/" + strconv.Itoa(int(f.Fd()))
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), f.Name())
}
