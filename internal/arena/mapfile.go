package arena

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// MapFile maps [off, off+n) of f shared, as a Memfd's Map does, for files whose
// size says nothing, such as DAX devices. The descriptor stays the caller's.
//
// Preconditions: the range lies within what f can hold; else an access faults.
func MapFile(f *os.File, off int64, n int, writable bool) (*Mapping, error) {
	prot := unix.PROT_READ
	if writable {
		prot |= unix.PROT_WRITE
	}
	mem, err := unix.Mmap(int(f.Fd()), off, n, prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("cannot map %d bytes at %d of %s: %w", n, off, f.Name(), err)
	}
	return &Mapping{mem: mem, whole: mem}, nil
}
