package arena

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestSealForGoodKeepsTheSizeAndLetsTheOwnerPunch(t *testing.T) {
	fd, err := NewMemfd("test", 2*PageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	if err := fd.CheckShrinkSealed(); err == nil {
		t.Fatal("an unsealed memfd passes for sealed")
	}
	if err := fd.SealForGood(); err != nil {
		t.Fatal(err)
	}
	if err := fd.CheckShrinkSealed(); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{0, 100 << 20} {
		if err := fd.File().Truncate(size); err == nil {
			t.Errorf("a sealed memfd was resized to %d bytes", size)
		}
	}
	if _, err := unix.FcntlInt(fd.File().Fd(), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE); err == nil {
		t.Error("another seal was added")
	}
	m, err := fd.Map(0, 2*PageSize, true)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	m.Bytes()[5], m.Bytes()[6], m.Bytes()[PageSize] = 1, 2, 3
	if err := fd.Zero(5, 1); err != nil {
		t.Fatal(err)
	}
	if err := fd.Punch(PageSize, PageSize); err != nil {
		t.Fatal(err)
	}
	if b := m.Bytes(); b[5] != 0 || b[6] != 2 || b[PageSize] != 0 {
		t.Fatalf("got %d, %d, %d, want 0, 2, 0", b[5], b[6], b[PageSize])
	}
	if err := fd.Zero(2*PageSize, 1); err == nil {
		t.Fatal("zeroing behind the end of a sealed memfd succeeded")
	}
}

func TestWordsAreWhatTheMappingHolds(t *testing.T) {
	m, err := Anonymous(PageSize, false)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	Word64(m.Bytes()[8:]).Store(^uint64(0))
	Word32(m.Bytes()[8:]).Store(0)
	if b := m.Bytes(); b[7] != 0 || b[8] != 0 || b[12] != 0xff || b[16] != 0 {
		t.Fatalf("got % x", b[7:17])
	}
}
