package vm

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path"
)

// archive writes an initial file system: a cpio archive of the "newc" format,
// as the kernel's Documentation/driver-api/early-userspace/buffer-format.rst
// has it.
type archive struct {
	w    *bufio.Writer
	off  int64
	ino  uint32
	dirs map[string]bool
	err  error
}

const (
	modeDir  = 0o040000
	modeFile = 0o100000
	modeChar = 0o020000
)

func newArchive(w io.Writer) *archive {
	return &archive{w: bufio.NewWriterSize(w, 1<<20), dirs: map[string]bool{"/": true}}
}

// file adds a file at an absolute path, and the directories above it.
func (a *archive) file(name string, mode uint32, data []byte) {
	a.dir(path.Dir(name))
	a.header(name, modeFile|mode, int64(len(data)), 0, 0)
	a.write(data)
	a.pad()
}

// copyFile adds the file at a path of the host's.
func (a *archive) copyFile(name string, mode uint32, from string) {
	if a.err != nil {
		return
	}
	data, err := os.ReadFile(from)
	if err != nil {
		a.err = err
		return
	}
	a.file(name, mode, data)
}

// char adds a character device.
func (a *archive) char(name string, mode uint32, major, minor uint32) {
	a.dir(path.Dir(name))
	a.header(name, modeChar|mode, 0, major, minor)
}

// dir adds a directory and those above it.
func (a *archive) dir(name string) {
	if a.dirs[name] {
		return
	}
	a.dirs[name] = true
	a.dir(path.Dir(name))
	a.header(name, modeDir|0o755, 0, 0, 0)
}

// close ends the archive. It does not close what it is written to.
func (a *archive) close() error {
	a.header("/TRAILER!!!", 0, 0, 0, 0)
	for a.off%512 != 0 {
		a.write([]byte{0})
	}
	if a.err == nil {
		a.err = a.w.Flush()
	}
	if a.err != nil {
		return fmt.Errorf("cannot write the guest's file system: %w", a.err)
	}
	return nil
}

func (a *archive) header(name string, mode uint32, size int64, major, minor uint32) {
	name = name[1:] // relative to the root
	if size > 1<<32-1 && a.err == nil {
		a.err = fmt.Errorf("file %s of %d bytes is too large", name, size)
	}
	a.ino++
	a.write(fmt.Appendf(nil, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		a.ino, mode, 0, 0, 1, 0, size, 0, 0, major, minor, len(name)+1, 0, name))
	a.pad()
}

func (a *archive) pad() {
	for a.off%4 != 0 {
		a.write([]byte{0})
	}
}

func (a *archive) write(b []byte) {
	if a.err == nil {
		_, a.err = a.w.Write(b)
	}
	a.off += int64(len(b))
}
