package heapfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Dir is the copy of a heap of partitions that is being written: a directory with a file for each partition. Like a
// file, it is called DIR.part until it is complete, and one process at a time has it.
type Dir struct {
	path  string
	parts int
	force bool
	f     *os.File
}

// partName is the name of a partition's file. It says how many partitions there are, so that a missing file is
// noticed.
func partName(number, parts int) string { return fmt.Sprintf("%d-of-%d", number, parts) }

// CreateDir begins the copy of a heap of so many partitions, or continues a copy that has broken off. It fails if
// there is something at path, unless force is set and there is a copy of a heap of partitions at path.
func CreateDir(path string, parts int, force bool) (*Dir, error) {
	if _, err := os.Lstat(path); err == nil {
		if !force {
			return nil, existsError(path)
		}
		if _, err := partsOf(path); err != nil {
			return nil, fmt.Errorf("%s is there already, and --force does not replace what is no copy of a heap of partitions: %w", path, err)
		}
	}
	part := Partial(path)
	if err := os.Mkdir(part, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	f, err := os.Open(part)
	if err != nil {
		return nil, err
	}
	d := &Dir{path: path, parts: parts, force: force, f: f}
	if err := d.check(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return d, nil
}

// check locks the directory, and fails if anything is in it but a copy of so many partitions.
func (d *Dir) check() error {
	if err := unix.Flock(int(d.f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("cannot write %s: another process does: %w", d.f.Name(), err)
	}
	names, err := d.f.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", d.f.Name(), err)
	}
	ours := map[string]bool{}
	for number := range d.parts {
		name := partName(number, d.parts)
		ours[name], ours[Partial(name)] = true, true
	}
	for _, name := range names {
		if !ours[name] {
			return fmt.Errorf("cannot go on with %s: %s is in it, and it would be a copy of %d partitions", d.f.Name(), name, d.parts)
		}
	}
	return nil
}

// Create begins or continues the file of a partition. If the file is complete, Create returns a nil File, and how
// many bytes the file has.
func (d *Dir) Create(number int) (f *File, size int64, err error) {
	path := filepath.Join(d.f.Name(), partName(number, d.parts))
	if st, err := os.Lstat(path); err == nil {
		return nil, st.Size(), nil
	}
	f, err = Create(path, false)
	return f, 0, err
}

// Commit gives the directory its name. It fails unless all partitions are complete.
func (d *Dir) Commit() error {
	if _, err := partsOf(d.f.Name()); err != nil {
		return err
	}
	if err := d.f.Sync(); err != nil {
		return err
	}
	if d.force {
		if err := os.RemoveAll(d.path); err != nil {
			return err
		}
	}
	if err := rename(d.f.Name(), d.path, false); err != nil {
		return err
	}
	return syncDir(filepath.Dir(d.path))
}

// Close closes the directory. If the copy is not complete, it stays where it is; if it is empty, Close removes it.
func (d *Dir) Close() error {
	_ = os.Remove(d.f.Name()) // fails if there are files in the directory
	return d.f.Close()
}

// Parts returns the files of a copy of a heap of partitions, in the order of the partitions.
func Parts(dir string) ([]string, error) {
	paths, err := partsOf(dir)
	if err != nil {
		return nil, fmt.Errorf("%s is no copy of a heap: %w", dir, err)
	}
	return paths, nil
}

func partsOf(dir string) (paths []string, err error) {
	there, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	parts := 0
	for _, e := range there {
		var number, of int
		if _, err := fmt.Sscanf(e.Name(), "%d-of-%d", &number, &of); err != nil || e.Name() != partName(number, of) || number < 0 || number >= of || parts > 0 && of != parts {
			return nil, fmt.Errorf("%s is in it, and is not like the rest; expected 0-of-N to N-1-of-N, one file for each partition", e.Name())
		}
		parts = of
	}
	for number := range parts {
		name := partName(number, parts)
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return nil, fmt.Errorf("partition %s is missing", name)
		}
		paths = append(paths, filepath.Join(dir, name))
	}
	if parts == 0 {
		return nil, errors.New("nothing is in it")
	}
	return paths, nil
}
