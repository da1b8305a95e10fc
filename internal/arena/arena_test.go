package arena

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAnonymousReadsZeroAgainAfterPunch(t *testing.T) {
	m, err := Anonymous(4*PageSize, false)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	b := m.Bytes()
	b[0], b[PageSize] = 1, 2
	if err := m.Punch(0, PageSize); err != nil {
		t.Fatal(err)
	}
	if b[0] != 0 || b[PageSize] != 2 {
		t.Fatalf("after punching page 0: got %d, %d, want 0, 2", b[0], b[PageSize])
	}
}

// TestLockedMemoryIsClearedAndStays: what a process has locked is not to be asked for again.
func TestLockedMemoryIsClearedAndStays(t *testing.T) {
	m, err := Anonymous(2*PageSize, false)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	b := m.Bytes()
	if err := unix.Mlock(b); err != nil {
		t.Fatal(err)
	}
	b[0], b[PageSize] = 1, 2
	if err := m.Punch(0, PageSize); err != nil {
		t.Fatal(err)
	}
	if b[0] != 0 || b[PageSize] != 2 {
		t.Errorf("after punching page 0: got %d, %d, want 0, 2", b[0], b[PageSize])
	}
}

func TestPunchRefusesRangesThatAreNotPages(t *testing.T) {
	m, err := Anonymous(4*PageSize, false)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, r := range [][2]int{{1, PageSize}, {0, 1}} {
		if err := m.Punch(r[0], r[1]); !errors.Is(err, errUnaligned) {
			t.Errorf("Punch(%d, %d): got %v, want %v", r[0], r[1], err, errUnaligned)
		}
	}
	for _, r := range [][2]int{{-PageSize, PageSize}, {0, 5 * PageSize}, {4 * PageSize, PageSize}, {0, -PageSize}} {
		if err := m.Punch(r[0], r[1]); err == nil {
			t.Errorf("Punch(%d, %d) outside the mapping: got no error", r[0], r[1])
		}
	}
}

func TestMemfdIsSharedAndCanBePunched(t *testing.T) {
	fd, err := NewMemfd("test", 2*PageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	w, err := fd.Map(0, 2*PageSize, true)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r, err := fd.Map(0, 2*PageSize, false)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w.Bytes()[PageSize] = 7
	if got := r.Bytes()[PageSize]; got != 7 {
		t.Fatalf("the second mapping reads %d, want 7", got)
	}
	if err := fd.Punch(PageSize, PageSize); err != nil {
		t.Fatal(err)
	}
	if got := r.Bytes()[PageSize]; got != 0 {
		t.Fatalf("after the punch: got %d, want 0", got)
	}
}

func TestSealFutureWritesKeepsTheOwnersMapping(t *testing.T) {
	fd, err := NewMemfd("test", PageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	w, err := fd.Map(0, PageSize, true)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := fd.SealFutureWrites(); err != nil {
		t.Fatal(err)
	}
	w.Bytes()[0] = 1
	if m, err := fd.Map(0, PageSize, true); err == nil {
		m.Close()
		t.Fatal("a sealed memfd was mapped writable")
	}
	r, err := fd.Map(0, PageSize, false)
	if err != nil {
		t.Fatalf("a sealed memfd cannot be mapped read-only: %v", err)
	}
	defer r.Close()
	if r.Bytes()[0] != 1 {
		t.Fatal("the reader does not see the owner's write")
	}
}

func TestCloseTwice(t *testing.T) {
	m, err := Anonymous(PageSize, true)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := NewMemfd("test", PageSize)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		if err := fd.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAHugeMemfdMappingCanBeCollapsed(t *testing.T) {
	fd, err := NewMemfd("test", 4*HugePageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	for _, off := range []int{0, PageSize} {
		m, err := fd.Map(off, 3*HugePageSize, true)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(m.Bytes()); n != 3*HugePageSize {
			t.Fatalf("mapped %d bytes, want %d", n, 3*HugePageSize)
		}
		m.Bytes()[HugePageSize-off+5] = 7
		if err := m.Collapse(HugePageSize-off, HugePageSize); err != nil {
			t.Logf("this kernel makes no huge pages here: %v", err)
		}
		if got := m.Bytes()[HugePageSize-off+5]; got != 7 {
			t.Fatalf("after collapsing: got %d, want 7", got)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
