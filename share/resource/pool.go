package resource

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"polder/internal/config"
)

// Kind is what a pool is made of.
type Kind string

// The kinds of pools.
const (
	Memfd   Kind = "memfd"   // small pages, one memfd a region
	Hugetlb Kind = "hugetlb" // reserved huge pages, one memfd a region
	File    Kind = "file"    // a directory on tmpfs or a DAX file system, one file a region
	Dax     Kind = "dax"     // a DAX character device, whose extents are the regions
)

// Spec names a pool as the operator writes it.
type Spec struct {
	Kind Kind
	Path string // of the directory or device; may be a glob pattern
	Size int64  // 0: as much as there is
}

// ParseSpec reads "memfd:8GiB", "hugetlb:2GiB", "file:/mnt/pmem0",
// "file:/mnt/pmem0:4GiB" or "dax:/dev/dax0.0".
func ParseSpec(s string) (Spec, error) {
	kind, rest, ok := strings.Cut(s, ":")
	spec := Spec{Kind: Kind(kind)}
	if !ok || rest == "" {
		return Spec{}, errors.New("expected KIND:SIZE or KIND:PATH, such as memfd:8GiB")
	}
	var size string
	switch spec.Kind {
	case Memfd, Hugetlb:
		size = rest
	case File, Dax:
		spec.Path, size, _ = strings.Cut(rest, ":")
		if !filepath.IsAbs(spec.Path) {
			return Spec{}, fmt.Errorf("expected an absolute path, not %q", spec.Path)
		}
	default:
		return Spec{}, errors.New("expected one of the kinds memfd, hugetlb, file and dax")
	}
	if size != "" {
		n, err := config.ParseSize(size)
		if err != nil || n <= 0 {
			return Spec{}, fmt.Errorf("expected a size such as 8GiB, not %q", size)
		}
		spec.Size = n
	}
	return spec, nil
}

// expand returns the pools that the spec names now: a pattern names as many as
// match.
func (s Spec) expand() ([]Spec, error) {
	if s.Path == "" || !strings.ContainsAny(s.Path, "*?[") {
		return []Spec{s}, nil
	}
	paths, err := filepath.Glob(s.Path)
	if err != nil {
		return nil, fmt.Errorf("cannot expand %s: %w", s.Path, err)
	}
	var specs []Spec
	for _, p := range paths {
		specs = append(specs, Spec{Kind: s.Kind, Path: p, Size: s.Size})
	}
	return specs, nil
}

func (s Spec) name() string {
	if s.Path != "" {
		return string(s.Kind) + ":" + s.Path
	}
	return string(s.Kind)
}

// backing is the memory of a pool. The owner of the Manager serialises the calls of its methods, except those of
// remove.
type backing interface {
	// capacity returns how much the pool may hold now.
	capacity() (int64, error)
	// align returns the alignment of regions, of which their size is a multiple.
	align() int64
	// durable says whether the bytes survive the loss of power.
	durable() bool
	// create makes the memory of a new region, zeroed, and sets r.file.
	create(r *Region) error
	// open finds the memory of a region that was created by a former process.
	open(r *Region) error
	// seal forbids writing to all but those who have the region mapped.
	seal(r *Region) error
	// reader opens a descriptor through which the region can be read.
	reader(r *Region) (*os.File, error)
	// writer opens a descriptor for the owner, before seal.
	writer(r *Region) (*os.File, error)
	// remove gives the memory back. Mappings keep theirs.
	remove(r *Region) error
	// offset is where the region begins in its file.
	offset(r *Region) int64
	// close closes what the pool itself holds open.
	close() error
}

// Pool is memory that regions are carved from.
type Pool struct {
	Name    string
	spec    Spec
	back    backing
	extents Extents
	regions int
	missing bool // the last rescan did not find it
}

// named is where the pool's regions with names lie, or nil if it has none.
func (p *Pool) named() *filePool {
	switch back := p.back.(type) {
	case *filePool:
		return back
	case *memfdPool:
		return back.named
	}
	return nil
}

// Durable says whether the pool's bytes survive the loss of power.
func (p *Pool) Durable() bool { return p.back.durable() }

func (m *Manager) openPool(s Spec) (*Pool, error) {
	p := &Pool{Name: s.name(), spec: s}
	var err error
	switch s.Kind {
	case Memfd, Hugetlb:
		if s.Size == 0 {
			return nil, fmt.Errorf("cannot open the pool %s: it needs a size", p.Name)
		}
		back := &memfdPool{size: s.Size, huge: s.Kind == Hugetlb, store: m.opt.Store}
		if !back.huge && m.opt.Named != "" {
			if back.named, err = openFilePool(m.opt.Named, 0); err == nil && back.named.sync {
				err = errors.Join(fmt.Errorf("%s, where Maru's regions are to be, is on no tmpfs", m.opt.Named), back.close())
			}
		}
		p.back = back
	case File:
		p.back, err = openFilePool(s.Path, s.Size)
	case Dax:
		p.back, err = openDaxPool(m.opt.Sysfs, s.Path, s.Size)
	default:
		err = errors.New("unknown kind")
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the pool %s: %w", p.Name, err)
	}
	size, err := p.back.capacity()
	if err != nil {
		p.back.close()
		return nil, fmt.Errorf("cannot open the pool %s: %w", p.Name, err)
	}
	align := p.back.align()
	p.extents.Grow(size / align * align)
	return p, nil
}
