package soft

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// FS returns fsys with its files' contents cached. Files that cannot be read
// at an offset are passed through.
func (b *Blocks) FS(fsys fs.FS) fs.FS {
	return &cachedFS{b, fsys, fmt.Sprintf("fs %d ", b.systems.Add(1))}
}

type cachedFS struct {
	b      *Blocks
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
	if !ok || !st.Mode().IsRegular() {
		return f, nil
	}
	r := c.b.ReaderAt(src, c.prefix+name, st.ModTime().UnixNano(), st.Size())
	if osFile, ok := f.(*os.File); ok && c.b.direct {
		r.direct = openDirect(osFile)
	}
	return &cachedFile{File: f, r: r, SectionReader: io.NewSectionReader(r, 0, st.Size())}, nil
}

// ReadDir implements fs.ReadDirFS.
func (c *cachedFS) ReadDir(name string) ([]fs.DirEntry, error) { return fs.ReadDir(c.fsys, name) }

// Stat implements fs.StatFS.
func (c *cachedFS) Stat(name string) (fs.FileInfo, error) { return fs.Stat(c.fsys, name) }

// cachedFile is an open file: an fs.File that can also seek and be read at
// offsets.
type cachedFile struct {
	fs.File
	r *ReaderAt
	*io.SectionReader
}

// Read implements fs.File.
func (f *cachedFile) Read(p []byte) (int, error) { return f.SectionReader.Read(p) }

// Close implements fs.File.
func (f *cachedFile) Close() error {
	err := f.File.Close()
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
