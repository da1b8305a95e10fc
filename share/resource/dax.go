package resource

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"polder/internal/arena"

	"golang.org/x/sys/unix"
)

// daxPool carves regions out of one DAX character device.
//
// The kernel cannot hand out a part of such a device: whoever has a descriptor
// of it can map all of it. Readers get a read-only one and so can damage
// nothing; owners have to be trusted with the whole device. Operators who
// cannot trust them put a file system with -o dax on the device.
type daxPool struct {
	dev       *os.File
	path      string
	size      int64
	alignment int64
	sysfs     string
	limit     int64
}

func openDaxPool(sysfs, path string, limit int64) (*daxPool, error) {
	p := &daxPool{path: path, sysfs: sysfs, limit: limit}
	if err := p.measure(); err != nil {
		return nil, err
	}
	dev, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		err = LockPool(dev)
	}
	if err != nil {
		return nil, err
	}
	p.dev = dev
	return p, nil
}

// measure reads the size and the alignment of the device from sysfs.
func (p *daxPool) measure() error {
	dir := filepath.Join(p.sysfs, "bus/dax/devices", filepath.Base(p.path))
	size, err := readNumber(filepath.Join(dir, "size"))
	if err != nil {
		return err
	}
	align, err := readNumber(filepath.Join(dir, "align"))
	if err != nil {
		return err
	}
	if align < int64(arena.PageSize) || align&(align-1) != 0 {
		return fmt.Errorf("%s has the alignment %d, which is not a power of two of at least a page", p.path, align)
	}
	if size < align {
		return fmt.Errorf("%s has %d bytes, less than its alignment %d", p.path, size, align)
	}
	p.size, p.alignment = size, align
	return nil
}

func readNumber(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 0, 64)
	if err != nil {
		return 0, fmt.Errorf("cannot read %s: %w", path, err)
	}
	return n, nil
}

func (p *daxPool) capacity() (int64, error) {
	if err := p.measure(); err != nil {
		return 0, err
	}
	if p.limit > 0 {
		return min(p.limit, p.size), nil
	}
	return p.size, nil
}

func (p *daxPool) align() int64           { return p.alignment }
func (p *daxPool) durable() bool          { return true }
func (p *daxPool) offset(r *Region) int64 { return r.Offset }
func (p *daxPool) close() error           { return p.dev.Close() }

// create zeroes the extent: it holds what its former owner left.
func (p *daxPool) create(r *Region) error {
	mem, err := unix.Mmap(int(p.dev.Fd()), r.Offset, int(r.Length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("cannot map region %d of %s: %w", r.ID, p.path, err)
	}
	clear(mem)
	if err := unix.Munmap(mem); err != nil {
		return fmt.Errorf("cannot unmap region %d of %s: %w", r.ID, p.path, err)
	}
	return p.open(r)
}

func (p *daxPool) open(r *Region) error {
	f, err := os.OpenFile(p.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	r.file = f
	return nil
}

func (p *daxPool) seal(*Region) error { return nil }

func (p *daxPool) reader(*Region) (*os.File, error) { return os.OpenFile(p.path, os.O_RDONLY, 0) }
func (p *daxPool) writer(*Region) (*os.File, error) { return os.OpenFile(p.path, os.O_RDWR, 0) }
func (p *daxPool) remove(r *Region) error           { return r.file.Close() }
