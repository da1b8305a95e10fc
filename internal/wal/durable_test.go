package wal

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"polder/internal/failpoint"
)

// dirty is how many pages of the log in dir the medium does not have yet. The
// next segment, which holds nothing yet, may be anywhere.
func dirty(t *testing.T, dir string) (n uint64) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if filepath.Base(name) == readyName {
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		var all unix.CachestatRange // of length 0: to the end
		var st unix.Cachestat_t
		err = unix.Cachestat(uint(f.Fd()), &all, &st, 0)
		f.Close()
		if err != nil {
			t.Skipf("the kernel does not say what is on the medium: cachestat(2): %v", err)
		}
		n += st.Dirty + st.Writeback
	}
	return n
}

// What the log promises to survive a loss of power is on the medium when it says
// so, and a checkpoint before it gets its name.
func TestWhatIsPromisedIsOnTheMedium(t *testing.T) {
	dir := t.TempDir()
	l, _ := mustOpen(t, dir, Options{})
	appendAll(t, l, number(0, 300)...)
	if dirty(t, dir) == 0 {
		t.Skip("this file system does not say what is on the medium")
	}
	lsn, err := l.Append([]byte("the last"))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Commit(lsn, true); err != nil {
		t.Fatal(err)
	}
	if n := dirty(t, dir); n != 0 {
		t.Errorf("%d pages of the log are not on the medium after a durable commit", n)
	}
	snap := l.Snapshot()
	snap.Add([]byte(strings.Repeat("state", 10_000)))
	unsaved := uint64(0)
	failpoint.Set(func(name string) {
		if name == "wal.checkpoint-written" {
			unsaved = dirty(t, dir)
		}
	})
	defer failpoint.Set(nil)
	if err := l.Save(snap); err != nil {
		t.Fatal(err)
	}
	if unsaved != 0 {
		t.Errorf("%d pages of a checkpoint were not on the medium when it got its name", unsaved)
	}
}
