package arena

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// SealForGood fixes the size of m, and its seals: whoever it is passed to can
// neither make a mapping of it fault by truncation nor, by sealing it against
// writes, keep its owner from punching it.
func (m *Memfd) SealForGood() error {
	return m.seal(unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL)
}

// CheckShrinkSealed fails unless nobody can make m smaller: memory from a peer
// must not be mapped otherwise.
func (m *Memfd) CheckShrinkSealed() error {
	seals, err := unix.FcntlInt(m.f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("cannot tell the seals of %s: %w", m.f.Name(), err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return fmt.Errorf("the size of %s is not sealed", m.f.Name())
	}
	return nil
}

// Zero writes zeros over [off, off+n), which need not be pages, without mapping
// it.
func (m *Memfd) Zero(off, n int) error {
	zeros := make([]byte, min(n, PageSize))
	for n > 0 {
		k, err := m.f.WriteAt(zeros[:min(n, len(zeros))], int64(off))
		if err != nil {
			return fmt.Errorf("cannot zero %d bytes at %d of %s: %w", n, off, m.f.Name(), err)
		}
		off, n = off+k, n-k
	}
	return nil
}
